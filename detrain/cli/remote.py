"""`detrain remote`: a run to a store and back, by hand."""

from __future__ import annotations

import os
from pathlib import Path

import click

from detrain.cli.look import as_json_option, list_remote


@click.group(short_help="Copy runs to remote storage and back.")
def remote() -> None:
    """Copy runs to remote storage and back (`detrain run --remote URL` does so by itself)."""


@remote.command("ls")
@click.argument("url")
@as_json_option
def list_runs(url: str, as_json: bool) -> int:
    """List the run at URL, or the runs below it, and their checkpoints, as `detrain ls URL` does."""
    return list_remote(url, as_json=as_json)


@remote.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("url")
def push(directory: Path, url: str) -> int:
    """Publish the run in DIRECTORY at URL, from where `detrain run --remote URL` goes on with it."""
    from detrain.remote import byhand

    manifest = byhand.push(Path(os.path.abspath(directory)), url.rstrip("/"))
    click.echo(f"{url}: attempt {manifest.attempts}, checkpoints: {', '.join(sorted(manifest.checkpoints)) or 'none'}")
    return 0


@remote.command()
@click.argument("url")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def pull(url: str, directory: Path) -> int:
    """Fetch the run at URL into DIRECTORY, to look at it."""
    from detrain.remote import byhand

    manifest = byhand.pull(url.rstrip("/"), Path(os.path.abspath(directory)))
    click.echo(
        f"{directory}: attempt {manifest.attempts}, checkpoints: {', '.join(sorted(manifest.checkpoints)) or 'none'}"
    )
    return 0
