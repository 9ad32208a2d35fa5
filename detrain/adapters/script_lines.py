"""Which line of the script led to an operator, by the frames on the stack."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path

#: Operators under a frame of these files are detrain's own.
_OWN = tuple(
    f"{Path(__file__).parents[1]}/{part}"
    for part in ("session/", "state/", "store/", "loops/", "outputs/", "adapters/loaded.py")
)


def line_of(frame: types.FrameType | None, is_user_file: Callable[[str], bool]) -> str | None:
    """The innermost line of the script or its modules from a frame outwards, as "train.py:12"; "" if there is none.

    None for what detrain does for itself.
    """
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_OWN):
            return None
        if is_user_file(filename):
            return f"{Path(filename).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
