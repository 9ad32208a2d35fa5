"""Files and run directories that are named on a command line: what goes wrong with them is an error of usage."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from detrain.errors import MissingExtra, UsageError

_Words = ParamSpec("_Words")
_Result = TypeVar("_Result")
_Written = TypeVar("_Written")
#: How many runs are named to whoever has named none.
_MOST_NAMED = 5
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
#: What the extra `plan` brings.
_PLAN = ("numba", "scipy", "matplotlib", "yaml")


class RunFolder(click.Path):
    """The directory of a run or a job. Where there is none, the runs that are there are named."""

    def __init__(self) -> None:
        """One that exists."""
        super().__init__(exists=True, file_okay=False, path_type=Path)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """See click."""
        from detrain.store import listing

        path = Path(value)
        if not path.is_dir():
            self.fail(f"there is no folder {path}{_runs_below(Path())}", param, ctx)
        if not listing.is_run(path):
            self.fail(f"{path} is no run directory{_runs_below(path) or _runs_below(Path())}", param, ctx)
        return path

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        """See click."""
        named = _runs_below(Path()).removeprefix("; ")
        return f"Which of the {named}" if named else "There is no run here"


class _RunArgument(click.Argument):
    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002 - click's signature
        """See click: without the brackets of the usage line."""
        return "'DIR'"


def _or_the_only_run(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path:
    from detrain.store import listing

    if value is not None:
        return value
    runs = listing.find_runs(Path())
    if len(runs) != 1:
        raise click.MissingParameter(ctx=ctx, param=param)
    return runs[0]


#: The argument of a command that is about one run: where none is named, the only one in the working folder or in its `.detrain`.
run_argument = click.argument(
    "folder", metavar="[DIR]", type=RunFolder(), required=False, callback=_or_the_only_run, cls=_RunArgument
)


def check_runs_folder(folder: Path) -> None:
    """Raises `UsageError` for a folder of runs that is not there."""
    if folder.is_dir():
        return
    where = ""
    if not folder.is_absolute():
        where = f" in {Path.cwd()}: runs are in the folder `.detrain` of where `detrain run` was started, or in its --ckpt-dir"
    raise UsageError(f"there is no folder {folder}{where}")


def _last_trained_s(run: Path) -> float:
    """When a run has trained last, in seconds since 1970: a proof or a report writes into its directory, too."""
    for ledger in (run / "ledger", run / "rank_0" / "ledger", run):
        with contextlib.suppress(FileNotFoundError):
            return ledger.stat().st_mtime
    return 0.0


def _runs_below(folder: Path) -> str:
    """What to add to a message: the runs in a folder or in its `.detrain`, the latest first; "" if there is none."""
    from detrain.store import listing

    runs = sorted(listing.find_runs(folder), key=lambda path: -_last_trained_s(path))
    named = ", ".join(map(str, runs[:_MOST_NAMED])) + (", …" if len(runs) > _MOST_NAMED else "")
    return f"; {'runs' if len(runs) > 1 else 'the run'} here: {named}" if runs else ""


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
