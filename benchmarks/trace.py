"""What tracing costs, over plain python to the same batch; beside it a tracer that reads the variables at every line."""

from __future__ import annotations

import ast
import functools
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import measure
from measure import Bench, Report, python, ratios, spread

from detrain.tracer.probes import Probes, Site

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
        seconds = time.monotonic() - began_s
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
        # Not when the process has ended: workers of a loader, which hold its output open, notice that after seconds.
        return next(at_s for at_s, line in done.lines if line == "the last step")


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
        f"{repeats} runs each: of detrain the whole command, of plain `python` until its last update; the tracer that reads the variables "
        "at every line once. Round two is what --vary adds. Aim: at most 1.1, and at most 1 s on top."
    )


# --- one probe -------------------------------------------------------------------------------------------------------

LOOP = "for _ in range(count):\n    pass\n"


class Plain:
    """No probe at all."""

    def __init__(self) -> None:
        self.code = compile(LOOP, "loop.py", "exec")

    def seconds(self, count: int) -> float:
        """Of the loop."""
        began_s = time.perf_counter()
        exec(self.code, {"count": count})
        return time.perf_counter() - began_s


class Probed(Plain):
    """A probe that calls `function`; None: the tracer's own."""

    def __init__(self, function: Callable[[], object] | None) -> None:
        probes = Probes()
        if function is not None:
            site = Site("loop.py", 1, 2)
            site.tick = function  # type: ignore[assignment]
            probes.site_of = lambda *_: site  # type: ignore[method-assign]
        self.code = probes.compile(ast.parse(LOOP), "loop.py")


def counting() -> Callable[[], object]:
    """Counts its calls."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    return tick


class Monitored(Plain):
    """LINE events of `sys.monitoring`, which cannot be disabled where iterations are counted."""

    def seconds(self, count: int) -> float:
        monitoring = sys.monitoring
        monitoring.use_tool_id(3, "benchmark")
        monitoring.register_callback(3, monitoring.events.LINE, lambda *_: None)
        monitoring.set_local_events(3, self.code, monitoring.events.LINE)
        try:
            return super().seconds(count)
        finally:
            monitoring.set_local_events(3, self.code, 0)
            monitoring.free_tool_id(3)


class Traced(Plain):
    """`sys.settrace`."""

    def seconds(self, count: int) -> float:
        def on_event(*_: object) -> object:
            return on_event

        sys.settrace(on_event)
        try:
            return super().seconds(count)
        finally:
            sys.settrace(None)


def measure_probes(_: Bench, report: Report, is_quick: bool) -> None:
    """Nanoseconds per iteration of an empty loop, by mechanism."""
    count, repeats = (100_000, 3) if is_quick else (1_000_000, 9)
    mechanisms: dict[str, Plain] = {
        "no probe": Plain(),
        "probe: itertools.count.__next__": Probed(None),
        "probe: Python function that counts": Probed(counting()),
        "sys.settrace": Traced(),
    }
    if sys.version_info >= (3, 12):
        mechanisms["sys.monitoring, LINE"] = Monitored()
    results = measure.alternate(
        {name: functools.partial(one.seconds, count) for name, one in mechanisms.items()}, repeats
    )
    base = min(results["no probe"])
    report.say("## Nanoseconds per iteration of a loop, by mechanism")
    rows = [
        [name, spread([s / count * 1e9 for s in found], 0), f"{(min(found) - base) / count * 1e9:.0f}"]
        for name, found in results.items()
    ]
    report.table(["", "ns", "added, fastest runs"], rows)
    report.say(
        f"{repeats} runs of {count:,} iterations each, in one process. A LINE event comes for the body's line too."
    )


if __name__ == "__main__":
    measure.main("What tracing costs", __doc__ or "", {"probes": measure_probes, "trace": measure_trace})
