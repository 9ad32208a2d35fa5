"""Pipelines that run: a step's time over the simulator's, a plan over data parallelism, and what a micro-batch costs beside PyTorch's.

Stages sleep for what their devices would compute, so that two cores can stand for four devices.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import measure
from measure import Bench, Report, spread

from detrain.pipeline import simulator
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.simulator import StageLoad

SCRIPT = str(measure.PROGRAMS / "pipelined.py")
NUM_MICRO_BATCHES, NUM_SAMPLES = 8, 96


@dataclass(frozen=True)
class Case:
    """A schedule over stages; milliseconds of each stage's forward and backward pass, of one sample."""

    schedule: str
    replicas: tuple[int, ...]
    milliseconds: tuple[tuple[float, float], ...]

    @property
    def name(self) -> str:
        """In the table."""
        return f"{self.schedule}, {'-'.join(map(str, self.replicas))}"


EVEN = ((1.0, 2.0),) * 4
UNEVEN = ((1.0, 2.0), (1.5, 3.0), (0.5, 1.0))
CASES = (
    Case("gpipe", (1, 1), EVEN[:2]), Case("gpipe", (1, 1, 1, 1), EVEN), Case("1f1b", (1, 1, 1), UNEVEN), Case("1f1b", (1, 1, 1, 1), EVEN),
    Case("1f1b", (2, 1), ((2.0, 4.0), (1.0, 2.0))), Case("1f1b", (3, 1), ((3.0, 6.0), (1.0, 2.0))),
    Case("1f1b", (2, 1, 1), ((2.0, 4.0), (1.0, 2.0), (1.0, 2.0))), Case("interleaved", (1, 1), EVEN),
    Case("1f1b-async", (1, 1, 1), EVEN[:3]), Case("1f1b-async", (2, 1), ((2.0, 4.0), (1.0, 2.0))),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Of one start."""

    #: Of each stage by itself, in one process: forward and backward pass of what one of its replicas has of a micro-batch.
    stages_s: list[tuple[float, float]]
    steps_s: list[float]


def run(bench: Bench, by: str, case: Case, num_micro_batches: int, num_samples: int, num_steps: int) -> Found:
    """Over as many ranks as the case has."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={sum(case.replicas)}"]
    words = [by, case.schedule, "-".join(map(str, case.replicas)), json.dumps(case.milliseconds)]
    numbers = map(str, (num_micro_batches, num_samples, num_steps))
    done = bench.run([sys.executable, *start, SCRIPT, *words, *numbers], is_fixed=True)
    assert done.status == 0, done.errors
    found = json.loads(next(line for _, line in done.lines if line.startswith("{")))
    return Found(found["stages"], found["steps"])


def simulated_s(case: Case, found: Found) -> float:
    """A step of stages that take as long as they do by themselves; of an asynchronous schedule the time between two mini-batches."""
    is_async = case.schedule == "1f1b-async"
    chunks = len(case.milliseconds) // len(case.replicas) if case.schedule == "interleaved" else 1
    loads = [
        StageLoad(forward_s, backward_s, replicas=case.replicas[stage % len(case.replicas)])
        for stage, (forward_s, backward_s) in enumerate(found.stages_s)
    ]
    return simulator.simulate(Schedule(case.schedule, 1 if is_async else NUM_MICRO_BATCHES, chunks), loads).step_s


def step_s(case: Case, steps_s: Sequence[float]) -> float:
    """Steps of an asynchronous pipeline come and go unevenly, those of others alike."""
    return statistics.fmean(steps_s) if case.schedule == "1f1b-async" else statistics.median(steps_s)


def measure_simulator(bench: Bench, report: Report, is_quick: bool) -> None:
    """Each case, measured over simulated."""
    report.say("## A step's time over the simulator's")
    repeats, num_steps = (1, 4) if is_quick else (3, 12)
    rows = []
    for case in CASES:
        count = num_steps * (4 if case.schedule == "1f1b-async" else 1)
        starts = [run(bench, "ours", case, NUM_MICRO_BATCHES, NUM_SAMPLES, count) for _ in range(repeats)]
        wanted = [simulated_s(case, found) for found in starts]
        measured = [step_s(case, found.steps_s) for found in starts]
        rows.append([
            case.name, f"{statistics.median(wanted) * 1e3:.1f}", f"{statistics.median(measured) * 1e3:.1f}",
            spread(measure.ratios(measured, wanted), 3),
        ])  # fmt: skip
    report.table(["plan", "simulated, ms", "measured, ms", "ratio"], rows)
    report.say(
        f"{NUM_SAMPLES} samples in {NUM_MICRO_BATCHES} micro-batches (asynchronous: mini-batches of {NUM_SAMPLES}), {num_steps} steps in "
        f"each of {repeats} starts. What is simulated are stages that take as long as they do by themselves, measured in one process of "
        "the same start, over links that take no time. Aim: within 1.05."
    )


def measure_data_parallel(bench: Bench, report: Report, is_quick: bool) -> None:
    """A straight plan beside one stage on all ranks: what is lost by filling and draining, without transfers that cost."""
    report.say("## A straight plan over data parallelism")
    num_steps = 4 if is_quick else 12
    whole = Case("1f1b", (4,), ((4.0, 8.0),))
    straight = Case("1f1b", (1, 1, 1, 1), EVEN)
    rows = []
    for num_micro_batches in (4, 12):
        cases = {
            case.name: lambda case=case, count=num_micro_batches: step_s(
                case, run(bench, "ours", case, count, NUM_SAMPLES, num_steps).steps_s
            )
            for case in (straight, whole)
        }
        found = measure.alternate(cases, 1 if is_quick else 3)
        rows.append(
            [str(num_micro_batches), spread([one * 1e3 for one in found[straight.name]], 1),
             spread([one * 1e3 for one in found[whole.name]], 1), spread(measure.ratios(found[straight.name], found[whole.name]), 3)]
        )  # fmt: skip
    report.table(["micro-batches", "1-1-1-1, ms", "4, ms", "ratio"], rows)
    report.say(
        "Stages sleep and links cost nothing, so this is the pipeline's bubble: 1 + 3 over the number of micro-batches."
    )


def measure_overhead(bench: Bench, report: Report, is_quick: bool) -> None:
    """Stages that take no time."""
    report.say("## What a micro-batch costs, beside torch.distributed.pipelining")
    num_steps, rows = (20 if is_quick else 100), []
    for schedule in ("gpipe", "1f1b"):
        for count in (2, 4):
            case = Case(schedule, (1,) * count, ((0.0, 0.0),) * count)
            variants = {
                by: lambda by=by, case=case: statistics.median(run(bench, by, case, 16, 64, num_steps).steps_s) / 16
                for by in ("ours", "theirs")
            }
            found = measure.alternate(variants, 1 if is_quick else 5)
            rows.append(
                [f"{schedule}, {count} ranks", spread([one * 1e6 for one in found["ours"]], 0),
                 spread([one * 1e6 for one in found["theirs"]], 0), spread(measure.ratios(found["ours"], found["theirs"]))]
            )  # fmt: skip
    report.table(["schedule", "detrain, µs", "PyTorch, µs", "ratio"], rows)
    report.say(
        "A linear layer of 64 a rank, 16 micro-batches of 4 samples; a step's median over the number of micro-batches. Aim: at most 1."
    )


if __name__ == "__main__":
    measure.main(
        "Pipelines that run",
        __doc__,
        {"simulator": measure_simulator, "data-parallel": measure_data_parallel, "overhead": measure_overhead},
    )
