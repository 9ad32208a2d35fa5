"""`detrain verify`: doing a run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from detrain.cli.look import as_json_option


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--jobs", type=click.IntRange(1), metavar="N", help="Segments at a time (default: what the cores allow).")
@as_json_option
def verify(folder: Path, jobs: int | None, as_json: bool) -> int:
    """Do a finished or broken run again, and prove it against its checkpoints and its ledger; exit 0 if all bits are the same.

    The script runs where it can change nothing: what it writes is thrown away, and there is no network.
    """
    from detrain.messages import say
    from detrain.proof import verify as verifier

    def tell(row: dict[str, Any]) -> None:
        say(f"segment {row['number']}, from {row['start']} to {row['until']}: {row['result']} ({row['seconds']:.1f} s)")

    result = verifier.verify(folder, jobs, tell)
    click.echo(json.dumps(result, indent=1) if as_json else verifier.format_result(result))
    try:
        verifier.keep(folder, result)
    except OSError as error:
        say(f"the result cannot be kept for `detrain report`: {error}")
    return 0 if result["same"] else 1
