"""`detrain run`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detrain import ranks as several
from detrain.adapters import launchers
from detrain.cli.files import read_file
from detrain.errors import UsageError
from detrain.job.place import place_of
from detrain.remat.amounts import ONLINE
from detrain.remat.planners.names import NAMES as PLANNERS
from detrain.session import policy
from detrain.store import naming

if TYPE_CHECKING:
    from detrain.launch.request import Request


#: Under this key a context keeps the command line: detrain's options, and what follows.
_GIVEN = "detrain.given"


class ScriptCommand(click.Command):
    """Ends detrain's own options at `-m MODULE`, as python does; at a script click does so itself."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with what follows `-m MODULE` left to the module."""
        position, given = 0, list(args)
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
        ctx.meta[_GIVEN] = given[:position], given[position:]
        return super().parse_args(ctx, args)


seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Base seed for every random number generator that the script does not seed itself.",
)
module_option = click.option(
    "-m", "module", metavar="MODULE", help="Run a module, like python -m; its arguments follow."
)
words_argument = click.argument("words", nargs=-1, metavar="[SCRIPT] [ARGS]...", type=click.UNPROCESSED)


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option(
    "--ckpt-dir", envvar="CKPT_DIR", metavar="DIR", help="Run directory (default .detrain/<script>-<arguments>)."
)
@click.option(
    "--every",
    envvar="DETRAIN_EVERY",
    default="auto",
    show_default=True,
    metavar="WHEN",
    help="When to write a checkpoint: epoch, 5epochs, 100batches, 30s, 2% (of the run time), auto (at most 1%), never.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep the newest N checkpoints.",
)
@seed_option
@click.option("--fresh", is_flag=True, help="Start over. The old run directory is moved aside, not deleted.")
@click.option("--from", "from_", metavar="CKPT", help="Resume from this checkpoint instead of the latest.")
@click.option(
    "--nondeterministic", is_flag=True, help="Only checkpoint and resume; do not switch to deterministic kernels."
)
@click.option(
    "--trust-changes",
    is_flag=True,
    help="Resume although the script, its arguments or the environment have changed since the checkpoint.",
)
@click.option(
    "--keep-trained",
    is_flag=True,
    help="With --trust-changes: if training and the new arguments have both changed a value, keep the checkpoint's.",
)
@click.option(
    "--on-inexact",
    envvar="DETRAIN_ON_INEXACT",
    type=click.Choice(["refuse", "restart", "trust"]),
    default="refuse",
    show_default=True,
    help="Where a resume cannot be exact: stop; start over (the old run is kept); or go on and say so.",
)
@click.option(
    "--memory-budget",
    envvar="DETRAIN_MEMORY_BUDGET",
    default="",
    metavar="BYTES",
    help="Keep the training within so much memory (6GiB), or a share of what its first iteration takes (0.5): what it will need again "
    "is evicted and made again.",
)
@click.option(
    "--remat-planner",
    type=click.Choice([ONLINE, *PLANNERS]),
    default="auto",
    show_default=True,
    metavar="NAME",
    help="With --memory-budget: what plans the steps that come again, beside the training. "
    f"online: none, each step is taken as it comes; or one of {', '.join(PLANNERS)}.",
)
@click.option(
    "--remat-verify",
    is_flag=True,
    help="With --memory-budget: compare what is made again with what was evicted, and stop where it differs.",
)
@click.option(
    "--pipeline",
    default="",
    metavar="PLAN",
    help="Train the script's model over the stages of a plan (detrain pipeline plan): one process for each device.",
)
@click.option(
    "--micro-batches",
    type=click.IntRange(1),
    metavar="N",
    help="With --pipeline: parts of each batch. [default: as many as the plan's]",
)
@click.option("--emulate", is_flag=True, help="With --pipeline: one process plays all devices, with the same bits.")
@click.option("--no-pickle", is_flag=True, help="Refuse to resume from a checkpoint that contains pickled objects.")
@click.option("--leave-files", is_flag=True, help="Do not restore the script's own output files on a resume.")
@click.option(
    "--ranks",
    type=click.IntRange(2),
    metavar="N",
    help="Train with N processes on this host, started as ranks of one job; all checkpoint as one.",
)
@click.option(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="With --ranks: start them again so often.",
)
@module_option
@words_argument
def run(
    module: str | None, words: tuple[str, ...], from_: str | None, ranks: int | None, restarts: int, **options: Any
) -> Callable[[], int]:
    """Run a training script, or resume it from its latest checkpoint.

    Options for detrain go before the script's name, the script's own arguments after it.
    """  # fmt: skip
    policy.parse(options["every"])
    if options["memory_budget"]:
        from detrain.session.memory import limit_of

        limit_of(options["memory_budget"], planner=options["remat_planner"])
    elif options["remat_verify"] or options["remat_planner"] != "auto":
        raise UsageError(f"--remat-{'verify' if options['remat_verify'] else 'planner'} is for --memory-budget")
    if restarts and not ranks:
        raise UsageError(
            "--restarts is for --ranks; `until detrain run …; do :; done` starts one process again and again"
        )
    _check_pipeline(options, has_ranks=bool(ranks))
    several.refuse_several(os.environ)
    place = place_of(os.environ)
    if place is None:
        _check_launcher(module, words)
    request = request_of(module, words, {**options, "start": from_})
    if ranks and place is None:
        options_given, words_given = click.get_current_context().meta[_GIVEN]
        return lambda: _supervise(request, options_given, words_given, ranks, restarts)

    if place is None:
        return start_of(request)

    def start() -> int:
        from detrain.launch import environment, joining

        environment.replace_process(joining.of_rank(request, place))

    return start


def start_of(request: Request) -> Callable[[], int]:
    """What begins or resumes a run in this process."""

    def start() -> int:
        from detrain.launch import arguments, environment

        if os.path.isdir(request.ckpt_dir) and arguments.are_others(request):
            from detrain.proof import probing

            probing.prepare(request)
        environment.replace_process(request)

    return start


def _check_pipeline(options: dict[str, Any], *, has_ranks: bool) -> None:
    """Fills in the number of micro-batches. Raises `UsageError` for what does not go together, and `GraphError` for what is no plan."""
    if not options["pipeline"]:
        if options["micro_batches"] or options["emulate"]:
            raise UsageError(f"--{'micro-batches' if options['micro_batches'] else 'emulate'} is for --pipeline")
        options["micro_batches"] = 1
        return
    from detrain.pipeline import planfile

    if has_ranks or place_of(os.environ) is not None:
        raise UsageError("--pipeline starts its workers by itself, and is not for several ranks of a script")
    if options["memory_budget"]:
        raise UsageError("--memory-budget and --pipeline do not go together yet")
    plan = read_file(Path(options["pipeline"]), planfile.read).plan
    if options["micro_batches"] is None:
        workload = plan.workload
        options["micro_batches"] = workload.portions(plan.replication)[0] if workload is not None else 1


def _check_launcher(module: str | None, words: tuple[str, ...]) -> None:
    """Raises `UsageError` where what is to be run would only start the processes that train."""
    name = launchers.launcher_in("" if module is not None or not words else words[0], module or "")
    if name:
        raise UsageError(
            f"{name} starts the processes that train, and detrain has to stand in each of them: {launchers.HOW}, or "
            "detrain run --ranks N SCRIPT"
        )


def _supervise(request: Request, options: list[str], words: list[str], num_ranks: int, num_restarts: int) -> int:
    """Start the ranks with the same options; started again, they go on."""
    from detrain.launch.supervising import Supervisor

    again = _without(options, "--fresh", "--from")
    command = ["-m", "detrain", "run"]
    job = Path(os.path.abspath(request.ckpt_dir))
    return Supervisor([*command, *options, *words], [*command, *again, *words], num_ranks, num_restarts, job).run()


def _without(options: list[str], flag: str, with_value: str) -> list[str]:
    """Options of the first start alone are left out."""
    kept, position = [], 0
    while position < len(options):
        word = options[position]
        if word == with_value:
            position += 1
        elif word != flag and not word.startswith(f"{with_value}="):
            kept.append(word)
        position += 1
    return kept


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
