"""`detrain ls`, `detrain inspect`, `detrain diff`, `detrain doctor`: looking at what is on disk."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click

from detrain.cli.files import check_runs_folder, run_argument
from detrain.cli.remote_runs import is_url
from detrain.errors import UsageError

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")


@click.command()
@click.argument("folder", default=".detrain", type=click.Path())
@as_json_option
def ls(folder: str, as_json: bool) -> int:
    """List runs and their checkpoints.

    FOLDER is a run directory, a folder of run directories (default .detrain), or the URL of either in remote storage. Of a job of several
    ranks the cuts are listed.
    """
    if is_url(folder):
        return list_remote(folder, as_json=as_json)
    return _list_local(Path(folder), as_json=as_json)


def list_remote(url: str, *, as_json: bool) -> int:
    """Print what is at a URL in remote storage. Exit status: 1 if something of it is damaged, 0 if not."""
    from detrain.remote import listing

    runs = listing.describe_all(url)
    click.echo(
        json.dumps(runs, indent=1) if as_json else "\n".join(map(listing.format_run, runs)) or f"no runs in {url}"
    )
    return int(any(run["damage"] for run in runs))


def _list_local(folder: Path, *, as_json: bool) -> int:
    from detrain.store import listing

    check_runs_folder(folder)
    runs = [listing.describe(path) for path in listing.find_runs(folder)]
    if as_json:
        click.echo(json.dumps(runs, indent=1))
        return 0
    for run in runs:
        click.echo(listing.format_run(run))
    if not runs:
        click.echo(f"no runs in {folder}")
    return 0


@click.command()
@click.argument("checkpoint", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--leaf", metavar="PATH", help="Print the value of this leaf, or the leaves below it.")
@as_json_option
def inspect(checkpoint: Path, leaf: str | None, as_json: bool) -> int:
    """List the contents of a checkpoint: leaves, sizes, digests.

    Every digest is checked. Of a cut of several ranks (JOB/cuts/NAME.json) its parts are listed.
    """
    from detrain.store import job, listing

    if checkpoint.suffix == ".json":
        if leaf is not None:
            raise UsageError("--leaf is of one rank's checkpoint; `detrain inspect` of the cut names them")
        cut = listing.describe_cut(checkpoint.parent.parent, job.read_manifest(checkpoint))
        click.echo(json.dumps(cut, indent=1) if as_json else listing.format_cut(cut))
        return 0
    if leaf is None:
        found = listing.describe_checkpoint(checkpoint)
        click.echo(json.dumps(found, indent=1) if as_json else listing.format_checkpoint(found))
        return 0
    leaves = listing.read_leaf(checkpoint, leaf)
    if not leaves:
        raise UsageError(f"{checkpoint.name} has no leaf {leaf}; `detrain inspect {checkpoint}` lists them")
    click.echo(json.dumps(leaves, indent=1) if as_json else "\n".join(map(listing.format_leaf, leaves)))
    return 0


@click.command(short_help="Compare two runs or two checkpoints, bit by bit.")
@click.argument("a", type=click.Path(exists=True, path_type=Path))
@click.argument("b", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--op",
    "by_operator",
    is_flag=True,
    help="For two runs: repeat the first batch that differs, and name the operator.",
)
@as_json_option
def diff(a: Path, b: Path, by_operator: bool, as_json: bool) -> int:
    """Compare two runs or two checkpoints, bit by bit; two jobs rank by rank.

    Exit status: 0 if all bits are the same, 1 if not.
    """
    from detrain.proof import diff as differ
    from detrain.store import listing

    if by_operator and not (a.is_dir() and b.is_dir()):
        raise UsageError("--op compares two run directories: it repeats their batches")
    if by_operator and (listing.is_job(a) or listing.is_job(b)):
        raise UsageError(
            "--op repeats batches of one process; `detrain diff` without it names the rank, the batch and the leaf"
        )
    result: dict[str, Any] = differ.compare(a, b)
    if not as_json:
        click.echo(differ.format_result(result))
    if by_operator and result["parting"] is not None:
        from detrain.proof import operators

        found = result["operators"] = operators.find(a, b)
        if found is not None and not as_json:
            click.echo(operators.format_result(found))
    if as_json:
        click.echo(json.dumps(result, indent=1))
    return 0 if result["same"] else 1


@click.command(short_help="List what makes a machine or a script non-deterministic.")
@click.argument("script", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--ckpt-dir", envvar="CKPT_DIR", metavar="DIR", help="The script's run directory (default: that of its latest run)."
)
@as_json_option
def doctor(script: Path | None, ckpt_dir: str | None, as_json: bool) -> int:
    """List what makes this machine or a script non-deterministic.

    The worst comes first. Exit status: 1 if something breaks determinism, 0 if not.
    """
    from detrain import doctor as examiner
    from detrain.store import naming

    directory = ckpt_dir
    if directory is None and script is not None:
        directory = naming.latest_directory(str(script))
    found = examiner.examine(script, Path(directory) if directory is not None else None)
    click.echo(json.dumps(examiner.as_json(found), indent=1) if as_json else examiner.format_findings(found))
    return 1 if any(one.level == "breaks" for one in found) else 0


@click.command(short_help="Write a page about a run, or serve it while the run goes on.")
@run_argument
@click.option(
    "-o",
    "target",
    metavar="FILE.html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file (default DIR/report.html).",
)
@click.option("--live", is_flag=True, help="Serve the page on this machine's own address while the run goes on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="With --live: the port (default: a free one)."
)
def report(folder: Path, target: Path | None, live: bool, port: int) -> int:
    """Write an HTML page about a run: losses, attempts, checkpoints, proofs.

    The page loads nothing from the network. With --live it is served until Ctrl-C, to browsers on this machine alone, and drawn again as
    the run goes on.
    """
    from detrain.messages import say
    from detrain.report import page

    if live:
        return _serve(folder, port)
    if target is None:
        target = folder / "report.html"
        page.check_own(target)
    page.write(folder, target)
    say(f"wrote {target}")
    return 0


def _serve(folder: Path, port: int) -> int:
    from detrain.messages import say
    from detrain.report.live import Server

    try:
        server = Server(folder, port)
    except OSError as error:
        raise UsageError(f"port {port} cannot be had: {error}") from None
    say(f"{server.address} shows the run while it goes on; Ctrl-C ends")
    with contextlib.suppress(KeyboardInterrupt):
        server.serve()
    return 0


@click.command(short_help="Write models and optimizers of a checkpoint as plain files.")
@click.argument("checkpoint", type=click.Path(exists=True, path_type=Path))
@click.option(
    "-o",
    "target",
    metavar="OUT",
    required=True,
    type=click.Path(path_type=Path),
    help="FILE.pt, FILE.safetensors, or the name of a folder for a distributed checkpoint (DCP).",
)
def export(checkpoint: Path, target: Path) -> int:
    """Write models, optimizers and schedulers of a checkpoint as state dicts.

    CHECKPOINT is a checkpoint, a cut (JOB/cuts/NAME.json), or the directory of a run or a job, whose latest is taken. Shards of several
    ranks are put together. What goes on from such a file does so without detrain's promise.
    """
    from detrain.export import files
    from detrain.messages import say

    for line in files.export(checkpoint, target):
        say(line)
    say(f"wrote {target}")
    return 0
