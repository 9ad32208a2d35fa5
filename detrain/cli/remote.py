"""`detrain remote`: a run to a store and back, by hand."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.group(short_help="Copy runs to remote storage and back.")
def remote() -> None:
    """Copy runs to remote storage and back (`detrain run --remote URL` does so by itself)."""


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
