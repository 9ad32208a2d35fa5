"""From a command line to what is to be run: a `Request`."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detrain.adapters import launchers
from detrain.errors import UsageError
from detrain.store import naming

if TYPE_CHECKING:
    from detrain.job.place import Place
    from detrain.launch.request import Request

_UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_UNITS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+$")
#: As SLURM writes it: D-HH:MM:SS, HH:MM:SS, MM:SS.
_CLOCK = re.compile(r"(?:(?P<d>\d+)-)?(?:(?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)$")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on
    """A time: `3h`, `1h30m`, `90s`, `2-12:00:00`. Seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """See click."""
        if isinstance(value, int | float):
            seconds = float(value)
        elif _UNITS.match(value):
            seconds = sum(float(part[:-1]) * _UNITS_S[part[-1]] for part in re.findall(r"[\d.]+[dhms]", value))
        elif (clock := _CLOCK.match(value)) is not None:
            seconds = float(sum(int(clock[unit] or 0) * _UNITS_S[unit] for unit in "dhms"))
        else:
            self.fail(f"{value}: expected 3h, 1h30m, 90s or 2-12:00:00", param, ctx)
        if seconds <= 0:
            self.fail(f"{value}: there is no time at all", param, ctx)
        return seconds


DURATION = Duration()


def start_of(request: Request) -> Callable[[], int]:
    """What begins or resumes a run in this process."""

    def start() -> int:
        from detrain.launch import arguments, environment

        if request.remote:
            _start_publisher(request, is_fresh=request.fresh)
        if os.path.isdir(request.ckpt_dir) and arguments.are_others(request):
            from detrain.proof import probing

            probing.prepare(request)
        environment.replace_process(request)

    return start


def _start_publisher(request: Request, *, is_fresh: bool) -> None:
    from detrain.remote import starting

    directory = Path(os.path.abspath(request.ckpt_dir))
    script = os.path.abspath(request.script) if request.script else request.module
    command = None if request.trust_changes else (script, request.arguments)
    starting.start(directory, request.remote, command, is_fresh=is_fresh, is_quiet=request.quiet)


def begin_remotely(request: Request, place: Place) -> None:
    """Of a job that is published: rank 0 starts what publishes it, the others wait until it is ready. Raises `DetrainError`."""
    from detrain.remote import together

    together.check(place)
    job = Path(os.path.abspath(request.ckpt_dir))
    if place.is_first:
        _start_publisher(request, is_fresh=request.fresh and not launchers.is_restarted(os.environ))
        together.note(job, place)
    else:
        together.wait(job, place)


def start_of_trace(request: Request, varied: list[str] | None, diff_size: int | None) -> Callable[[], int]:
    """What traces a script, in its first round or in both. `varied`: arguments of the second."""

    def start() -> int:
        from detrain.launch.rounds import Rounds

        return Rounds(request).trace(varied, diff_size)

    return start


def request_of(
    module: str | None, words: tuple[str, ...], options: dict[str, Any], *, is_of_script: bool = False
) -> Request:
    """What is to be run, where, and how; raises `UsageError` where that is nothing.

    `is_of_script`: the directory is the script's, whatever its arguments are.
    """
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
    context = click.get_current_context(silent=True)
    chosen = options.pop("ckpt_dir")
    directory = chosen or naming.default_directory(script, module, () if is_of_script else arguments)
    if not chosen and options.get("trust_changes"):
        _check_is_there(Path(directory), os.path.abspath(script) if script else str(module))
    from detrain.launch.request import Request

    return Request(
        script, module or "", arguments, name, directory,
        traced_in="" if chosen else naming.default_directory(script, module),
        hint=hint_at(context.command, module, script, arguments) if context is not None else "", **options,
    )  # fmt: skip


def _check_is_there(directory: Path, script: str) -> None:
    """Who wants to go on with other arguments has to say with which run: each command has a directory of its own."""
    others = naming.runs_below(directory.parent, script)
    if directory.exists() or not others:
        return
    named = "; ".join(f"{path} ({' '.join(arguments) or 'no arguments'})" for path, arguments in others[:5])
    raise UsageError(
        f"--trust-changes: this command has no run yet, in {directory}. Name the run to go on with by --ckpt-dir: {named}"
    )


def hint_at(command: click.Command, module: str | None, script: str, arguments: list[str]) -> str:
    """What is said if the script does not know its arguments and some are options of `command`; "" if none is."""
    options = {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    found = list(dict.fromkeys(name for name in (word.partition("=")[0] for word in own) if name in options))
    if not found:
        return ""
    names = " and ".join(f"`{name}`" for name in found)
    verb, pronoun = ("stands", "it") if len(found) == 1 else ("stand", "they")
    what, target = ("script", script) if module is None else ("module", f"-m {module}")
    words = " ".join(name if options[name].is_flag else f"{name} …" for name in found)
    return (
        f"{names} {verb} behind the {what}'s name, so {pronoun} went to the {what}; detrain's options stand before it: "
        f"detrain {command.name} {words} {target}"
    )


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
