"""Functions of libraries that change files without Python's `open` and `os`; each use is reported before anything is touched.

It is reported as Python reports its own functions: by raising the same audit event.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections.abc import Callable
from typing import Any

_EMPTYING = os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_FLAGS = {"r": None, "r+": os.O_RDWR, "x": _NEW, "w-": _NEW, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND}


def _opens(path: Any, mode: str | bytes = "w") -> None:
    flags = _FLAGS.get(os.fsdecode(mode).replace("b", ""), _EMPTYING)
    if flags is not None and isinstance(path, (str, bytes, os.PathLike)):
        sys.audit("open", path, None, flags)


def _opens_hdf5(path: Any, mode: str) -> None:
    _opens(path, "r+" if mode == "a" else mode)


def _removes(path: Any) -> None:
    sys.audit("os.remove", path, -1)


def _removes_all(path: Any) -> None:
    for folder, folders, names in os.walk(path, topdown=False):
        for name in (*names, *folders):
            _removes(os.path.join(folder, name))
    _removes(path)


def _renames(old: Any, new: Any) -> None:
    sys.audit("os.rename", old, new, -1, -1)


def _makes(path: Any) -> None:
    sys.audit("os.mkdir", path, 0o777, -1)


def _makes_all(path: Any) -> None:
    above = os.path.dirname(path)
    if above and above != path and not os.path.lexists(above):
        _makes_all(above)
    _makes(path)


def _saves_checkpoint(prefix: Any) -> None:
    """Report what TensorFlow writes for a checkpoint in one shard: files in a temporary folder, and then in their place."""
    text = prefix.numpy() if hasattr(prefix, "numpy") else prefix
    if isinstance(text, (str, bytes)):
        path = os.fsdecode(text)
        _makes(f"{path}_temp")
        for piece in (".index", ".data-00000-of-00001"):
            _opens(f"{path}_temp/part-00000-of-00001{piece}")
            _opens(f"{path}{piece}")


#: Module to its functions that write; each with a function of the same parameters that raises the audit events for a call.
WRITERS: dict[str, dict[str, Callable[..., None]]] = {
    "h5py._hl.files": {"File.__init__": lambda _, name, mode="r", *__, **___: _opens_hdf5(name, mode)},
    "safetensors.numpy": {"serialize_file": lambda _, filename, *__, **___: _opens(filename)},
    "safetensors.torch": {"serialize_file": lambda _, filename, *__, **___: _opens(filename)},
    "tensorflow.python.checkpoint.functional_saver": {
        "MultiDeviceSaver.save": lambda _, file_prefix, *__, **___: _saves_checkpoint(file_prefix)
    },
    "tensorflow.python.lib.io._pywrap_file_io": {
        "CopyFile": lambda _, target, *__: _opens(target),
        "CreateDir": lambda path, *_: _makes(path),
        "DeleteFile": lambda path, *_: _removes(path),
        "DeleteRecursively": lambda path, *_: _removes_all(path),
        "RecursivelyCreateDir": lambda path, *_: _makes_all(path),
        "RenameFile": lambda old, new, *_: _renames(old, new),
        "WritableFile": lambda path, mode, *_: _opens(path, mode),
    },
    "torch.jit._serialization": {"save": lambda _, f, *__, **___: _opens(f)},
    "torch.serialization": {"_open_zipfile_writer_file.__init__": lambda _, name: _opens(name)},
}


def announce(module: types.ModuleType) -> None:
    """Patch the functions of a module that write files, so that each call raises an audit event first."""
    for place, tell in WRITERS.get(module.__name__, {}).items():
        *owners, name = place.split(".")
        owner = functools.reduce(getattr, owners, module)
        plain = getattr(owner, name, None)
        if plain is not None:  # None: another version of the library
            setattr(owner, name, _announced(plain, tell))


def _announced(plain: Any, tell: Callable[..., None]) -> Any:
    @functools.wraps(plain)
    def write(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(TypeError, ValueError, AttributeError):  # arguments that the function itself refuses
            tell(*args, **kwargs)
        return plain(*args, **kwargs)

    return write
