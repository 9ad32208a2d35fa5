"""What detrain itself says: on standard error, one prefix, so that the script's own output stays what it is."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from detrain import eventlog

#: The rank of this process in its job; 0 also where it is alone.
_rank = 0
_is_quiet = False


def speak_as(rank: int, *, is_quiet: bool = False) -> None:
    """From now on this process is one of several ranks: 0 speaks for all, another only when something is wrong, and with its number.

    `is_quiet`: rank 0 also speaks only then.
    """
    global _rank, _is_quiet
    _rank, _is_quiet = rank, is_quiet


def say(text: str) -> None:
    """Print a line to standard error; never fails the run."""
    kind, _, rest = text.partition(": ")
    if kind == "error":
        _note(kind, text=rest)
    elif kind != "warning":
        _note("said", text=text)
    _print(text)


def _note(event: str, **facts: object) -> None:
    trouble = eventlog.note(event, **facts)
    if trouble:
        warn(
            "log-json",
            f"the file of --log-json cannot be written: {trouble}. The run goes on; from here on nothing is added to it",
        )


def _print(text: str) -> None:
    stream = sys.__stderr__
    if stream is None or ((_rank or _is_quiet) and not text.startswith(("error:", "warning:"))):
        return
    prefix = f"detrain [rank {_rank}]" if _rank else "detrain"
    try:
        stream.write(f"{prefix}: {text}\n")
        stream.flush()
    except (OSError, ValueError) as error:
        here = error.__traceback__
        if (
            here is not None and here.tb_next is not None
        ):  # not the stream's: a signal handler of the script's has raised it
            raise


def warn(slug: str, text: str) -> None:
    """A warning; docs/messages.md explains each slug."""
    _note("warning", slug=slug, text=text)
    _print(f"warning: {text} [{slug}]")


@contextlib.contextmanager
def unheard(category: type[Warning]) -> Iterator[None]:
    """Ignore warnings of a category that code of detrain's causes.

    `warnings.catch_warnings` would let every module say again what it has said once: with each change of the filters by their functions
    Python forgets what was shown.
    """
    entry = ("ignore", None, category, None, 0)
    filters: list[Any] = warnings.filters  # type: ignore[assignment]  # declared as a sequence
    filters.insert(0, entry)
    try:
        yield
    finally:
        filters.remove(entry)


def counted(number: int, what: str, several: str = "") -> str:
    """A number of things: "1 record", "2 records"; `several` for what has another plural."""
    return f"{number} {what if number == 1 else several or f'{what}s'}"


class Trouble:
    """What may fail again and again, for one reason (a full disk): said when it begins, and when it is over or the run is."""

    def __init__(self, slug: str, one: str, many: str, over: str) -> None:
        """`one` and `many` name what fails, `over` that it does no more: "checkpoint", "checkpoints", "they can be written again"."""
        self._slug, self._one, self._many, self._over = slug, one, many, over
        self._count, self._since = 0, ""
        self._said: set[tuple[type, object]] = set()

    def failed(self, error: Exception, text: str) -> None:
        """Say `text`, unless the same has been said of the same trouble."""
        self._since = self._since or time.strftime("%H:%M:%S")
        self._count += 1
        kind = type(error), getattr(error, "errno", None)  # the message may name another file each time
        if kind not in self._said:
            self._said.add(kind)
            warn(self._slug, text)

    def worked(self) -> None:
        """It has not failed this time."""
        if self._count:
            say(f"{self._counted()}; now {self._over}")
        self._count, self._since, self._said = 0, "", set()

    def end(self) -> None:
        """The run is over; what has failed more than once has been said only once."""
        if self._count > 1:
            warn(self._slug, f"{self._counted()}, to the end of the script")

    def _counted(self) -> str:
        return f"{self._count} {self._one if self._count == 1 else self._many} since {self._since}"
