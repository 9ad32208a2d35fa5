"""Objects under a URL, by way of fsspec: the few operations that are needed, and one error for all that a file system raises."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from detrain.errors import MissingExtra, UsageError

_Words = ParamSpec("_Words")
_Result = TypeVar("_Result")
#: What libraries below fsspec raise that is no `OSError`, by module; only what is loaded can be raised.
_ERRORS = {
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "aiohttp.client_exceptions": ("ClientError",),
    "fsspec.exceptions": ("FSTimeoutError", "BlocksizeMismatchError"),
    "gcsfs.retry": ("HttpError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
    "requests.exceptions": ("RequestException",),
    "paramiko.ssh_exception": ("SSHException",),
}
#: Statuses of an object store's answer to a conditional write of what is there; and how botocore and s3fs write them in a text.
_REFUSALS = ("409", "412")
_REFUSED = re.compile(r"\((?:409|412|PreconditionFailed|ConditionalRequestConflict)\)|pre-conditions")
#: fsspec and s3fs hand on some of the server's answers as these.
_PLAIN = (OSError, EOFError, TimeoutError, ValueError, RuntimeError)


class StoreError(OSError):
    """The store could not do it, for whatever reason. It may have done it, or a part of it."""


class MissingError(StoreError):
    """There is no such object."""


class ExistsError(StoreError):
    """There is an object of that name already."""


def _errors() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = list(_PLAIN)
    for module, names in _ERRORS.items():
        if module in sys.modules:
            found += [error for name in names if (error := getattr(sys.modules[module], name, None)) is not None]
    return tuple(found)


def _converted(operation: Callable[_Words, _Result]) -> Callable[_Words, _Result]:
    """An operation of the store, whose errors are `StoreError`s."""

    @functools.wraps(operation)
    def run(*words: _Words.args, **options: _Words.kwargs) -> _Result:
        try:
            return operation(*words, **options)
        except StoreError:
            raise
        except FileNotFoundError as error:
            raise MissingError(str(error)) from error
        except FileExistsError as error:
            raise ExistsError(str(error)) from error
        except _errors() as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error

    return run


class Store:
    """The objects below one URL. Names are relative to it."""

    def __init__(self, system: Any, root: str, url: str) -> None:
        """`system`: a file system of fsspec's; `root`: the URL, as that system writes it; `url`: as a person does."""
        self._system, self._root, self.url = system, root.rstrip("/"), url
        #: True if it can make an object only where there is none; None before it has been tried.
        self._excludes: bool | None = None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @_converted
    def read(self, name: str) -> bytes:
        """The content of a small object. Raises `MissingError`."""
        self._system.invalidate_cache()
        with self._asked_twice(name):
            content = self._system.cat_file(self._path(name))
        assert isinstance(content, bytes)
        return content

    @contextlib.contextmanager
    def _asked_twice(self, name: str) -> Iterator[None]:
        """That there is no object is believed only if two questions have that answer: some file systems say it of any trouble."""
        try:
            yield
        except FileNotFoundError as error:
            size = self.size(name)
            raise StoreError(f"{self._path(name)} is there with {size} bytes and could not be read: {error}") from error

    @_converted
    def write(self, name: str, content: bytes) -> None:
        """Make or replace a small object."""
        self._make_folder(name)
        self._system.pipe_file(self._path(name), content)

    @_converted
    def create(self, name: str, content: bytes) -> bool:
        """Make a small object that is not there yet. Raises `ExistsError` if it is.

        Returns True where of two that try only one can succeed; elsewhere both may have.
        """
        self._make_folder(name)
        path = self._path(name)
        if _is_local(self._system):
            with open(path, "xb") as file:
                file.write(content)
            return True
        with contextlib.suppress(MissingError):
            self.size(name)
            raise ExistsError(f"{path} is there already")  # of file systems that do not look by themselves
        if self._excludes is False:
            self._system.pipe_file(path, content)
            return False
        try:
            self._system.pipe_file(path, content, mode="create")
        except (NotImplementedError, TypeError):
            self._excludes = False
            self._system.pipe_file(path, content)
        except _errors() as error:
            if _is_refusal(error):
                raise ExistsError(f"{path} is there already") from error
            raise
        if self._excludes is None:
            self._excludes = self._refuses_again(path, content)
        return self._excludes

    def _refuses_again(self, path: str, content: bytes) -> bool:
        """True where what was just made is not made again: some file systems take `mode` and do not heed it."""
        try:
            self._system.pipe_file(path, content, mode="create")
        except _errors() as error:
            return _is_refusal(error)  # of another error it is not known
        return False

    @_converted
    def put(self, name: str, source: Path) -> None:
        """Make or replace an object by a file's content. Raises `StoreError` where it has not the file's size afterwards."""
        self._make_folder(name)
        self._system.put_file(str(source), self._path(name))
        size, expected = self.size(name), source.stat().st_size
        if size != expected:
            raise StoreError(f"{self._path(name)} has {size} bytes after {expected} were sent")

    @_converted
    def get(self, name: str, target: Path) -> None:
        """Write an object's content to a file. Raises `MissingError`."""
        with self._asked_twice(name):
            self._system.get_file(self._path(name), str(target))
        if not target.is_file():
            raise MissingError(self._path(name))

    @_converted
    def size(self, name: str) -> int:
        """Bytes of an object. Raises `MissingError`."""
        self._system.invalidate_cache()
        return int(self._system.info(self._path(name))["size"])

    @_converted
    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    @_converted
    def names(self, folder: str = "") -> list[str]:
        """Names of all objects below a folder."""
        self._system.invalidate_cache()
        place = self._path(folder).rstrip("/")
        start = len(self._root) + 1
        try:
            found = self._system.find(place)
        except FileNotFoundError:
            return []
        return sorted(str(path)[start:] for path in found)

    def _make_folder(self, name: str) -> None:
        """Where folders are more than the beginning of a name."""
        folder = self._path(name).rpartition("/")[0]
        if _has_folders(self._system):
            self._system.makedirs(folder, exist_ok=True)


def _protocols(system: Any) -> tuple[str, ...]:
    names = system.protocol
    return (names,) if isinstance(names, str) else tuple(names)


def _is_local(system: Any) -> bool:
    return "file" in _protocols(system)


def _has_folders(system: Any) -> bool:
    return not {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory", "oci", "oss"} & set(_protocols(system))


def _is_refusal(error: Exception) -> bool:
    """True for an object store's answer to a conditional write of what is there."""
    if isinstance(error, FileExistsError):
        return True
    for one in (error, error.__cause__):
        if any(str(getattr(one, name, "")) in _REFUSALS for name in ("status", "status_code", "code")):
            return True
    return _REFUSED.search(f"{error} {error.__cause__}") is not None


def open_store(url: str) -> Store:
    """The store of a URL. Raises `MissingExtra` where what it needs is not installed, and `UsageError` where it cannot be one."""
    try:
        import fsspec
    except ImportError:
        raise MissingExtra("fsspec is not installed", "remote") from None
    try:
        system, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:  # fsspec names the package
        raise UsageError(f"{url}: {error}") from None
    except _errors() as error:
        raise UsageError(f"{url} is no place for a run: {error}") from None
    return Store(system, root, url)
