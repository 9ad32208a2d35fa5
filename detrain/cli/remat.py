"""`detrain remat`: planning what is thrown away and made again."""

from __future__ import annotations

import functools
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detrain.cli.files import FILE, read_file, write_file
from detrain.cli.look import as_json_option
from detrain.cli.options import ScriptCommand
from detrain.cli.requests import request_of
from detrain.cli.run import module_option, seed_option, words_argument
from detrain.errors import MissingExtra, UsageError
from detrain.remat.planners.names import NAMES

if TYPE_CHECKING:
    from detrain.remat.experiments.measuring import Timing, TimingOrder
    from detrain.remat.experiments.results import Row
    from detrain.remat.graph import Graph

#: As in `detrain.remat.online`, which needs numba and is not loaded for a line of help.
_POLICIES_HELP = (
    "HEURISTIC:DEALLOCATION, as in dtr:eager. Heuristics: dtr, dtr-eq, dtr-local, msps, lru, size, random, and those of the ablation "
    "(e*-size-stale and others; docs/remat.md). Deallocations: eager, banish, ignore."
)
_time_limit_option = click.option(
    "--time-limit", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, metavar="S",
    help="Seconds after which the best plan so far is used.",
)  # fmt: skip
_budget_option = click.option(
    "--budget",
    required=True,
    metavar="B",
    help="Memory: a fraction of the peak without recomputation (0.4), or bytes (4GiB).",
)
_csv_option = click.option(
    "--csv",
    "tables",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write operators.csv and storages.csv: how often each was run or made, for how long, and how long it was in memory.",
)


@click.group()
def remat() -> None:
    """Plan recomputation of activations within a memory budget."""


@remat.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Output file (default: the script's name with .graph.json). FILE.log: as a log of the DTR prototype.",
)
@click.option(
    "--steps",
    "num_steps",
    type=click.IntRange(2),
    default=5,
    show_default=True,
    metavar="N",
    help="Batches to record; the graph is that of the most frequent kind, with median times.",
)
@seed_option
@module_option
@words_argument
def record(output: Path | None, num_steps: int, seed: int, module: str | None, words: tuple[str, ...]) -> int:
    """Record a training step of a script as an operator graph.

    The script runs without network until it has trained on N batches, and everything that it writes is discarded.
    """
    from detrain.proof import steps
    from detrain.remat import dtrlog, graphfile, rewrites
    from detrain.remat.simulator import floor_bytes, peak_bytes

    request = request_of(module, words, {"ckpt_dir": None, "seed": seed})
    target = output or Path(f"{request.name.rpartition('.')[2]}.graph.json")
    graph = steps.record(request, num_steps)
    if target.suffix == ".log":
        write_file(target, lambda path: dtrlog.write(path, rewrites.as_log_says(graph)))
    else:
        write_file(target, lambda path: graphfile.write(path, graph))
    backward = sum(operator.is_backward for operator in graph.operators)
    computed = sum(not operator.is_constant for operator in graph.operators)
    click.echo(
        f"{target}: {computed:,} operators, {backward:,} of them in the backward pass, {graph.cost_ns / 1e6:,.2f} ms; peak "
        f"{peak_bytes(graph):,} bytes, of which {graph.constant_bytes:,} are there before the step; no budget can be below "
        f"{floor_bytes(graph):,}",
        err=True,
    )
    return 0


@remat.command()
@click.argument("log", type=FILE)
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="GRAPH.json",
    help="Output file.",
)
@click.option("--whole", is_flag=True, help="Begin at the log's first line, not at its last START.")
def convert(log: Path, output: Path, whole: bool) -> int:
    """Convert a log of the DTR prototype to an operator graph."""
    from detrain.remat import dtrlog, graphfile

    graph = read_file(log, lambda path: dtrlog.read(path, is_whole=whole))
    write_file(output, lambda path: graphfile.write(path, graph))
    click.echo(
        f"{output}: {len(graph.operators):,} operators, {len(graph.tensors):,} tensors, {graph.cost_ns:,} ns", err=True
    )
    return 0


@remat.command()
@click.argument("graph", type=FILE)
@_budget_option
@click.option(
    "--policy",
    "policy_name",
    default="dtr:eager",
    show_default=True,
    metavar="P",
    help=_POLICIES_HELP,
)
@click.option("--compat", is_flag=True, help="Reproduce the published simulator to the last digit.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write every action to FILE, one per line.",
)
@_csv_option
@as_json_option
def simulate(
    graph: Path, budget: str, policy_name: str, compat: bool, trace: Path | None, tables: Path | None, as_json: bool
) -> int:
    """Run an online policy on an operator graph or a DTR log.

    Exit status: 1 if it runs out of memory or thrashes.
    """
    from detrain.remat import telemetry, text
    from detrain.remat.online import policy

    simulation = text.simulate(_graph_of(graph), budget, policy.parse(policy_name), is_compat=compat)
    if trace is not None:
        trace.write_text(text.trace_lines(simulation), encoding="utf-8")
    if tables is not None:
        schedule, outcome = simulation.result.schedule, simulation.outcome
        write_file(tables, lambda path: telemetry.write(path, simulation.graph, schedule, outcome))
    document = text.document(simulation)
    click.echo(json.dumps(document) if as_json else text.text(simulation))
    return 0 if document["status"] == "ok" else 1


@remat.command()
@click.argument("graph", type=FILE)
@_budget_option
@click.option(
    "--planner",
    required=True,
    metavar="NAME",
    help=f"One of {', '.join(NAMES)}; or an online policy, as it comes. {_POLICIES_HELP}",
)
@click.option("-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="PLAN.json", help="Output file.")
@_time_limit_option
@as_json_option
def plan(graph: Path, budget: str, planner: str, output: Path | None, time_limit: float, as_json: bool) -> int:
    """Find a schedule for an operator graph or a DTR log within a budget.

    Exit status: 1 if the planner finds none.
    """
    from detrain.cli.waiting import planning
    from detrain.plans.errors import NoPlanError
    from detrain.remat import planfile, text
    from detrain.remat.planners.registry import plan as plan_within
    from detrain.remat.simulator import budget_of

    step = _graph_of(graph)
    try:
        with planning(planner, time_limit):
            planned = plan_within(step, budget_of(step, budget), planner, time_limit)
    except NoPlanError as error:
        click.echo(f"detrain: {planner}: {error}", err=True)
        return 1
    if output is not None:
        write_file(output, lambda path: planfile.write(path, step, planned))
    document = planfile.summary(step, planned)
    click.echo(json.dumps(document) if as_json else text.plan_text(step, planned))
    return 0


@remat.command()
@click.argument("graph", type=FILE)
@click.option("--budgets", required=True, metavar="B,B,…", help="Budgets: fractions of the peak, or bytes.")
@click.option("--planners", required=True, metavar="NAME,NAME,…", help="Planners and policies, as for plan.")
@click.option(
    "-o",
    "output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Output folder.",
)
@_time_limit_option
def sweep(graph: Path, budgets: str, planners: str, output: Path, time_limit: float) -> int:
    """Run several planners at several budgets.

    Writes sweep.csv, and overhead.svg, which also shows the budgets for which no plan exists.
    """
    from detrain.cli.waiting import counting
    from detrain.remat import sweep as sweeping
    from detrain.remat import text
    from detrain.remat.simulator import budget_of

    step = _graph_of(graph)
    budgets_bytes = [budget_of(step, budget) for budget in budgets.split(",")]
    names = planners.split(",")
    with counting(len(budgets_bytes) * len(names)) as report:
        rows = sweeping.sweep(step, budgets_bytes, names, time_limit, lambda row: report(text.row_text(step, row)))
    write_file(output, lambda path: path.mkdir(parents=True, exist_ok=True))
    write_file(output / "sweep.csv", lambda path: sweeping.write_table(path, rows))
    write_file(output / "overhead.svg", lambda path: sweeping.draw(path, step, rows))
    return 0


@remat.command()
@click.argument("config", type=FILE, metavar="CONFIG.toml")
@click.option(
    "-o",
    "output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Output folder (default: the file's name without .toml).",
)
@click.option(
    "--fresh", is_flag=True, help="Begin anew; without it, cells of which DIR has a result are not run again."
)
@click.option("--redraw", is_flag=True, help="Run nothing; draw the results of DIR again.")
def experiment(config: Path, output: Path | None, fresh: bool, redraw: bool) -> int:
    """Run the experiments of a file: models x budgets x planners and policies.

    Writes results.csv and results.json, row by row, and NAME.svg for each experiment. After Ctrl-C, the same command goes on.

    Exit status: 1 if results are missing, because an experiment's time was over or there were unexpected errors.
    """
    from detrain.cli.waiting import counting
    from detrain.remat.experiments import cells as making
    from detrain.remat.experiments import config as configuring
    from detrain.remat.experiments import results, running

    if importlib.util.find_spec("matplotlib") is None:  # known before hours of planning, not behind them
        raise MissingExtra("matplotlib is not installed", "plan")
    if fresh and redraw:
        raise UsageError("--fresh runs everything, and --redraw nothing: give one of them")
    cells = read_file(config, lambda path: making.cells_of(configuring.read(path)))
    folder = output or Path(config.stem)
    write_file(folder, lambda path: path.mkdir(parents=True, exist_ok=True))
    store = results.Store(folder)
    rows = [] if fresh else read_file(folder, lambda _: running.rows_there(store, cells))
    if redraw:
        if not rows:
            raise UsageError(f"{folder} has no results to draw")
        _draw_experiments(folder, rows)
        return 0
    num_missing = len(cells) - len(rows)
    if rows:
        click.echo(f"{len(rows)} of {len(cells)} results are there; {num_missing} are left", err=True)
    with counting(num_missing) as report:
        ended = write_file(
            folder,
            lambda _: running.run(
                cells,
                rows,
                store,
                lambda row: report(results.row_text(row)),
                lambda: click.echo(_COMPILING, err=True),
                _measured,
            ),
        )
    _draw_experiments(folder, ended.rows)
    for name, count in ended.num_left.items():
        click.echo(f"{name}: its timeout is over, {count} results are left; the same command goes on", err=True)
    num_without = sum(row.overhead is None for row in ended.rows)
    click.echo(f"{folder}: {len(ended.rows)} of {len(cells)} results, {num_without} of them no plan", err=True)
    if ended.is_interrupted:
        return 130
    return 1 if ended.num_left or any(row.status == "error" for row in ended.rows) else 0


def _measured(order: TimingOrder) -> Timing:
    from detrain.proof import steps

    module = order.words[1] if order.words[0] == "-m" else None
    words = order.words[2:] if module is not None else (str(order.folder / order.words[0]), *order.words[1:])
    return steps.measure(request_of(module, words, {"ckpt_dir": None, "seed": 0}), order)


_COMPILING = "compiling the simulator; the first time takes about a minute"


def _draw_experiments(folder: Path, rows: list[Row]) -> None:
    from detrain.remat.experiments import drawing

    for name in dict.fromkeys(row.experiment for row in rows):
        own = [row for row in rows if row.experiment == name]
        write_file(folder / f"{name}.svg", functools.partial(drawing.draw, rows=own))


@remat.command()
@click.argument("plan", type=FILE)
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw memory over time, and the graph, in FILE.graph.svg. FILE.dot: write the graph for Graphviz.",
)
@_csv_option
def show(plan: Path, output: Path | None, tables: Path | None) -> int:
    """Simulate a plan again and print the result; or show an operator graph or a DTR log, with everything kept.

    Exit status: 1 if the plan cannot be executed.
    """
    from detrain.remat import dot, layered, picture, reading, telemetry, text
    from detrain.remat.simulator import simulate as judge

    planned = read_file(plan, reading.read_planned)
    click.echo(text.graph_text(planned.graph))
    shown, is_sound = text.planned_text(planned)
    click.echo(shown)
    if tables is not None and is_sound:
        outcome = judge(planned.graph, planned.schedule)
        write_file(tables, lambda path: telemetry.write(path, planned.graph, planned.schedule, outcome))
    if output is not None and is_sound:
        if output.suffix == ".dot":
            write_file(output, lambda path: dot.write(path, planned))
        else:
            write_file(output, lambda path: picture.draw(path, planned))
            write_file(output.with_suffix(".graph.svg"), lambda path: layered.write(path, planned))
    return 0 if is_sound else 1


def _graph_of(path: Path) -> Graph:
    from detrain.remat import reading

    return read_file(path, reading.read)
