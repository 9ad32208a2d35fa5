"""Files that are named on a command line: what goes wrong with them is an error of usage."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from detrain.errors import MissingExtra, UsageError

_Words = ParamSpec("_Words")
_Result = TypeVar("_Result")
_Written = TypeVar("_Written")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
#: What the extra `plan` brings.
_PLAN = ("numba", "scipy", "matplotlib", "yaml")


def needs_plan(command: Callable[_Words, _Result]) -> Callable[_Words, _Result]:
    """A command that says how to install what it needs and cannot import."""

    @functools.wraps(command)
    def run(*words: _Words.args, **options: _Words.kwargs) -> _Result:
        try:
            return command(*words, **options)
        except ImportError as error:
            if error.name not in _PLAN:
                raise
            raise MissingExtra(f"{error.name} is not installed", "plan") from None

    return run


def read_file(path: Path, read: Callable[[Path], _Result]) -> _Result:
    """What `read` makes of it."""
    try:
        return read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    except ImportError as error:
        raise MissingExtra(f"{error.name} is not installed", "plan") from None


def check_folder(path: Path | None) -> None:
    """What is to be written, if anything: raises `UsageError` before long work where it could not be written after it."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")


def write_file(path: Path, write: Callable[[Path], _Written]) -> _Written:
    """What `write` gives back."""
    try:
        return write(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from None
    except ImportError as error:
        raise MissingExtra(f"{error.name} is not installed", "plan") from None
