"""`detrain replay`: epochs again, with what the script did not print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from detrain.cli.files import run_argument
from detrain.cli.look import as_json_option
from detrain.errors import UsageError


@click.command()
@run_argument
@click.option("--epochs", metavar="RANGES", help="Epochs to replay, from 0: 3, 3-5, 4- (to the last) or 2,5-7.")
@click.option(
    "--batches", metavar="RANGES", help="Batches to replay in place of epochs, from 1 and over the whole run."
)
@click.option(
    "--with", "patches", metavar="[NAME=]FILE", multiple=True,
    help="Run FILE in place of the script; or of the run's module NAME, as --with model.py=other.py. May be repeated.",
)  # fmt: skip
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    help="Parts to replay in parallel (default: as many as the cores allow).",
)
@click.option(
    "--whole",
    is_flag=True,
    help="Replay each range in one process, so that what your lines gather goes over all its epochs.",
)
@click.option(
    "-o", "--output", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
    help="Write what is printed to FOLDER/epoch_3.out (standard error: .err) and so on.",
)  # fmt: skip
@as_json_option
def replay(
    folder: Path, epochs: str | None, batches: str | None, patches: tuple[str, ...], jobs: int | None, whole: bool,
    output: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Repeat epochs of a run with lines added to its script.

    What the script prints in these epochs is shown, and the run's ledger proves that the training is the same. Nothing is written to DIR,
    and whatever the script writes is discarded. Exit status: 0 the same training, 1 another one, 2 it could not be done.
    """
    from detrain.messages import say
    from detrain.proof import replay as replayer

    if (epochs is None) == (batches is None):
        raise UsageError("give either --epochs or --batches")
    wanted = replayer.Wanted("batches" if epochs is None else "epochs", batches or epochs or "", patches, whole)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)

    def on_done(row: dict[str, Any]) -> None:
        for shown in row["shown"]:
            if output is not None:
                _write(output, row["unit"], shown)
            elif not as_json:
                _print(shown)
        for line in replayer.format_row(row):
            say(line)

    def on_begin(rows: list[dict[str, Any]]) -> None:
        for line in replayer.format_begin(rows):
            say(line)

    result = replayer.replay(folder, wanted, jobs, on_done, on_begin)
    if as_json:
        click.echo(json.dumps(result, indent=1))
    for line in replayer.format_summary(result):
        say(line)
    return replayer.status_of(result)


def _write(folder: Path, unit: str, shown: dict[str, Any]) -> None:
    name = f"{'epoch' if unit == 'epochs' else 'batch'}_{shown['number']}"
    (folder / f"{name}.out").write_bytes(shown["out"].encode("utf-8", "surrogateescape"))
    error = folder / f"{name}.err"
    error.unlink(missing_ok=True)
    if shown["err"]:
        error.write_bytes(shown["err"].encode("utf-8", "surrogateescape"))


def _print(shown: dict[str, Any]) -> None:
    for stream, text in ((sys.stdout, shown["out"]), (sys.stderr, shown["err"])):
        stream.flush()
        stream.buffer.write(text.encode("utf-8", "surrogateescape"))
        stream.flush()
