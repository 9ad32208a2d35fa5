"""Records what the script prints, with marks at checkpoints, and flushes its streams before each of them.

The preload library writes the record (`syscalls/output_log.c`); `detrain.world.output_log` reads it, and finds by the marks what was
printed again.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from pathlib import Path
from typing import Any

from detrain.world import output_log, preload


class Printing:
    """The standard output and error of one attempt."""

    def __init__(self, folder: Path, batches: ctypes.c_uint64, *, attempt: int, is_resuming: bool) -> None:
        """`batches` is the session's count of batches begun."""
        log = folder / output_log.NAME
        output_log.cut_torn(log)
        preload.record_output(log, output_log.MOST_BYTES, batches)
        immediate = [
            number for number, stream in enumerate((sys.__stdout__, sys.__stderr__), 1)
            if stream is not None and (stream.line_buffering or getattr(stream, "write_through", False))
        ]  # fmt: skip
        self._mark({"attempt": attempt, "is_resuming": is_resuming, "immediate": immediate})

    def flush(self) -> None:
        """Before a checkpoint: what was printed so far will not be printed again, and would be lost with the process."""
        self._mark({"flushing": True})
        for stream in (sys.__stdout__, sys.__stderr__):
            # A stream that is closed or broken: the script gets that error itself when it prints.
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.flush()
        self._mark({"flushing": False})

    def mark_checkpoint(self, sequence: int) -> None:
        """The checkpoint of this number is being taken: who resumes from it prints what comes from here on."""
        self._mark({"checkpoint": sequence})

    def mark_resumed(self, sequence: int) -> None:
        """The attempt has resumed from the checkpoint with this sequence number."""
        self._mark({"resumed": sequence})

    def _mark(self, document: dict[str, Any]) -> None:
        preload.mark_printed(json.dumps(document, separators=(",", ":")))
