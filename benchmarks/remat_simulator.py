"""Seconds that the online policies take over the published logs of DTR, beside the published simulator's."""

from __future__ import annotations

import statistics
import time

from dtr_logs import logs
from measure import Bench, Report, main, spread

from detrain.remat import builders, dtrlog
from detrain.remat.online.policy import Runner, parse

RATIOS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: Seconds of the published simulator for a row, on one core: all ratios down to the first that fails.
PUBLISHED_S = {
    "U-Net (6)": {"dtr": 0.3, "dtr-eq": 0.1, "dtr-local": 0.1, "msps": 0.3, "lru": 0.1, "size": 0.1},
    "ResNet-32 (56)": {"dtr": 2.1, "dtr-eq": 0.2, "dtr-local": 0.2, "msps": 2.0, "lru": 0.1, "size": 0.1},
    "InceptionV4 (64)": {"dtr": 166.6, "dtr-eq": 4.2, "dtr-local": 4.2, "msps": 71.3, "lru": 1.7, "size": 2.5},
    "Transformer (10)": {"dtr": 38.0, "dtr-eq": 2.9, "dtr-local": 1.1, "msps": 22.9, "lru": 0.7, "size": 1.1},
    "LSTM (512)": {"dtr": 194.5, "dtr-eq": 17.0, "dtr-local": 7.2, "msps": 51.2, "lru": 4.4, "size": 4.8},
}  # fmt: skip
HEURISTICS = ("dtr", "dtr-eq", "dtr-local", "msps", "lru", "size")
#: Rows that take the published simulator longer than this are those that count. Seconds.
SLOW_S = 50.0


def _row(runner: Runner, heuristic: str) -> tuple[float, str]:
    """Seconds, and the overhead at each ratio down to the first that fails."""
    policy, found, began_s = parse(f"{heuristic}:eager"), [], time.perf_counter()
    for ratio in RATIOS:
        result = runner.run(policy, int(runner.baseline.peak_bytes * ratio))
        found.append(f"{result.overhead:.4f}" if result.status == "ok" else result.status)
        if result.status != "ok":
            break
    return time.perf_counter() - began_s, " ".join(found)


def measure_rows(_: Bench, report: Report, is_quick: bool) -> None:
    """Each model and heuristic."""
    small = Runner(builders.chain(4))
    for heuristic in HEURISTICS:
        _row(small, heuristic)  # compiles
    for model, path in logs().items():
        began_s = time.perf_counter()
        runner = Runner(dtrlog.read(path))
        ready_s = time.perf_counter() - began_s
        rows = []
        for heuristic in HEURISTICS:
            runs = [_row(runner, heuristic) for _ in range(1 if is_quick else 5)]
            seconds = [one for one, _ in runs]
            published_s = PUBLISHED_S.get(model, {}).get(heuristic)
            times = "" if published_s is None else f"{published_s / statistics.median(seconds):.1f}"
            if published_s is not None and published_s > SLOW_S:
                times = f"**{times}**"
            rows.append(
                [heuristic, spread(seconds, 3), "" if published_s is None else str(published_s), times, runs[0][1]]
            )
        report.say(f"## {model}: {len(runner.graph.operators):,} operators; read and made ready in {ready_s:.2f} s")
        report.table(["heuristic", "seconds", "published", "times faster", "overhead from ratio 1.0 down"], rows)
    report.say(
        f"A row is all ratios from 1.0 down to the first that fails, after compilation, which numba keeps on the disk. Published: the "
        f"published simulator's seconds, on another machine, one core. In bold: rows that took it longer than {SLOW_S:.0f} s. The "
        "results are compared with the published ones to the last digit by tests/remat/test_online.py."
    )


if __name__ == "__main__":
    main("The online policies' simulator", __doc__ or "", {"rows": measure_rows})
