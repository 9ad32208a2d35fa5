"""`detrain trace`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import click

from detrain.cli.options import ScriptCommand
from detrain.cli.requests import request_of, start_of_trace
from detrain.cli.run import words_argument
from detrain.errors import UsageError


@click.command(
    short_help="Find a script's training loop and data loader before a run.",
    cls=ScriptCommand,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--vary",
    metavar="ARGS",
    help="Arguments for round two, with data of another size; they replace those of the same name.",
)
@click.option(
    "--diff-size",
    type=int,
    envvar="DIFF_SIZE",
    metavar="N",
    help="By how many elements the size of the data differs in round two.",
)
@click.option("--ckpt-dir", envvar="CKPT_DIR", metavar="DIR", help="Run directory (default .detrain/<script>).")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Base seed, as in detrain run."
)
@click.option("-m", "module", metavar="MODULE", help="Trace a module, like python -m; its arguments follow.")
@words_argument
def trace(
    vary: str | None, diff_size: int | None, module: str | None, words: tuple[str, ...], **options: Any
) -> Callable[[], int]:
    """Find a script's training loop and data loader, and write both to inst.info.

    Round one runs the script until its loops are found. Round two runs it on data of another size, which shows what holds the data;
    give the size by --vary, or by the arguments of a second `detrain trace --diff-size N`. The script's output goes to trace-1.log and
    trace-2.log in the run directory.
    """  # fmt: skip
    request = request_of(module, words, {**options, "nondeterministic": False}, is_of_script=True)
    varied = None if vary is None else vary_arguments(request.arguments, _words(vary))

    return start_of_trace(request, varied, diff_size)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--vary {text}: {error}") from None


def vary_arguments(arguments: list[str], varied: list[str]) -> list[str]:
    """The arguments of round two: options in `varied` replace those of the same name, other options are added behind.

    Words before the first option replace as many positional arguments, from the first on.
    """
    result = list(arguments)
    for words in _groups(varied):
        name = words[0].partition("=")[0]
        if not _is_option(name):
            _replace_positional(result, words)
            continue
        begin = next((n for n, word in enumerate(result) if word.partition("=")[0] == name), None)
        if begin is None:
            result += words
            continue
        if len(words) == 1 and "=" not in words[0]:
            continue  # a flag that is there already; what follows it may be anything
        end = begin + 1
        while "=" not in result[begin] and end < len(result) and not _is_option(result[end]):
            end += 1
        result[begin:end] = words
    return result


def _groups(words: list[str]) -> list[list[str]]:
    """Each option with its values; words before the first option together."""
    found: list[list[str]] = []
    for word in words:
        if _is_option(word) or not found:
            found.append([word])
        else:
            found[-1].append(word)
    return found


def _replace_positional(arguments: list[str], words: list[str]) -> None:
    places = [
        number for number, word in enumerate(arguments)
        if not _is_option(word) and (number == 0 or "=" in arguments[number - 1] or not _is_option(arguments[number - 1]))
    ]  # fmt: skip
    for number, word in enumerate(words):
        if number < len(places):
            arguments[places[number]] = word
        else:
            arguments.append(word)


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-").replace(".", "").isdigit()
