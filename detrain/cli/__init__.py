"""The commands. They know everything and hold no logic: each parses, calls, prints."""

from __future__ import annotations

import sys
from typing import Any

import click

import detrain
from detrain.cli import instrument, look, run, trace
from detrain.errors import DetrainError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(detrain.__version__, prog_name="detrain")
def cli() -> None:
    """Training runs that can be killed at any moment and come out bit for bit the same."""


for command in (run.run, trace.trace, look.ls, look.inspect, look.diff, instrument.instrument):
    cli.add_command(command)


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
