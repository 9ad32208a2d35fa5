"""Options of the commands from a file: `detrain.toml`, or `[tool.detrain]` in `pyproject.toml`.

```toml
[run]                            # of a command, by the names of its options
every = "5epochs"

[scripts."experiments/*.py"]     # of `detrain run` for some scripts, by their paths from the file's folder
memory-budget = "6GiB"
```

An option on the command line goes before one in the environment, that before one in the file, and the file before the default: click does
so once it has the file's table (`Context.default_map`).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from detrain.errors import UsageError

#: Another file, or "" for none.
VARIABLE = "DETRAIN_CONFIG"
OWN, SHARED = "detrain.toml", "pyproject.toml"
SCRIPTS = "scripts"
#: What a command line says once cannot stand for all of them: a run that always starts over never resumes.
_ONCE = {"fresh", "from_", "module", "version", "help"}


@dataclass(frozen=True)
class Found:
    """A value, and the table that has it."""

    value: object
    table: str


class File:
    """A file of settings. Raises `UsageError` where it says what no command knows."""

    def __init__(self, path: Path, prefix: str, tables: Mapping[str, Any]) -> None:
        """`prefix` stands before the names of tables: "tool.detrain."."""
        self.path, self._prefix, self._tables = path, prefix, tables

    def check(self, commands: list[str]) -> None:
        """Every table is of a command, or of scripts."""
        for name, table in self._tables.items():
            if name not in (*commands, SCRIPTS):
                if not isinstance(table, dict):
                    raise self._error(
                        "", f"{name} is in no command's table; an option stands in one, as [{self._prefix}run]"
                    )
                raise self._error("", f"there is no command {name}{_nearest(name, [*commands, SCRIPTS])}")
        for pattern, table in self._scripts.items():
            if not isinstance(table, dict):
                raise self._error(f"{SCRIPTS}", f"`{pattern}` is a table of options")

    def of_command(self, command: click.Command, name: str) -> dict[str, Any]:
        """The defaults of a command or of all commands of a group, as click takes them."""
        return self._values(self._tables.get(name, {}), command, name)

    def of_script(self, command: click.Command, script: str) -> dict[str, Found]:
        """What stands for a script, the last table that matches first of all."""
        found: dict[str, Found] = {}
        for pattern, table in self._scripts.items():
            if self._matches(pattern, script):
                name = f'{SCRIPTS}."{pattern}"'
                found.update({key: Found(value, name) for key, value in self._values(table, command, name).items()})
        return found

    def where(self, table: str) -> str:
        """A table, as a user finds it."""
        return f"{_shown(self.path)} [{self._prefix}{table}]"

    @cached_property
    def _scripts(self) -> dict[str, Any]:
        found = self._tables.get(SCRIPTS, {})
        if not isinstance(found, dict):
            raise self._error("", f"{SCRIPTS} is a table of scripts")
        return found

    def _matches(self, pattern: str, script: str) -> bool:
        """A script's path from the file's folder, or `-m MODULE`."""
        if script.startswith("-m "):
            return fnmatch.fnmatchcase(script, pattern)
        path = os.path.relpath(os.path.realpath(script), os.path.realpath(self.path.parent))
        return fnmatch.fnmatchcase(path, os.path.normpath(pattern))

    def _values(self, table: object, command: click.Command, name: str) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self._error("", f"{name} is a table")
        if isinstance(command, click.Group):
            known = list(command.commands)
            for key in table:
                if key not in known:
                    raise self._error(name, f"there is no command {key}{_nearest(key, known)}")
            return {key: self._values(value, command.commands[key], f"{name}.{key}") for key, value in table.items()}
        options = {
            option.removeprefix("--"): one
            for one in command.params
            if isinstance(one, click.Option) and one.name not in _ONCE
            for option in one.opts
            if option.startswith("--")
        }
        values: dict[str, Any] = {}
        for key, value in table.items():
            option = options.get(key.replace("_", "-"))
            if option is None or option.name is None:
                raise self._error(name, f"there is no option {key}{_nearest(key, list(options))}")
            values[option.name] = self._value(option, value)
        return values

    def _value(self, option: click.Option, value: object) -> object:
        """Paths are from the file's folder; addresses of remote stores are none."""
        if isinstance(option.type, click.Path) and isinstance(value, str) and value and "://" not in value:
            return os.path.join(self.path.parent, os.path.expanduser(value))
        return value

    def _error(self, table: str, text: str) -> UsageError:
        where = self.where(table) if table else _shown(self.path)
        return UsageError(f"{where}: {text}")


def _nearest(word: str, words: list[str]) -> str:
    import difflib  # most files have no wrong names

    near = difflib.get_close_matches(word.replace("_", "-"), words, 1)
    return f"; did you mean {near[0]}?" if near else f" (there are: {', '.join(sorted(words))})"


def _shown(path: Path) -> str:
    """From the working directory, where that is shorter."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def find() -> File | None:
    """The settings that hold here: of the working directory, or of the nearest folder above it, up to the repository's root.

    Raises `UsageError` for a file that cannot be read.
    """
    named = os.environ.get(VARIABLE)
    if named == "":
        return None
    if named is not None:
        path = Path(named).absolute()
        if not path.is_file():
            raise UsageError(f"{VARIABLE}: there is no file {named}")
        return _read(path, is_shared=path.name == SHARED)
    folder = os.getcwd()
    while True:
        for name in (OWN, SHARED):
            path = Path(folder, name)
            if os.path.isfile(path) and (found := _read(path, is_shared=name == SHARED)) is not None:
                return found
        above = os.path.dirname(folder)
        if above == folder or os.path.exists(os.path.join(folder, ".git")):
            return None
        folder = above


def _read(path: Path, *, is_shared: bool) -> File | None:
    """None for a `pyproject.toml` that does not speak of detrain."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if is_shared and b"detrain" not in content:
        return None
    import tomllib  # most runs have no settings

    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{_shown(path)}: {error}") from None
    if not is_shared:
        return File(path, "", tables)
    own = tables.get("tool", {}).get("detrain")
    if own is None:
        return None
    if not isinstance(own, dict):
        raise UsageError(f"{_shown(path)}: tool.detrain is a table")
    return File(path, "tool.detrain.", own)
