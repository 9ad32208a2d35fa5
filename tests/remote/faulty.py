"""A file system that fails on purpose: at the operation of a number, in a way that has a name."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

from fsspec.spec import AbstractFileSystem

from detrain.remote.objects import Store


class Killed(BaseException):
    """The publisher is gone at this point."""


#: What goes wrong, and where the process goes on afterwards.
ERRORS = ("refused", "cut", "lost-answer", "full", "timeout", "denied")
READ_ERRORS = ("short", "flipped", "stale", "gone")
KILLS = ("killed-before", "killed-half", "killed-after")
KINDS = (*ERRORS, *READ_ERRORS, *KILLS)


@dataclass
class Plan:
    """Which operations fail how; operations count from 0."""

    faults: dict[int, str] = field(default_factory=dict)
    count: int = 0
    log: list[str] = field(default_factory=list)

    def next(self, what: str) -> str:
        kind = self.faults.get(self.count, "")
        self.log.append(f"{self.count} {what} {kind}".strip())
        self.count += 1
        return kind


class Faulty(AbstractFileSystem):
    """Objects in a dict. `is_conditional`: it can make an object only if there is none."""

    protocol = ("s3", "faulty")
    cachable = False

    def __init__(self, objects: dict[str, bytes] | None = None, *, is_conditional: bool = True) -> None:
        super().__init__()
        self.objects = {} if objects is None else objects
        self.before: dict[str, bytes] = {}
        self.plan = Plan()
        self.is_conditional = is_conditional

    # --- operations ------------------------------------------------------------------------------------------------------------

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        return self._read(path, "read")

    def get_file(self, rpath: str, lpath: str, *_: object, **__: object) -> None:
        Path(lpath).write_bytes(self._read(rpath, "get"))

    def info(self, path: str, **_: object) -> dict[str, object]:
        kind = self._begin(f"info {path}")
        seen = self.before if kind == "stale" else self.objects
        if path not in seen:
            raise FileNotFoundError(path)
        self._end(kind)
        return {"name": path, "size": len(seen[path]), "type": "file"}

    def find(self, path: str, *_: object, **__: object) -> list[str]:
        kind = self._begin(f"find {path}")
        seen = self.before if kind == "stale" else self.objects
        self._end(kind)
        return sorted(name for name in seen if name.startswith(f"{path}/"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        if mode == "create" and not self.is_conditional:
            raise NotImplementedError("create")
        self._write(path, value, "create" if mode == "create" else "write")

    def put_file(self, lpath: str, rpath: str, *_: object, **__: object) -> None:
        self._write(rpath, Path(lpath).read_bytes(), "put")

    def rm_file(self, path: str) -> None:
        kind = self._begin(f"delete {path}")
        if path not in self.objects:
            raise FileNotFoundError(path)
        self._change()
        del self.objects[path]
        self._end(kind)

    # --- faults ----------------------------------------------------------------------------------------------------------------

    def _begin(self, what: str) -> str:
        kind = self.plan.next(what)
        if kind == "refused":
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
        if kind == "timeout":
            raise TimeoutError("timed out")
        if kind == "denied":
            raise PermissionError(errno.EACCES, "denied")
        if kind == "killed-before":
            raise Killed
        return kind

    def _end(self, kind: str) -> None:
        if kind in ("lost-answer", "cut", "full"):
            raise OSError(errno.EIO, "500 Internal Server Error")
        if kind in ("killed-after", "killed-half"):
            raise Killed

    def _change(self) -> None:
        self.before = dict(self.objects)

    def _write(self, path: str, value: bytes, what: str) -> None:
        kind = self._begin(f"{what} {path}")
        if what == "create" and path in self.objects:
            raise FileExistsError(path)
        self._change()
        if kind in ("cut", "full", "killed-half"):
            self.objects[path] = value[: len(value) // 2]
        else:
            self.objects[path] = value
        if kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._end(kind)

    def _read(self, path: str, what: str) -> bytes:
        kind = self._begin(f"{what} {path}")
        if path not in self.objects or kind == "gone":
            raise FileNotFoundError(path)
        value = self.objects[path]
        if kind == "stale":
            with contextlib.suppress(KeyError):
                value = self.before[path]
        if kind == "short":
            value = value[: len(value) // 2]
        if kind == "flipped" and value:
            value = bytes([value[0] ^ 1]) + value[1:]
        self._end(kind)
        return value


def store_of(system: Faulty) -> Store:
    return Store(system, "bucket/run", "s3://bucket/run")
