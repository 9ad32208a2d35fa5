"""Run a script exactly as `python` would: a real `__main__`, its own `sys.path[0]`, its own tracebacks."""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import runpy
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

Compile = Callable[[bytes, str], types.CodeType]

#: What comes so soon after an interrupt belongs to it. Seconds.
_ONCE_S = 1.0
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def run_file(path: str, arguments: list[str], compile_source: Compile) -> None:
    """Run a script file, a folder or an archive with a `__main__`; as `python path arguments…`."""
    sys.argv = [path, *arguments]
    if os.path.isdir(path) or _is_archive(path):
        sys.path[0] = os.path.abspath(path)
        _fresh_main()
        _with_peeled_traceback(lambda: runpy._run_module_as_main("__main__", False))  # type: ignore[attr-defined]
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    else:
        del sys.path[0]
    content = Path(path).read_bytes()
    try:
        code = compile_source(content, _as_python_names_it(path))
    except (SyntaxError, ValueError):
        # Nothing of the script has run: Python itself says best what is wrong with its file.
        run_plainly([path, *arguments])
    module = _fresh_main()
    module.__file__ = _as_python_names_it(path)
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", module.__file__)
    module.__dict__["__cached__"] = None
    _with_peeled_traceback(lambda: exec(code, module.__dict__))


def run_module(name: str, arguments: list[str]) -> None:
    """Run a module; as `python -m name arguments…`. The import hook gives its code."""
    sys.path[0] = os.getcwd()
    sys.argv = ["-m", *arguments]
    _fresh_main()
    _with_peeled_traceback(lambda: runpy._run_module_as_main(name))  # type: ignore[attr-defined]


def run_plainly(words: list[str]) -> NoReturn:
    """Become plain `python words…`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words])


def _is_archive(path: str) -> bool:
    import zipfile

    return not path.endswith((".py", ".pyw")) and zipfile.is_zipfile(path)


def _as_python_names_it(path: str) -> str:
    """`__file__` of a script: from 3.9 absolute, not normalised."""
    return os.path.join(os.getcwd(), path)


def _fresh_main() -> types.ModuleType:
    """A new `__main__`, as the interpreter makes it."""
    module = types.ModuleType("__main__")
    module.__dict__["__annotations__"] = {}  # noqa: RUF063 - made here, in the interpreter's order
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:
        # The launch of a resume has loaded multiprocessing, which notes what is `__main__` then; what a script's spawned processes
        # send back is found by that name.
        sys.modules["__mp_main__"] = module
    return module


def _with_peeled_traceback(run: Callable[[], object]) -> None:
    """Run the script; if an exception leaves it, let the interpreter end as always, but print no frame of ours.

    The exception is not handled here: Ctrl-C, `sys.exit` and a user's `sys.excepthook` keep their meaning.
    """
    try:
        run()
    except BaseException as left:
        if isinstance(left, KeyboardInterrupt):
            _take_one_interrupt()
        theirs = sys.excepthook

        def print_without_ours(
            kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
        ) -> None:
            peeled = peel(traceback)
            if issubclass(kind, KeyboardInterrupt):
                cut(peeled)
            sys.excepthook = theirs
            theirs(kind, error.with_traceback(peeled), peeled)

        sys.excepthook = print_without_ours
        raise


def _take_one_interrupt() -> None:
    """Let what comes within a moment of an interrupt mean the same one: `timeout` signals a process and then its group.

    Later ones interrupt what an attempt has still to do at its end.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    until_s = time.monotonic() + _ONCE_S

    def on_interrupt(number: int, frame: types.FrameType | None) -> None:
        if time.monotonic() >= until_s:
            signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, on_interrupt)


def cut(traceback: types.TracebackType | None) -> None:
    """Take away the frames of this package at a traceback's end: where Ctrl-C has come while it was at work, the script was in its loop."""
    last = None
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None


def peel(traceback: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without the frames of this package at its beginning."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        traceback = traceback.tb_next
    return traceback
