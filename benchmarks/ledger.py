"""What the ledger costs per batch, over the batch, for states of 1 MB, 100 MB and 1 GB."""

from __future__ import annotations

import json
import statistics
from itertools import pairwise

import measure
from measure import Bench, Report, detrain, ratios, spread

from detrain.store import ledger
from detrain.store.ledger import Ledger

SCRIPT = str(measure.PROGRAMS / "sized.py")
#: Megabytes of parameters and moments: batches. The first checkpoint, after a fifth of them, tells the ledger what there is to cover.
SIZES = {1: 4000, 100: 200, 1000: 30}
#: With fewer, none lies between the checkpoints.
FEWEST = 15
#: Likewise, and how many batches at a time have records, or have none.
STRETCHES = {1: (8000, 200), 100: (200, 2), 1000: (50, 1)}
#: Shares of the time that the ledger may take; with none there is a record at checkpoints only.
BUDGETS = {"no ledger": "0", "0.8 % (default)": "0.008", "a record for every batch": "1"}


class Training:
    """One run: when its batches began after the first checkpoint, and its ledger."""

    def __init__(self, bench: Bench, megabytes: int, num_batches: int, budget: str) -> None:
        directory = bench.new_folder()
        bench.environment["DETRAIN_LEDGER_BUDGET"] = budget
        command = detrain(directory, f"{num_batches // 5}batches", [SCRIPT, str(megabytes), str(num_batches)])
        done = bench.run([*command[:4], "--keep", "1", *command[4:]], is_fixed=False)
        del bench.environment["DETRAIN_LEDGER_BUDGET"]
        began_s = json.loads(done.lines[-1][1])
        # Without the batches that a checkpoint was taken before.
        steps = [(n, after - before) for n, (before, after) in enumerate(pairwise(began_s))]
        rest = [seconds for n, seconds in steps if n > num_batches // 5 + 1 and (n + 1) % (num_batches // 5) > 1]
        self.batch_s = statistics.median(rest)
        self.num_batches = num_batches
        self.ledger = ledger.read(directory / "ledger")
        for path in directory.glob("*.h5"):
            path.unlink()

    @property
    def share(self) -> float:
        """Of the time between the first and the last checkpoint, by the ledger's own clock."""
        first, last = self.ledger.saved[0], self.ledger.saved[-1]
        return (last["ledger_s"] - first["ledger_s"]) / (last["seconds"] - first["seconds"])

    @property
    def records(self) -> float:
        """Records per batch."""
        return len(self.ledger.batches) / self.num_batches

    @property
    def covered(self) -> float:
        """Megabytes of state that a record covers, after the first checkpoint."""
        found = [_bytes_of(self.ledger, batch) for batch in self.ledger.batches.values() if batch.pieces]
        return statistics.mean(found) / 1e6 if found else 0.0


def _bytes_of(book: Ledger, batch: ledger.Batch) -> int:
    sizes = dict(book.lists[batch.list_number])
    return sum(min(ledger.PIECE_BYTES, sizes[path] - start) for path, start in book.window(batch))


class Alternation:
    """One run in which every other stretch of batches has no records: pairs of stretches side by side, without checkpoints."""

    def __init__(self, bench: Bench, megabytes: int, num_batches: int, stretch: int) -> None:
        directory, every = bench.new_folder(), num_batches // 5
        words = [str(measure.PROGRAMS / "alternating.py"), str(megabytes), str(num_batches), str(stretch)]
        command = detrain(directory, f"{every}batches", words)
        done = bench.run([*command[:4], "--keep", "1", *command[4:]], is_fixed=False)
        marks = json.loads(done.lines[-1][1])
        taken = [  # seconds and pages of each stretch; of none that a checkpoint falls into, or into the batch before
            [after - before for before, after in zip(marks[n], marks[n + stretch], strict=True)]
            if n > every and n % every > 1 and n % every + stretch < every
            else None
            for n in range(0, num_batches - stretch, stretch)
        ]
        self.pairs = [(on, off) for on, off in zip(taken[::2], taken[1::2], strict=False) if on and off]
        self.stretch = stretch
        book = ledger.read(directory / "ledger")
        ended = [batches for batches, _ in book.batches if batches >= every and batches // stretch % 2 == 0]
        self.records = len(ended) / ((num_batches - every) / 2)
        for path in directory.glob("*.h5"):
            path.unlink()


def measure_alternating(bench: Bench, report: Report, is_quick: bool) -> None:
    """One row for each size."""
    rows = []
    for megabytes, (num_batches, stretch) in STRETCHES.items():
        runs = [Alternation(bench, megabytes, num_batches, stretch) for _ in range(1 if is_quick else 3)]
        pairs = [pair for run in runs for pair in run.pairs]
        differences = [(on[0] - off[0]) / stretch * 1e3 for on, off in pairs]
        plain_ms = statistics.median(off[0] for _, off in pairs) / stretch * 1e3
        longer = [difference / plain_ms * 100 for difference in differences]
        report.figure(f"{megabytes:,} MB: % longer", longer)
        rows.append(
            [
                f"{megabytes:,}",
                str(len(pairs)),
                f"{plain_ms:.3f}",
                f"{statistics.median(longer):+.2f} ± {measure.error_of_median(longer):.2f}",
                f"{statistics.median(run.records for run in runs):.2f}",
                spread([off[1] / stretch for _, off in pairs], 0),
                spread([(on[1] - off[1]) / stretch for on, off in pairs], 0),
            ]
        )
    report.say("## Within one process: stretches of batches with records beside stretches without")
    report.table(
        [
            "MB",
            "pairs",
            "ms per batch without",
            "% longer with",
            "records per batch",
            "pages mapped per batch without",
            "more with",
        ],
        rows,
    )
    report.say(
        "The median of the differences, with its standard error. Pages are those of memory that a batch has mapped anew because torch's "
        "allocator had given it back: their number hangs on how memory happens to lie, and 1,000 of them take 1 to 3 ms."
    )


def measure_sizes(bench: Bench, report: Report, is_quick: bool) -> None:
    """One table for each size."""
    for megabytes, num_batches in SIZES.items():
        repeats = 1 if is_quick else 3
        count = max(num_batches // 4, FEWEST) if is_quick else num_batches
        variants = {
            name: lambda budget=budget: Training(bench, megabytes, count, budget)  # noqa: B023 - run within this iteration
            for name, budget in BUDGETS.items()
        }
        results = measure.alternate(variants, repeats)
        base = [one.batch_s for one in results["no ledger"]]
        report.say(f"## {megabytes:,} MB of parameters and moments, {count} batches, {repeats} runs each")
        report.table(
            [
                "",
                "ms per batch",
                "over no ledger",
                "% of the time, by its own clock",
                "records per batch",
                "MB per record",
            ],
            [
                [
                    name,
                    spread([one.batch_s * 1e3 for one in found], 3),
                    spread(ratios([one.batch_s for one in found], base), 3),
                    spread([one.share * 100 for one in found]),
                    f"{found[0].records:.2f}",
                    f"{found[0].covered:.2f}",
                ]
                for name, found in results.items()
            ],
        )
    report.say(
        "The median batch of a run, without those that a checkpoint falls into. Aim: below 1 % of the batch. "
        "Where a record for each batch would cost more, there are fewer; each covers the losses and generators of all batches "
        "since the one before, and a window of the leaves that moves on."
    )


if __name__ == "__main__":
    measure.main("What the ledger costs", __doc__ or "", {"alternating": measure_alternating, "sizes": measure_sizes})
