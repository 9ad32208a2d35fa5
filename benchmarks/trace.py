"""What tracing costs, over plain python to the same batch; beside it a tracer that reads the variables at every line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import measure
from measure import Bench, Report, python, ratios, spread

UNTIL = str(measure.PROGRAMS / "until.py")
#: What is traced: script, its arguments, those of round two.
CASES = {
    "examples/torch_digits": (measure.EXAMPLES / "torch_digits" / "train.py", [], "--epochs 3"),
    "examples/torch_char_lm": (measure.EXAMPLES / "torch_char_lm" / "train.py", [], "--max_iters=90"),
    "a loader of its own": (measure.PROGRAMS / "custom_loader.py", ["--n", "512"], "--n 544"),
    "long preparation": (measure.PROGRAMS / "preparing.py", ["--n", "2000"], "--n 2016"),
    "critic steps": (measure.PROGRAMS / "adversaries.py", ["--n", "512"], "--n 544"),
}
#: The slow tracer is cut off after this many seconds.
PATIENCE_S = 600.0


class Case:
    """One script, traced in a folder of its own."""

    def __init__(self, bench: Bench, script: Path, arguments: list[str], varied: str) -> None:
        self.bench, self.words, self.varied = bench, [str(script), *arguments], varied
        self.steps = {1: 0, 2: 0}

    def round_one(self) -> float:
        """Seconds of the whole command."""
        return self._trace([], 1)

    def both_rounds(self) -> float:
        """Seconds of the whole command."""
        return self._trace(["--vary", self.varied], 2)

    def _trace(self, options: list[str], number: int) -> float:
        directory = self.bench.new_folder()
        command = [sys.executable, "-m", "detrain", "trace", "--ckpt-dir", str(directory), *options, *self.words]
        process, began_s = self.bench.start(command, is_fixed=False, cwd=self.bench.new_folder())
        process.communicate()
        seconds = measure.time.monotonic() - began_s
        # Where round two's data is the same, which is said and gives status 1, both rounds have run all the same.
        self.steps[number] = json.loads((directory / f"trace-{number}.json").read_text())["updates_seen"]
        shutil.rmtree(directory)
        return seconds

    def plain(self) -> float:
        """Seconds that plain python takes to where round one stops."""
        return self._until("plain")

    def every_line(self) -> float:
        """The same under `sys.settrace`."""
        return self._until("settrace")

    def _until(self, kind: str) -> float:
        steps = str(self.steps[1])
        done = self.bench.run(python([UNTIL, steps, kind, *self.words]), is_fixed=True, cwd=self.bench.new_folder())
        return done.total_s


def measure_trace(bench: Bench, report: Report, is_quick: bool) -> None:
    """One row for each script."""
    repeats = 1 if is_quick else 5
    rows = []
    for name, (script, arguments, varied) in CASES.items():
        case = Case(bench, script, arguments, varied)
        case.round_one()  # says where to stop, and warms the page cache
        results = measure.alternate({"plain": case.plain, "one": case.round_one, "both": case.both_rounds}, repeats)
        slow_s = case.every_line()
        one, both, plain = results["one"], results["both"], results["plain"]
        two = [b - a for a, b in zip(one, both, strict=True)]
        rows.append(
            [name, str(case.steps[1]), spread(plain), spread(one), spread(ratios(one, plain)), spread(two),
             spread(ratios(two, plain)), f"{slow_s:.1f}", f"{slow_s / min(plain):.1f}"]
        )  # fmt: skip
    report.say("## Seconds, and over plain python to the same batch")
    header = [
        "script",
        "updates",
        "python",
        "round one",
        "over python",
        "round two",
        "over python",
        "every line",
        "over python",
    ]
    report.table(header, rows)
    report.say(
        f"{repeats} runs each, of the whole command; the tracer that reads the variables at every line once. Round two is what --vary "
        "adds. Aim: at most 1.1, and at most 1 s on top."
    )


if __name__ == "__main__":
    measure.main("What tracing costs", __doc__ or "", {"trace": measure_trace})
