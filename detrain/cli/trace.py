"""`detrain trace`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import click

from detrain.cli.run import ScriptCommand, request_of


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "--vary",
    metavar="ARGS",
    help="Arguments of round two, with data of another size; they replace those of the same name.",
)
@click.option(
    "--diff-size", type=int, envvar="DIFF_SIZE", metavar="N", help="By how many elements the data of round two differs."
)
@click.option("--ckpt-dir", envvar="CKPT_DIR", metavar="DIR", help="Run directory (default .detrain/<script name>).")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Base seed, as of detrain run."
)
@click.option("-m", "module", metavar="MODULE", help="Trace a module, as python -m runs it; its arguments follow.")
@click.argument("words", nargs=-1, metavar="[SCRIPT] [ARGS]...", type=click.UNPROCESSED)
def trace(
    vary: str | None, diff_size: int | None, module: str | None, words: tuple[str, ...], **options: Any
) -> Callable[[], int]:
    """Find a script's training loop and its data loader, and write both to inst.info.

    Round one runs the script until its loops are known. Round two runs it on data of another size, given by --vary, or by the
    arguments of a second `detrain trace --diff-size N`. Output of the script goes to trace-1.log and trace-2.log in the run directory.
    """  # fmt: skip
    request = request_of(module, words, {**options, "nondeterministic": False})
    varied = None if vary is None else vary_arguments(request["arguments"], shlex.split(vary))

    def start() -> int:
        from detrain.launch.rounds import Rounds

        return Rounds(request).trace(varied, diff_size)

    return start


def vary_arguments(arguments: list[str], varied: list[str]) -> list[str]:
    """The arguments of round two: options in `varied` replace those of the same name, anything else of `varied` is added behind.

    Where `varied` begins with no option, it replaces as many positional arguments, from the first on.
    """
    result = list(arguments)
    for name, value in _split(varied):
        if name:
            place = next((n for n, word in enumerate(result) if word == name or word.startswith(f"{name}=")), None)
            if place is None:
                result += [name, *value]
            elif result[place] != name:
                result[place : place + 1] = [f"{name}={' '.join(value)}"]
            else:
                end = place + 1
                while end < len(result) and not _is_option(result[end]):
                    end += 1
                result[place + 1 : end] = value if value else []
        else:
            positions = [
                n for n, word in enumerate(result) if not _is_option(word) and (n == 0 or not _is_option(result[n - 1]))
            ]
            for number, word in enumerate(value):
                if number < len(positions):
                    result[positions[number]] = word
                else:
                    result.append(word)
    return result


def _split(words: list[str]) -> list[tuple[str, list[str]]]:
    """Options with their values; words before the first option under an empty name."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if _is_option(word):
            name, sign, value = word.partition("=")
            found.append((name, [value] if sign else []))
        elif found:
            found[-1][1].append(word)
        else:
            found.append(("", [word]))
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit()
