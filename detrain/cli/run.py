"""`detrain run`."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detrain import ranks as several
from detrain.adapters import launchers
from detrain.cli import remote_runs as remote
from detrain.cli.files import read_file
from detrain.cli.options import GIVEN, Option, ScriptCommand
from detrain.cli.requests import DURATION, begin_remotely, request_of, start_of, start_of_trace
from detrain.errors import UsageError
from detrain.job.place import place_of
from detrain.remat.amounts import ONLINE
from detrain.remat.planners.names import NAMES as PLANNERS
from detrain.session import policy

if TYPE_CHECKING:
    from detrain.job.place import Place
    from detrain.launch.request import Request


def _when(_ctx: click.Context, _option: click.Parameter, text: str) -> str:
    """Refuse it here, where it is known who says it: the command line, the environment or a file."""
    try:
        policy.parse(text)
    except UsageError as error:
        raise click.BadParameter(str(error).removeprefix("--every ")) from None
    return text


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


_checkpoints, _exactness, _schedulers, _processes, _memory, _pipeline = (
    functools.partial(click.option, cls=Option, group=heading)
    for heading in ("Checkpoints", "Exactness", "Schedulers", "Several processes", "Memory budget", "Pipeline")
)
#: When the supervisor of this rank has to end, by the monotonic clock of this host.
_ENDS = "DETRAIN_ENDS_S"


@click.command(
    short_help="Run a script, or resume it from its latest checkpoint.",
    cls=ScriptCommand,
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
)
@_checkpoints(
    "--ckpt-dir",
    envvar="CKPT_DIR",
    type=click.Path(),
    metavar="DIR",
    help="Run directory (default .detrain/<script>-<arguments>); a URL (s3://…) is taken for --remote.",
)
@_checkpoints(
    "--remote",
    envvar="DETRAIN_REMOTE",
    default="",
    metavar="URL",
    help="Publish the run there as it goes (s3://, gs://, az://, file:// …), and fetch it from there where this machine has none. {name} "
    "stands for the run directory's name.",
)
@_checkpoints(
    "--every",
    callback=_when,
    envvar="DETRAIN_EVERY",
    default="auto",
    show_default=True,
    metavar="WHEN",
    help="When to write a checkpoint: epoch, 5epochs, epochs:3,6 (behind these), 100batches, 30s, 2% (of the run time), auto (at most "
    "1%), never.",
)
@_checkpoints(
    "--keep",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    metavar="N",
    help="Keep the newest N checkpoints, and earlier ones that they build on.",
)
@_checkpoints("--fresh", is_flag=True, help="Start over. The old run directory is moved aside, not deleted.")
@_checkpoints("--from", "from_", metavar="CKPT", help="Resume from this checkpoint instead of the latest.")
@_checkpoints("--leave-files", is_flag=True, help="Do not restore the script's own output files on a resume.")
@_checkpoints("--no-pickle", is_flag=True, help="Refuse to resume from a checkpoint that contains pickled objects.")
@_exactness(
    "--nondeterministic", is_flag=True, help="Only checkpoint and resume; do not switch to deterministic kernels."
)
@_exactness(
    "--trust-changes",
    is_flag=True,
    help="Resume although the script, its arguments or the environment have changed since the checkpoint.",
)
@_exactness(
    "--keep-trained",
    is_flag=True,
    help="With --trust-changes: if training and the new arguments have both changed a value, keep the checkpoint's.",
)
@_exactness(
    "--on-inexact",
    envvar="DETRAIN_ON_INEXACT",
    type=click.Choice(["refuse", "restart", "trust"]),
    default="refuse",
    show_default=True,
    help="Where a resume cannot be exact: stop; start over (the old run is kept); or go on and say so.",
)
@_schedulers(
    "--time-limit",
    type=DURATION,
    metavar="TIME",
    help="After so long (3h, 1h30m, 2-12:00:00), counted from the start, the training ends behind a checkpoint, with exit status 75.",
)
@_schedulers(
    "--requeue/--no-requeue",
    help="When a scheduler takes the machine away (SIGTERM, SIGUSR1) or the time limit is reached: write a checkpoint, have SLURM "
    "requeue the job, and end with exit status 75.",
)
@_processes(
    "--ranks",
    type=click.IntRange(2),
    metavar="N",
    help="Train with N processes on this host, started as ranks of one job; all checkpoint as one.",
)
@_processes(
    "--restarts",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="With --ranks: start them again so often.",
)
@_memory(
    "--memory-budget",
    envvar="DETRAIN_MEMORY_BUDGET",
    default="",
    metavar="BYTES",
    help="Keep the training within so much memory (6GiB), or a share of what its first iteration takes (0.5): what it will need again "
    "is evicted and made again.",
)
@_memory(
    "--remat-planner",
    type=click.Choice([ONLINE, *PLANNERS]),
    default="auto",
    show_default=True,
    metavar="NAME",
    help="With --memory-budget: what plans the steps that come again, beside the training. "
    f"online: none, each step is taken as it comes; or one of {', '.join(PLANNERS)}.",
)
@_memory(
    "--remat-verify",
    is_flag=True,
    help="With --memory-budget: compare what is made again with what was evicted, and stop where it differs.",
)
@_pipeline(
    "--pipeline",
    type=click.Path(),
    default="",
    metavar="PLAN",
    help="Train the script's model over the stages of a plan (detrain pipeline plan): one process for each device.",
)
@_pipeline(
    "--micro-batches",
    type=click.IntRange(1),
    metavar="N",
    help="With --pipeline: parts of each batch. [default: as many as the plan's]",
)
@_pipeline("--emulate", is_flag=True, help="With --pipeline: one process plays all devices, with the same bits.")
@seed_option
@click.option(
    "--log-json",
    type=click.Path(dir_okay=False),
    default="",
    metavar="FILE",
    help="Add what happens to this file, as JSON lines for other programs: attempts, progress, checkpoints, warnings.",
)
@click.option(
    "--progress/--no-progress",
    help="On a terminal: keep its last line for where the run is: epoch, batch, batches a second, loss, the time that is left.",
)
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but warnings and errors.")
@module_option
@words_argument
def run(
    module: str | None,
    words: tuple[str, ...],
    from_: str | None,
    ranks: int | None,
    restarts: int,
    time_limit: float | None,
    progress: bool,
    **options: Any,
) -> Callable[[], int]:
    """Run a training script, or resume it from its latest checkpoint.

    Options for detrain go before the script's name, the script's own arguments after it. Each option can also be set in the environment
    (DETRAIN_RUN_KEEP=5 for --keep 5) and in a file, for all scripts or for one (detrain config).
    """  # fmt: skip
    if os.environ.get("ENABLE_TRACE", "0") not in ("", "0"):
        return _trace(module, words, options)
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
    ends_s = time.monotonic() + time_limit if time_limit is not None else math.inf
    if given := os.environ.pop(_ENDS, None):
        ends_s = float(given)
    remote.take_url(options)
    request = request_of(module, words, {**options, "start": from_, "ends_s": ends_s})
    if request.remote:
        remote.prepare(request)
    if ranks and place is None:
        options_given, words_given = click.get_current_context().meta[GIVEN]
        start: Callable[[], int] = functools.partial(_supervise, request, options_given, words_given, ranks, restarts)
    elif place is None:
        start = start_of(request)
    else:
        start = functools.partial(_start_rank, request, place)
    return functools.partial(_start_shown, request, start) if progress and (place is None or place.is_first) else start


def _start_rank(request: Request, place: Place) -> int:
    from detrain.launch import environment, joining

    if request.remote:
        begin_remotely(request, place)
    environment.replace_process(joining.of_rank(request, place))


def _start_shown(request: Request, start: Callable[[], int]) -> int:
    from detrain.report import statusline

    request.statusline = statusline.start(Path(os.path.abspath(request.ckpt_dir)))
    try:
        return start()  # an attempt takes this process's place, and ends it with itself
    finally:
        statusline.end(request.statusline)


def _trace(module: str | None, words: tuple[str, ...], options: dict[str, Any]) -> Callable[[], int]:
    """`ENABLE_TRACE=1`, and `DIFF_SIZE=N` for the second round, as the prototype had them."""
    size = os.environ.get("DIFF_SIZE", "")
    try:
        diff_size = int(size) if size else None
    except ValueError:
        raise UsageError(f"DIFF_SIZE={size}: expected a whole number of elements") from None
    remote.take_url(options)
    own = {"ckpt_dir": options["ckpt_dir"], "seed": options["seed"]}
    return start_of_trace(request_of(module, words, own, is_of_script=True), None, diff_size)


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

    if request.ends_s < math.inf:
        os.environ[_ENDS] = repr(request.ends_s)
    command, alone = ["-m", "detrain", "run"], ["--no-progress", *(["--no-requeue"] if request.requeue else [])]
    first, again = ([*command, *given, *alone, *words] for given in (options, _without(options, "--fresh", "--from")))
    job = Path(os.path.abspath(request.ckpt_dir))

    def on_leaving() -> None:
        if request.remote:
            from detrain.remote.waiting import wait_until_published

            wait_until_published(job, request.remote)

    return Supervisor(
        first, again, num_ranks, num_restarts, job, request.ends_s, is_requeued=request.requeue, on_leaving=on_leaving
    ).run()


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
