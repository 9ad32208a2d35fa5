"""`detrain instrument`."""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path

import click

from detrain.errors import UsageError
from detrain.loops import instfile
from detrain.store import naming


@click.command()
@click.option("--diff", "as_diff", is_flag=True, help="Print a unified diff instead of the whole source.")
@click.option(
    "--ckpt-dir",
    envvar="CKPT_DIR",
    metavar="DIR",
    help="Run directory with the inst.info that names the loops (default .detrain/<script>).",
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def instrument(as_diff: bool, ckpt_dir: str | None, script: Path) -> int:
    """Print a script's source with the hooks that detrain inserts.

    With an inst.info, the training loops contain `record_epoch` and `record_batch`. Without one, every loop contains an inactive
    `record_loop`, as in a first attempt.
    """  # fmt: skip
    from detrain.loops.sites import find_loops
    from detrain.rewrite import transform
    from detrain.rewrite.loads import Load

    source = script.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise UsageError(f"{script} is not Python: {error}") from None
    path = Path(ckpt_dir or _directory_of(script)) / "inst.info"
    info = instfile.InstInfo()
    if path.exists():
        info = instfile.read(path, script.resolve().parent)
        instfile.check_lines(path, info)
    parts, load = info.parts().get(str(script.resolve()), {}), info.load_of(str(script.resolve()))
    instrumented = transform.instrument(
        source,
        parts or {site.line: "" for site in find_loops(tree) if not site.is_in_class},
        Load(*load) if load is not None else None,
    )
    if as_diff:
        lines = difflib.unified_diff(
            source.splitlines(keepends=True),
            instrumented.splitlines(keepends=True),
            str(script),
            f"{script} (instrumented)",
        )
        instrumented = "".join(lines)
    sys.stdout.write(instrumented)
    return 0


def _directory_of(script: Path) -> str:
    """Where the script's loops are written down: where it has been traced, else where it was run last."""
    traced = naming.default_directory(str(script), None)
    return traced if (Path(traced) / "inst.info").exists() else naming.latest_directory(str(script))
