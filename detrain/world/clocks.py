"""The clocks that the script reads. Records every clock reading and replays it when the same batches run again.

Readings of set-up code are answered by `detrain.world.setup_clock`; those of the training loop are recorded under their batch. The preload
library does it (`syscalls/clock.c`), `detrain.world.loop_clock_log` reads the log. A resumed attempt reads the same times as the killed one
until it has trained as far; then the time of day is the real one again, and monotonic clocks continue from where they stood. Where a part
of a run is repeated to prove it, no clock ever jumps to the present.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detrain import package
from detrain.messages import warn
from detrain.world import preload

if TYPE_CHECKING:  # loaded when the training begins
    import numpy as np

#: As in `syscalls/clock.c`.
CLOCKS = ("real", "monotonic", "process", "thread")
REAL = CLOCKS.index("real")
_FUNCTIONS = ("monotonic", "perf_counter", "process_time", "thread_time")
_METH_NOARGS = 4  # <methodobject.h>
_State = ctypes.c_int64 * (4 + len(CLOCKS) + 1)


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("ml_name", ctypes.c_char_p),
        ("ml_meth", ctypes.c_void_p),
        ("ml_flags", ctypes.c_int),
        ("ml_doc", ctypes.c_char_p),
    )


class Clocks:
    """The clocks of one attempt."""

    def __init__(
        self, folder: Path, batches: ctypes.c_uint64, *, is_proof: bool, is_anew: bool, is_counted_anew: bool
    ) -> None:
        """`is_proof`: a part of the run is done again. `is_anew`: what earlier attempts have read says nothing about what comes.

        `is_counted_anew`: the loops are found again as the first attempt found them, which counts batches as it did.
        """
        self._folder, self._batches, self.is_proof, self._is_anew = folder, batches, is_proof, is_anew
        self._is_counted_anew = is_counted_anew
        self._is_there = False
        self._append: Callable[[bytes, int], int] | None = None  # the library's function
        self._known: np.ndarray[Any, Any] | None = None  # the library reads from it
        self._has_said = False

    def begin(self, answer: Callable[[int, int], int], log: Path) -> bool:
        """Ask `answer` (number of the clock, ns that it really shows) from now on; False if no preload library is there.

        `log` is where `record_reading` appends to.
        """
        places = preload.function("detrain_clock_places", ctypes.c_char_p, ctypes.c_char_p)
        own = os.path.abspath(package.FOLDER) + os.sep
        standard = os.path.dirname(os.__file__) + os.sep
        if places is None or not places(os.fsencode(own), os.fsencode(standard)):
            return False
        opened = preload.function("detrain_open_answers", ctypes.c_char_p)
        self._append = preload.function("detrain_record_reading", ctypes.c_char_p, ctypes.c_uint64)
        assert opened is not None
        opened(os.fsencode(log))  # where it cannot be, the first answer says so
        for name in _FUNCTIONS:
            _replace(name)
            _replace(f"{name}_ns")
        self._is_there = preload.set_answering("detrain_answer_clocks", answer)
        return self._is_there

    def record_reading(self, line: str) -> bool:
        """Append to the log of answers; False if it could not be."""
        content = line.encode()
        return self._append is not None and bool(self._append(content, len(content)))

    def begin_loop(self, since: int, *, is_resuming: bool, shared: tuple[int, list[int]] | None = None) -> None:
        """The training loop begins: behind the batch `since`, note what is read, and answer again what was read before.

        `shared`: batches and `tell` of a checkpoint up to which the readings are the same in any case.
        """
        if not self._is_there:
            return
        from detrain.world import loop_clock_log  # loads numpy

        log = self._folder / loop_clock_log.NAME
        try:
            loop_clock_log.cut_torn(log)
            if self._is_anew and not is_resuming:
                loop_clock_log.take_back(log, 0, 0)
            if not self._is_anew or shared is not None:
                self._known = loop_clock_log.read(log, is_counted_anew=self._is_counted_anew)
            if self._is_anew and shared is not None and self._known is not None:
                batches, position = shared
                count = _count_of(position, batches)
                self._known = loop_clock_log.before(self._known, batches, count)
        except OSError as error:
            self._say_not_noted(error)
        note = preload.function(
            "detrain_record_clock", ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64,
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
        )  # fmt: skip
        assert note is not None
        address, count = (None, 0) if self._known is None else (self._known.ctypes.data, len(self._known))
        note(
            os.fsencode(log),
            loop_clock_log.MOST_BYTES,
            ctypes.byref(self._batches),
            since,
            address,
            count,
            self.is_proof,
        )

    def recounted(self, batches: int, *, is_other_nest: bool) -> None:
        """A loop has been found after others, in the middle of its first batch: from so many on, later attempts count otherwise.

        `is_other_nest`: and all the way from here, because the loop that was taken for the batch loop is none.
        """
        if not self._is_there:
            return
        from detrain.world import loop_clock_log

        try:
            loop_clock_log.append_recount(self._folder / loop_clock_log.NAME, batches)
        except OSError as error:
            self._say_not_noted(error)
        if is_other_nest:
            _call("detrain_stop_recording_clock")

    def stop(self) -> None:
        """The script has ended, or this is a forked child: the real clocks."""
        if self._is_there:
            _call("detrain_stop_clock")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While detrain works for itself: what libraries read then is none of the script's."""
        if not self._is_there:
            yield
            return
        _call("detrain_clock_aside", ctypes.c_int(1))
        try:
            yield
        finally:
            _call("detrain_clock_aside", ctypes.c_int(-1))

    def tell(self) -> list[int]:
        """For a checkpoint: how much of two batches has been read, what the clocks show in ns. Empty without a preload."""
        if not self._is_there:
            return []
        state = _State()
        _call("detrain_clock_tell", state)
        *position, is_full = state
        if is_full and not self._has_said:
            self._say_not_noted("the log cannot be written, or is full")
        return position

    def seek(self, position: list[int], *, is_last: bool) -> None:
        """The run is at the checkpoint for which `tell` returned `position`; `is_last`: it continues from here."""
        if not self._is_there or not position:
            return
        _call("detrain_clock_seek", _State(*position, 0))
        if self._is_anew and is_last:
            from detrain.world import loop_clock_log

            now = self._batches.value
            try:
                loop_clock_log.take_back(self._folder / loop_clock_log.NAME, now, _count_of(position, now))
            except OSError as error:
                self._say_not_noted(error)

    def _say_not_noted(self, why: object) -> None:
        self._has_said = True
        warn("clock-not-noted", f"clock readings of the training loop are not recorded, or not completely: {why}")


def _count_of(position: list[int], batch: int) -> int:
    """How much of a batch had been read where the clocks stood so."""
    return {position[0]: position[1], position[2]: position[3]}.get(batch, 0) if position else 0


def _call(name: str, *arguments: object) -> None:
    function = getattr(ctypes.CDLL(None), name)
    function.restype = None
    function(*arguments)


def _replace(name: str) -> None:
    """Let the preload's function of this name take the place of the one of the module `time`."""
    plain = getattr(time, name)
    address = ctypes.cast(getattr(ctypes.CDLL(None), f"detrain_{name}"), ctypes.c_void_p)
    definition = _MethodDef(name.encode(), address, _METH_NOARGS, (plain.__doc__ or "").encode())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))  # the function may outlive all modules
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.py_object], ctypes.py_object
    setattr(time, name, make(definition, time, "time"))
