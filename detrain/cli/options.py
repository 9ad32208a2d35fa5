"""Options that `--help` prints in groups, and commands that end their own options at a script's name."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from detrain.cli import settings

#: Under this key a context keeps the command line: detrain's options, and what follows.
GIVEN = "detrain.given"
#: Under this key, for `detrain config`: the table of the file that each option's value is from.
TABLES = "detrain.tables"


def source_of(ctx: click.Context, option: click.Parameter) -> str:
    """Where an option's value is from: a variable of the environment, or a file and its table; "" for the command line and the default."""
    assert option.name is not None
    source = ctx.get_parameter_source(option.name)
    if source == ParameterSource.ENVIRONMENT:
        named = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
        own = f"{ctx.auto_envvar_prefix}_{option.name.upper()}"
        return next((name for name in named if os.environ.get(name)), own)
    file = ctx.find_object(settings.File)
    if source == ParameterSource.DEFAULT_MAP and file is not None:
        # "detrain remat plan": the table of `plan` within that of `remat`.
        table = ".".join(ctx.command_path.split()[1:])
        return str(ctx.meta.get(TABLES, {}).get(option.name, file.where(table)))
    return ""


class Option(click.Option):
    """An option with a heading in `--help`."""

    def __init__(self, *words: Any, group: str, **more: Any) -> None:
        """`group`: the heading."""
        super().__init__(*words, **more)
        self.group = group


class ScriptCommand(click.Command):
    """Ends detrain's own options at `-m MODULE`, as python does; at a script click does so itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with what follows `-m MODULE` left to the module, and with the settings of the script as defaults."""
        position, given = 0, list(args)
        while position < len(args):
            word = args[position]
            if word == "-m":
                args[position + 2 : position + 2] = ["--"]
                break
            if not word.startswith("-") or word == "--":
                break
            takes_value = any(
                word in option.opts for option in self.params if isinstance(option, click.Option) and not option.is_flag
            )
            position += 2 if takes_value else 1
        ctx.meta[GIVEN] = given[:position], given[position:]
        self._take_settings(ctx, given[position:])
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By their groups, in the order in which they are declared."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                heading = parameter.group if isinstance(parameter, Option) else "Options"
                groups.setdefault(heading, []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def _take_settings(self, ctx: click.Context, words: list[str]) -> None:
        """Of the script, in front of those of the command."""
        file = ctx.find_object(settings.File)
        words = words[words[:1] == ["--"] :]
        if file is None or self.name != "run" or not words:
            return
        found = file.of_script(self, " ".join(words[:2]) if words[0] == "-m" else words[0])
        of_command = dict(ctx.default_map or {})
        ctx.meta[TABLES] = {
            **dict.fromkeys(of_command, file.where("run")),
            **{key: file.where(one.table) for key, one in found.items()},
        }
        ctx.default_map = {**of_command, **{key: one.value for key, one in found.items()}}
