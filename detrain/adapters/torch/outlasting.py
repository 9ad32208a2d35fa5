"""Keeps a loader's workers alive when a signal is sent to the whole process group: the main process needs them for its checkpoint.

torch's own SIGTERM handler in a worker ends the worker when the main process sends the signal; that stays so. A handler that a
script's `worker_init_fn` sets comes later, and stays.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils import signal_handling, worker

#: Takes the pid of the main process.
Outlast = Callable[[int], None]

plain_loop = worker._worker_loop
_plain_set = signal_handling._set_worker_signal_handlers


def patch(outlast: Outlast) -> None:
    """Patch torch, for the workers that are started from now on."""
    _patch_set_worker_signal_handlers(outlast)
    _patch_worker_loop(outlast)


def _patch_set_worker_signal_handlers(outlast: Outlast) -> None:
    def _set_and_outlast() -> None:
        _plain_set()
        outlast(_main_process())

    signal_handling._set_worker_signal_handlers = _set_and_outlast


def _patch_worker_loop(outlast: Outlast) -> None:
    worker._worker_loop = functools.partial(_loop_and_outlast, outlast)


def _loop_and_outlast(outlast: Outlast, *args: Any) -> None:
    """A worker's main function. A worker that is not forked (spawn, forkserver) has none of the patches yet."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        outlast(_main_process())
    _patch_set_worker_signal_handlers(outlast)
    plain_loop(*args)


def _main_process() -> int:
    """The pid of the main process; with forkserver, the parent of a worker is the server."""
    main = multiprocessing.parent_process()
    return os.getppid() if main is None or main.pid is None else main.pid
