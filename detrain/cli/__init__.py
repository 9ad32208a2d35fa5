"""The commands. They know everything and hold no logic: each parses, calls, prints."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from detrain.cli import settings
from detrain.cli.options import source_of
from detrain.errors import DetrainError, UsageError
from detrain.package import __version__

#: Headings, and below each its commands and the modules that hold them; a module is loaded when its command is asked for, so that `run`
#: waits for none of the others.
SECTIONS = {
    "Train": {"run": "run", "config": "config"},
    "Look": {"ls": "look", "top": "top", "inspect": "look", "report": "look", "export": "look", "remote": "remote"},
    "Prove": {"verify": "prove", "replay": "replay", "diff": "look", "doctor": "look"},
    "Find loops": {"trace": "trace", "instrument": "instrument"},
    "Plan": {"remat": "remat", "pipeline": "pipeline"},
    "Shell": {"completion": "config"},
}
MODULES = {name: module for section in SECTIONS.values() for name, module in section.items()}


class _Commands(click.Group):
    """Finds commands by `MODULES`, and gives them what a file of settings says."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """In the order of a run's life."""
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command of a name."""
        if cmd_name not in MODULES:
            return None
        command = getattr(importlib.import_module(f"detrain.cli.{MODULES[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is asked for, with the file's defaults for it."""
        if args and args[0] not in MODULES and os.path.isfile(args[0]) and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {args[0]}: `detrain run {args[0]}` runs a script")
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not ctx.resilient_parsing:
            file = ctx.obj = settings.find()
            if file is not None:
                file.check(list(MODULES))
                ctx.default_map = {name: file.of_command(command, name)}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By what they are for."""
        commands = {name: self.get_command(ctx, name) for name in MODULES}
        widest = max(map(len, commands))
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                texts = [(name, command) for name in names if (command := commands[name]) is not None]
                limit = formatter.width - 6 - widest
                formatter.write_dl([(f"{name:<{widest}}", one.get_short_help_str(limit)) for name, one in texts])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "DETRAIN"})
@click.version_option(__version__, prog_name="detrain")
def cli() -> None:
    """Run training scripts so that they can be killed at any moment and resumed with exactly the same bits."""


def _told(error: click.ClickException) -> str:
    """What is wrong; of a bad value also where it stands, if not on the command line."""
    text = error.format_message()
    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None:
        return text
    source = source_of(error.ctx, error.param)
    return f"{text.rstrip('.')} (from {source})" if source else text


def main() -> int:
    """Parse, run, and turn errors into messages and exit statuses.

    A command that starts a script only returns what is to be done; it is done here, outside click, so that Ctrl-C and `sys.exit`
    mean in the script what they mean without detrain.
    """
    try:
        action: Any = cli.main(standalone_mode=False, prog_name="detrain")
        return action() if callable(action) else int(action or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return UsageError.exit_status
    except click.ClickException as error:
        print(f"detrain: error: {_told(error)}", file=sys.stderr)
        return UsageError.exit_status
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        return 130
    except DetrainError as error:
        print(f"detrain: error: {error}", file=sys.stderr)
        return error.exit_status
