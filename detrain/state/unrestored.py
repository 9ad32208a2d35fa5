"""What stands in the place of an object that a resume could not bring back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from detrain.errors import RestoreError


class Unrestored:
    """Fails with a `RestoreError` that names the leaf as soon as the script uses it.

    Nine times in ten it is a leftover that the next iteration overwrites: the last row's `csv.writer`, a finished pass.
    """

    def __init__(self, what: str, why: str, set_aside: Callable[[], str] | None = None) -> None:
        """`what`: path and type; `why` it is not restored.

        `set_aside`: of an object that was there before the loop, and so is in the checkpoint: sets the checkpoint aside when the script
        uses it, and says so.
        """
        story = (
            "was made inside the loop and is not in the checkpoint"
            if set_aside is None
            else "cannot be brought to where it was"
        )
        self.__dict__["_text"] = f"{what} {story} ({why}); this resume cannot be exact"
        self.__dict__["_set_aside"] = set_aside

    def _fail(self, *_: object, **__: object) -> Any:
        set_aside = self.__dict__["_set_aside"]
        raise RestoreError(self.__dict__["_text"] + (f". {set_aside()}" if set_aside is not None else ""))

    # Every way to use an object that there is, so that none goes unnoticed.
    __getattr__ = __setattr__ = __delattr__ = __call__ = __iter__ = __next__ = __len__ = __getitem__ = __setitem__ = (
        _fail
    )
    __contains__ = __enter__ = __exit__ = __bool__ = __add__ = __radd__ = __iadd__ = __mul__ = __rmul__ = __eq__ = _fail
    __repr__ = __str__ = __format__ = _fail
    __lt__ = __gt__ = __float__ = __int__ = __index__ = __neg__ = __sub__ = __rsub__ = __truediv__ = __matmul__ = _fail
    __hash__ = object.__hash__
