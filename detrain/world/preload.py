"""The preload library of `syscalls/` from Python's side: where it is, and where its stream of entropy stands.

The library answers every question for entropy from one stream that is seeded by the environment. The launcher names
`library()` in LD_PRELOAD; a checkpoint then stores `entropy_state()` and a resume sets it again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SEED_VARIABLE = "DETRAIN_ENTROPY_SEED"
"""The library answers only when this is set at load: any text; equal texts give equal streams."""

_LIBRARY_NAME = "libdetrain_syscalls.so"  # setup.py builds it beside this file
_SEPARATORS = frozenset(" :\t\n\r\v\f")
_State = ctypes.c_uint64 * 2  # {bytes handed out, children made}


def library() -> Path | None:
    """The path to name in LD_PRELOAD; None where the library was not built (no Linux, no C compiler)."""
    path = Path(__file__).resolve().with_name(_LIBRARY_NAME)
    return without_separators(path) if path.is_file() else None


def without_separators(path: Path) -> Path | None:
    """`path` itself, or a link to it: the loader splits LD_PRELOAD at blanks and colons and knows no escape (ld.so(8)).

    The link lies in the user's cache directory, made when it is missing; None if that has such a path too.
    """
    if not _SEPARATORS & set(str(path)):
        return path
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    import hashlib  # few need a link, and every start would wait for it

    link = cache / "detrain" / hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest() / path.name
    if _SEPARATORS & set(str(link)):
        return None
    if not link.is_symlink() or link.readlink() != path:
        link.parent.mkdir(parents=True, exist_ok=True)
        partial = link.with_name(f"{os.getpid()}.partial")
        partial.symlink_to(path)
        partial.replace(link)  # atomic: another process may be making the same link
    return link


def is_loaded() -> bool:
    """Whether the library is loaded into this process and answers, that is, whether a seed was set at load."""
    return entropy_state() is not None


def entropy_state() -> tuple[int, int] | None:
    """Where this process's stream stands: (bytes handed out, children made); None when no library answers.

    Asking takes nothing from the stream.
    """
    tell = function("detrain_entropy_tell")
    state = _State()
    if tell is None or not tell(state):
        return None
    return state[0], state[1]


def set_entropy_state(state: tuple[int, int]) -> None:
    """Set what `entropy_state` returned in a process of the same seed and the same place among its relatives.

    Raises RuntimeError when no library answers: going on would draw other numbers than the run did before. Raises
    ValueError when a number is no unsigned 64-bit integer.
    """
    if any(not 0 <= number < 2**64 for number in state):
        raise ValueError(f"entropy state {state!r} is not two unsigned 64-bit numbers")
    seek = function("detrain_entropy_seek")
    if seek is None or not seek(_State(*state)):
        raise RuntimeError(
            f"cannot set the entropy state to {state!r}: the preload library is not active in this process "
            f"({why_not()}), so os.urandom() and its like would differ from the run that was checkpointed"
        )


@contextmanager
def entropy_unmoved() -> Iterator[None]:
    """What is drawn and what is started within does not count: what comes behind it draws as if it had not been."""
    state = entropy_state()
    try:
        yield
    finally:
        if state is not None:
            set_entropy_state(state)


def entropy_of_threads() -> tuple[int, int]:
    """Where the streams of threads stand: bytes handed out to Python's but the main one, and to those that Python does not know."""
    state = _State()
    tell = function("detrain_entropy_of_threads_tell")
    if tell is not None:
        tell.restype = None
        tell(state)
    return state[0], state[1]


def set_entropy_of_threads(state: tuple[int, int]) -> None:
    """Set what `entropy_of_threads` returned."""
    seek = function("detrain_entropy_of_threads_seek")
    if seek is not None:
        seek.restype = None
        seek(_State(*state))


def key_entropy(first: int, second: int) -> None:
    """Begin other streams in this process, a function of two unsigned 64-bit numbers alone; nothing if no library answers."""
    begin = function("detrain_entropy_key")
    if begin is not None:
        begin.restype = None
        begin(_State(first, second))


def keep_seed() -> None:
    """Let the program that this process becomes by `exec` use the seed in its environment, not a child's."""
    keep = function("detrain_keep_seed")
    if keep is not None:
        keep.argtypes, keep.restype = [], None
        keep()


def outlast(main: int) -> None:
    """In a worker process of `main`: SIGTERM from anybody else waits until that has ended, and SIGUSR2 is none of ours."""
    begin = function("detrain_outlast", ctypes.c_int)
    if begin is not None:
        begin(main)


def own_folder(path: str) -> None:
    """Let the script make this folder once more, which an earlier attempt has made."""
    own = function("detrain_own_folder", ctypes.c_char_p)
    if own is not None:
        own.restype = None
        own(os.fsencode(path))


def record_output(path: Path, most_bytes: int, batches: ctypes.c_uint64) -> bool:
    """Append what this process prints to a file as it goes by, until it has so many bytes; False if that cannot be.

    `batches` is read at each write. `detrain.world.output_log` reads the file.
    """
    note = function("detrain_record_output", ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64))
    if note is None:
        return False
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(batches))  # Python prints when it has already thrown its modules away
    return bool(note(os.fsencode(path), most_bytes, ctypes.byref(batches)))


def mark_printed(text: str) -> bool:
    """Append a word of detrain's to that file, between what was printed before and after; False if it could not be."""
    mark = function("detrain_mark_printed", ctypes.c_char_p)
    return mark is not None and bool(mark(text.encode()))


def rename_at_exit(prepared: Path, final: Path) -> bool:
    """Let the very last act of this process be a rename, made only if it ends by itself; False if no library is there to do it."""
    rename = function("detrain_rename_at_exit", ctypes.c_char_p, ctypes.c_char_p)
    return rename is not None and bool(rename(os.fsencode(prepared), os.fsencode(final)))


def answer_process(answer: Callable[[int, int], int] | None, number: int) -> bool:
    """Let `answer` answer Python code that asks for the process id, and take `number` for this process where it is used.

    Of what was asked (0) and the real answer it makes the one that is given. False if the library is not there.
    """
    is_there = set_answering("detrain_answer_process_id", answer)
    set_alias = function("detrain_pid_alias", ctypes.c_int)
    if set_alias is not None:
        set_alias.restype = None
        set_alias(number)
    return is_there


def set_answering(name: str, answer: Callable[[int, int], int] | None) -> bool:
    """Hand a function to the library's of this name; False if it is not there."""
    setter = getattr(ctypes.PyDLL(None), name, None)  # called with Python's lock
    if setter is None:
        return False
    if answer is None:
        setter.argtypes, argument = [ctypes.c_void_p], None
    else:
        setter.argtypes, argument = [ctypes.py_object], answer
    return bool(setter(argument))


def hear_events(hearer: Callable[[str, tuple[Any, ...]], None], names: Sequence[str]) -> bool:
    """Call `hearer` with name and arguments of each audit event of these names; False if the library is not there. Once in a process.

    A hook of Python's own is called at every event, of which the import of a framework raises 17,000.
    """
    hear = getattr(ctypes.PyDLL(None), "detrain_hear_events", None)  # called with Python's lock
    if hear is None:
        return False
    hear.argtypes, hear.restype = [ctypes.py_object, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int], ctypes.c_int
    return bool(hear(hearer, (ctypes.c_char_p * len(names))(*map(str.encode, names)), len(names)))


def why_not() -> str:
    """Why no library answers in this process."""
    if library() is None:
        return f"{_LIBRARY_NAME} was not built; install a C compiler and run `python setup.py build_syscalls`"
    if function("detrain_entropy_tell") is None:
        return f"{library()} is not in LD_PRELOAD"
    return f"{SEED_VARIABLE} was not set when the process started"


def function(name: str, *arguments: type[object]) -> ctypes._NamedFuncPointer | None:
    """The exported C function of this process, None when the library is not loaded."""
    found = getattr(ctypes.CDLL(None), name, None)
    if found is not None:
        found.argtypes, found.restype = arguments or [_State], ctypes.c_int
    return found
