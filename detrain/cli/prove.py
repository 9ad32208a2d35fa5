"""`detrain verify`: doing a run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from detrain.cli.files import run_argument
from detrain.cli.look import as_json_option


@click.command(short_help="Repeat a run in a sandbox, and prove that its bits are the same.")
@run_argument
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Segments to run in parallel (default: as many as the cores allow).",
)
@as_json_option
def verify(folder: Path, jobs: int | None, as_json: bool) -> int:
    """Repeat a run in a sandbox and compare it with what it recorded.

    A finished or interrupted run is repeated and compared with its checkpoints and its ledger. The script runs without network, and
    everything that it writes is discarded. Exit status: 0 if all bits are the same, 1 if not.
    """
    from detrain.messages import counted, say
    from detrain.proof import verify as verifier

    def begin(num_segments: int, at_a_time: int) -> None:
        say(f"repeating {counted(num_segments, 'segment')}, {at_a_time} at a time")

    def tell(row: dict[str, Any]) -> None:
        say(f"segment {row['number']}, from {row['start']} to {row['until']}: {row['result']} ({row['seconds']:.1f} s)")

    result = verifier.verify(folder, jobs, tell, begin)
    click.echo(json.dumps(result, indent=1) if as_json else verifier.format_result(result))
    try:
        verifier.keep(folder, result)
    except OSError as error:
        say(f"the result cannot be stored for `detrain report`: {error}")
    return 0 if result["same"] else 1
