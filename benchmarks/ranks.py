"""What it costs that several ranks checkpoint as one: per batch, and while a cut is taken."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import measure
from measure import Bench, Report, detrain, python, spread

from detrain.store import ledger
from detrain.store.job import JobDirectory

SCRIPT = str(measure.PROGRAMS / "ranked.py")
RANKS = (2, 4)
MEGABYTES = (1, 100)
#: How many numbers a batch sums, and how many batches an epoch has: an empty batch, and one of about half a millisecond.
LOOPS = {0: 200_000, 40_000: 300}


def torchrun(num_ranks: int, words: Sequence[str]) -> list[str]:
    """The command that starts so many ranks; `words`: what each runs."""
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return [sys.executable, *start, *words]


def ranks_under_detrain(num_ranks: int, directory: Path, every: str, words: Sequence[str]) -> list[str]:
    """The command for `detrain run` in each of so many ranks."""
    return torchrun(num_ranks, detrain(directory, every, words)[1:])


def by_rank(bench: Bench, command: list[str], *, is_fixed: bool) -> dict[int, list[float]]:
    """What programs/ranked.py has printed."""
    done = bench.run(command, is_fixed=is_fixed, cwd=bench.new_folder())
    rows = [line.split(" ", 1) for _, line in done.lines if line[:1].isdigit()]
    return {int(rank): json.loads(found) for rank, found in rows}


# --- per batch -------------------------------------------------------------------------------------------------------


def batch_ns(bench: Bench, command: list[str], *, is_fixed: bool) -> float:
    """Of each rank the fastest epoch without the first, of these the slowest rank's."""
    return max(min(found[1:]) for found in by_rank(bench, command, is_fixed=is_fixed).values())


def measure_agreement(bench: Bench, report: Report, is_quick: bool) -> None:
    """Nanoseconds of processor time per batch, of one process, and of 2 and 4 ranks."""
    report.say("## Nanoseconds of processor time per batch")
    repeats = 2 if is_quick else 5
    for summed, count in LOOPS.items():
        rows = _agreement_rows(bench, [SCRIPT, "loop", str(summed), str(count)], repeats)
        report.say(f"{f'A batch that sums {summed} numbers' if summed else 'An empty batch'}, {count} in an epoch:")
        report.table(["ranks", "python", "detrain adds", "beyond one process"], rows)
    report.say(
        f"{repeats} starts each, ten epochs with `--every auto`; processor time of the main thread without that of the sums, in the "
        "fastest epoch behind the first, of the slowest rank. Aim: at most 5,000 ns beyond one process."
    )


def _agreement_rows(bench: Bench, words: list[str], repeats: int) -> list[list[str]]:
    def alone(command: Callable[[], list[str]], *, is_fixed: bool) -> Callable[[], object]:
        return lambda: batch_ns(bench, command(), is_fixed=is_fixed)

    variants = {
        "1, python": alone(lambda: python(words), is_fixed=True),
        "1, detrain": alone(lambda: detrain(bench.new_folder(), "auto", words), is_fixed=False),
    }
    for number in RANKS:
        variants[f"{number}, python"] = alone(lambda number=number: torchrun(number, words), is_fixed=True)
        variants[f"{number}, detrain"] = alone(
            lambda number=number: ranks_under_detrain(number, bench.new_folder(), "auto", words), is_fixed=False
        )
    results = measure.alternate(variants, repeats)
    added = {
        number: measure.differences(results[f"{number}, detrain"], results[f"{number}, python"])
        for number in (1, *RANKS)
    }
    return [
        [
            str(number),
            spread(results[f"{number}, python"], 0),
            spread(found, 0),
            spread(measure.differences(found, added[1]), 0),
        ]
        for number, found in added.items()
    ]


# --- a cut -----------------------------------------------------------------------------------------------------------


def stalls(bench: Bench, num_ranks: int, megabytes: int, num_batches: int) -> list[tuple[float, float]]:
    """For each cut, by how many seconds the batch that it was taken before was longer, and the longest of the ranks' own stalls."""
    directory = bench.new_folder()
    every = max(2, num_batches // 8)
    words = [SCRIPT, "cut", str(megabytes), str(num_batches)]
    began = by_rank(bench, ranks_under_detrain(num_ranks, directory, f"{every}batches", words), is_fixed=False)
    steps = {rank: [after - before for before, after in pairwise(found)] for rank, found in began.items()}
    usual = {rank: statistics.median(found) for rank, found in steps.items()}
    own: dict[int, list[float]] = {}
    for rank in range(num_ranks):
        for saved in ledger.read(JobDirectory(directory).rank(rank).path / "ledger").saved:
            own.setdefault(saved["batches"], []).append(saved["stall_s"])
    # What is taken at the header before batch n lengthens the step from the beginning of batch n - 1 on.
    return [
        (max(steps[rank][batches - 1] - usual[rank] for rank in steps), max(found))
        for batches, found in sorted(own.items())
        if 1 < batches < num_batches and len(found) == num_ranks
    ]


def measure_cuts(bench: Bench, report: Report, is_quick: bool) -> None:
    """What a cut makes the job wait, over what the slowest rank's own part makes it wait."""
    repeats, rows = 1 if is_quick else 3, []
    for megabytes in MEGABYTES:
        for number in RANKS[:1] if is_quick else RANKS:
            found = [
                one
                for _ in range(repeats)
                for one in stalls(bench, number, megabytes, 400 if megabytes < 10 else 60)[1:]
            ]
            whole, own = [one[0] * 1e3 for one in found], [one[1] * 1e3 for one in found]
            rows.append(
                [
                    str(number),
                    str(megabytes),
                    str(len(found)),
                    spread(whole, 1),
                    spread(own, 1),
                    spread(measure.ratios(whole, own), 2),
                ]
            )
    report.say("## A cut")
    report.table(["ranks", "megabytes", "cuts", "the job waits (ms)", "the slowest part (ms)", "ratio"], rows)
    report.say(
        f"{repeats} starts each; without the first cut. The job waits: the step that the cut lies in, less the median step. Aim: 1.1."
    )


if __name__ == "__main__":
    measure.main("What several ranks cost", __doc__ or "", {"agreement": measure_agreement, "cuts": measure_cuts})
