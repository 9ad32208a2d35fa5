"""`detrain config`: the options that hold here, and where each is from; `detrain completion`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click
from click.shell_completion import get_completion_class

from detrain.cli import settings
from detrain.cli.look import as_json_option
from detrain.cli.options import source_of
from detrain.cli.run import run, words_argument


@dataclass(frozen=True)
class _Setting:
    """An option of `detrain run`, what it is here, and who says so."""

    option: str
    value: object
    source: str


@click.command(
    short_help="Print the options that hold here, and where each is from.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("-m", "module", metavar="MODULE", help="Of a module, as in `detrain run -m MODULE`.")
@as_json_option
@words_argument
@click.pass_context
def config(ctx: click.Context, module: str | None, as_json: bool, words: tuple[str, ...]) -> int:
    """Print the options of `detrain run` that hold here, and where each is from.

    With a script, also what the file says for it. A flag goes before the environment (DETRAIN_RUN_KEEP and so on), that before a file, that
    before the default. The file is the `detrain.toml` of this folder or the nearest above, or, where that folder has none, its
    `pyproject.toml`.

    \b
    detrain.toml               pyproject.toml                         of
    [run]                      [tool.detrain.run]                     every script
    [scripts."train*.py"]      [tool.detrain.scripts."train*.py"]     some, by their paths from the file's folder
    """  # noqa: D301 - click's mark for a paragraph that is kept as it is
    parent = ctx.parent
    assert parent is not None
    file = parent.find_object(settings.File)
    if file is not None:
        parent.default_map = {"run": file.of_command(run, "run")}
    script = ["-m", module, *words] if module is not None else list(words)
    of_run = run.make_context("run", script, parent=parent)
    found = [
        _Setting(max(one.opts, key=len), of_run.params[one.name], source_of(of_run, one) or "default")
        for one in run.params
        if isinstance(one, click.Option) and one.name is not None and one.name not in ("module", "help")
    ]
    where = None if file is None else str(file.path)
    if as_json:
        click.echo(json.dumps({"file": where, "options": [asdict(one) for one in found]}, indent=1))
        return 0
    click.echo(where or f"no {settings.OWN}, and no [tool.detrain] in a {settings.SHARED}")
    values = ["" if one.value in (None, "") else str(one.value) for one in found]
    widths = max(len(one.option) for one in found), max(map(len, values))
    for one, value in zip(found, values, strict=True):
        click.echo(f"  {one.option:<{widths[0]}}  {value:<{widths[1]}}  {one.source}".rstrip())
    return 0


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print what makes a shell complete commands, options and files.

    \b
    bash:  eval "$(detrain completion bash)"        in ~/.bashrc
    zsh:   eval "$(detrain completion zsh)"         in ~/.zshrc
    fish:  detrain completion fish | source         in ~/.config/fish/config.fish
    """  # noqa: D301 - click's mark for a paragraph that is kept as it is
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(ctx.find_root().command, {}, "detrain", "_DETRAIN_COMPLETE").source())
    return 0
