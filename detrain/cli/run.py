"""`detrain run`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from detrain.errors import UsageError
from detrain.session import policy


class ScriptCommand(click.Command):
    """Ends detrain's own options at `-m MODULE`, as python does; at a script click does so itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with what follows `-m MODULE` left to the module."""
        position = 0
        while position < len(args):
            word = args[position]
            if word == "-m":
                args[position + 2 : position + 2] = ["--"]
                break
            if not word.startswith("-") or word == "--":
                break
            takes_value = any(
                word in option.opts for option in self.params if isinstance(option, click.Option) and not option.is_flag
            )
            position += 2 if takes_value else 1
        return super().parse_args(ctx, args)


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("--ckpt-dir", envvar="CKPT_DIR", metavar="DIR", help="Run directory (default .detrain/<script name>).")
@click.option(
    "--every",
    envvar="DETRAIN_EVERY",
    default="auto",
    show_default=True,
    metavar="WHEN",
    help="When to checkpoint: epoch, 5epochs, 100batches, 30s, auto (1% of the time), 2%, never.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Checkpoints to keep, the newest N.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Base seed for every generator that the script does not seed itself.",
)
@click.option("--fresh", is_flag=True, help="Start over; the old run directory is moved aside, not deleted.")
@click.option("--from", "from_", metavar="CKPT", help="Resume from this checkpoint rather than the latest.")
@click.option("--nondeterministic", is_flag=True, help="Checkpoint and resume only; leave kernels as they are.")
@click.option(
    "--trust-changes",
    is_flag=True,
    help="Go on although the script, its arguments or the environment changed since the checkpoint.",
)
@click.option(
    "--keep-trained",
    is_flag=True,
    help="With --trust-changes and other arguments: what the training has changed keeps the checkpoint's value.",
)
@click.option("--no-pickle", is_flag=True, help="Refuse to resume what only unpickling could make again.")
@click.option("--leave-files", is_flag=True, help="Leave the script's own files as a killed attempt left them.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does; its arguments follow.")
@click.argument("words", nargs=-1, metavar="[SCRIPT] [ARGS]...", type=click.UNPROCESSED)
def run(module: str | None, words: tuple[str, ...], from_: str | None, **options: Any) -> Callable[[], int]:
    """Run a training script, or resume it from its latest checkpoint."""  # fmt: skip
    policy.parse(options["every"])
    request = request_of(module, words, {**options, "from": from_})

    def start() -> int:
        from detrain.launch import environment

        if os.path.isdir(request["ckpt_dir"]):
            from detrain.rerun import probing

            probing.prepare(request)
        environment.replace_process(request)

    return start


def request_of(module: str | None, words: tuple[str, ...], options: dict[str, Any]) -> dict[str, Any]:
    """What is to be run, where, and how; raises `UsageError` where that is nothing."""
    if module is None and not words:
        raise UsageError("which script? detrain run [OPTIONS] SCRIPT [ARGS]... (detrain run --help)")
    script = "" if module is not None else words[0]
    arguments = list(words if module is not None else words[1:])
    if module is not None:
        _check_module(module)
    elif not os.path.exists(script):
        raise UsageError(f"there is no script {script}")
    name = Path(script).resolve().stem if module is None else module
    if name == "__main__":
        name = Path(script).resolve().parent.name
    directory = options.pop("ckpt_dir") or default_directory(name)
    return {
        "script": script, "module": module or "", "arguments": arguments, "name": name, "ckpt_dir": directory, **options,
    }  # fmt: skip


def default_directory(name: str) -> str:
    """The run directory of a script of this name; MODEL_NAME tells the runs of one script apart, as in the prototype."""
    return os.path.join(".detrain", os.environ.get("MODEL_NAME") or name)


def _check_module(module: str) -> None:
    import sys

    sys.path.insert(0, os.getcwd())
    try:
        parent = module.partition(".")[0]
        found = importlib.util.find_spec(parent)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.pop(0)
    if found is None:
        raise UsageError(f"there is no module {module}")
