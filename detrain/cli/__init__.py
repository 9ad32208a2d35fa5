"""The commands. They know everything and hold no logic: each parses, calls, prints."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from detrain.errors import DetrainError, UsageError
from detrain.package import __version__

#: Command to the module that holds it; loaded when it is asked for, so that `run` waits for none of the others.
MODULES = {
    "run": "run",
    "trace": "trace",
    "instrument": "instrument",
    "ls": "look",
    "inspect": "look",
    "diff": "look",
    "verify": "prove",
    "doctor": "look",
    "report": "look",
    "export": "look",
    "remat": "remat",
    "pipeline": "pipeline",
}


class _Commands(click.Group):
    """Finds commands by `MODULES`."""

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


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="detrain")
def cli() -> None:
    """Run training scripts so that they can be killed at any moment and resumed with exactly the same bits."""


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
        print(f"detrain: error: {error.format_message()}", file=sys.stderr)
        return UsageError.exit_status
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.Abort:
        return 130
    except DetrainError as error:
        print(f"detrain: error: {error}", file=sys.stderr)
        return error.exit_status
