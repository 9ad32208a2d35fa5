"""What a checkpoint costs: detrain's store beside the other ways to save a model and its Adam, and beside the physical limits."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import measure
from measure import Bench, Report, detrain, spread

from detrain.store import ledger

SCRIPT = str(measure.PROGRAMS / "stored.py")


class State(NamedTuple):
    """A state, and how often it is saved: by each method in so many processes, one method after the other, and in each so many times."""

    megabytes: int
    leaves: int
    saves: int
    rounds: int


STATES = {
    "10 MB": State(10, 60, 3, 3), "100 MB": State(100, 60, 3, 3), "1 GB": State(1000, 60, 1, 3),
    "10,000 leaves, 10 MB": State(10, 10_000, 2, 3), "100,000 leaves, 100 MB": State(100, 100_000, 2, 1),
}  # fmt: skip
#: Method: what has to be installed for it.
METHODS = {
    "bare": "torch", "detrain": "torch", "torch.save": "torch", "safetensors": "safetensors", "dcp.save": "torch",
    "dcp.async_save": "torch", "lightning": "lightning", "lightning async": "lightning",
}  # fmt: skip


def _run(bench: Bench, method: str, state: State) -> dict[str, Any]:
    folder = bench.new_folder()
    done = bench.run(measure.python([SCRIPT, method, *map(str, state[:3]), str(folder)]), is_fixed=True)
    shutil.rmtree(folder)
    found: dict[str, Any] = json.loads(done.lines[-1][1])
    return found


def _together(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a method has shown in all its rounds."""
    first, *others = rounds
    return {
        key: value if key == "first" else sum((other[key] for other in others), value) for key, value in first.items()
    }


def _row(name: str, found: dict[str, Any], bare: dict[str, Any]) -> list[str]:
    limits = {key: statistics.median(bare[key]) for key in ("stall_s", "durable_s", "load_s")}
    # The bare write begins when its copy has been made.
    limits["durable_s"] -= limits["stall_s"] if name != "bare" else 0.0

    def over(key: str) -> str:
        return f"{statistics.median(found[key]) / limits[key]:.2f}" if name != "bare" else "1.00"

    return [
        name,
        spread([one * 1e3 for one in found["stall_s"]], 1), over("stall_s"), f"{found['first']['stall_s'] * 1e3:.1f}",
        spread([one * 1e3 for one in found["durable_s"]], 0), over("durable_s"),
        spread([one * 1e3 for one in found["load_s"]], 0), over("load_s"),
        f"{statistics.median(found['bytes']) / 1e6:.1f}", f"{statistics.median(found['memory_mb']):.0f}",
        f"{statistics.median(found['slower']):.2f}",
    ]  # fmt: skip


def _figures(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of detrain, over the limit and over `torch.save`, in one round: the machine is another one in the next."""
    medians = {
        name: {key: statistics.median(one[key]) for key in ("stall_s", "durable_s", "load_s", "slower")}
        for name, one in found.items()
    }
    own, bare, save = (medians[name] for name in ("detrain", "bare", "torch.save"))
    return {
        "stall over memcpy": own["stall_s"] / bare["stall_s"], "stall over torch.save": own["stall_s"] / save["stall_s"],
        "durable over torch.save": own["durable_s"] / save["durable_s"],
        "durable over write": own["durable_s"] / (bare["durable_s"] - bare["stall_s"]),
        "load over read": own["load_s"] / bare["load_s"], "load over torch.load": own["load_s"] / save["load_s"],
        "step beside": own["slower"],
    }  # fmt: skip


def measure_states(bench: Bench, report: Report, is_quick: bool) -> None:
    """One table for each state."""
    present = {name for name, needed in METHODS.items() if importlib.util.find_spec(needed) is not None}
    for title, state in STATES.items():
        if is_quick and state.megabytes > 100:
            continue
        if is_quick:
            state = state._replace(saves=2, rounds=1)
        rounds = [{name: _run(bench, name, state) for name in METHODS if name in present} for _ in range(state.rounds)]
        found = {name: _together([one[name] for one in rounds]) for name in rounds[0]}
        report.say(f"## {title}, {state.saves * state.rounds} saves each, in {state.rounds} processes")
        report.table(
            [
                "", "stall, ms", "over memcpy", "the first", "durable, ms", "over write", "load, ms", "over read", "MB", "extra MB",
                "slower",
            ],
            [_row(name, one, found["bare"]) for name, one in found.items()],
        )  # fmt: skip
        figures = [_figures(one) for one in rounds]
        for name in figures[0]:
            report.figure(f"{title}: {name}", [one[name] for one in figures])
    if set(METHODS) - present:
        report.say(f"Not installed, so not measured: {', '.join(sorted(set(METHODS) - present))}.")
    report.say(
        "bare: a `memcpy` of the state, then a write of the copy and a sync; a read. Stall: how long the training waits. Durable: from the "
        "beginning until it is synced (Lightning syncs nothing). Load: into the live tensors, from a file that is in nobody's memory. "
        "Extra: memory at its most while saving. Slower: a step of the training while it is written, over one before. All of the state "
        "changes between two saves. A process has made one save before, not counted but as the first. The methods take turns; the aims' "
        "ratios are those of each turn, and of these the median."
    )


def measure_walk(bench: Bench, report: Report, is_quick: bool) -> None:
    """What a look at a state of many objects takes, before anything is copied."""
    objects, walks, processes = 30_000, 5 if is_quick else 11, 1 if is_quick else 3
    script = str(measure.PROGRAMS / "walked.py")
    found: list[dict[str, Any]] = [
        json.loads(bench.run(measure.python([script, str(objects), str(walks)]), is_fixed=True).lines[-1][1])
        for _ in range(processes)
    ]
    ms = {name: [one * 1e3 for each in found for one in each[name]] for name in found[0] if name != "objects"}
    report.say(f"## A look at {found[0]['objects']:,} objects, {walks} in each of {processes} processes")
    report.table(["", "ms"], [[name, spread(each, 1)] for name, each in ms.items()])
    report.figure(f"{objects:,} objects: ms of a walk", ms["along the route"])
    report.say(
        "Linear layers and their Adam, of which every tensor has changed. From anew: object by object. Along the route: what a session "
        "does. `state_dict`: of both, which most of the other ways to save begin with; it looks at tensors alone."
    )


def _leave(bench: Bench, megabytes: int) -> tuple[float, float]:
    """Seconds from SIGTERM to the process's end, and of a batch."""
    folder = bench.new_folder()
    words = [str(measure.PROGRAMS / "sized.py"), str(megabytes), "1000000"]
    process, _ = bench.start(detrain(folder, "never", words), is_fixed=False)
    assert process.stderr is not None
    while "training loop found" not in process.stderr.readline():
        pass
    time.sleep(max(2.0, megabytes / 100))
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    seconds = time.monotonic() - began_s
    found = ledger.read(folder / "ledger").saved
    assert len(found) == 1, "no checkpoint was taken"
    shutil.rmtree(folder)
    return seconds, found[0]["stall_s"]


def measure_signals(bench: Bench, report: Report, is_quick: bool) -> None:
    """How long a process takes to leave."""
    rows = []
    for megabytes in (10, 100) if is_quick else (10, 100, 1000):
        found = [_leave(bench, megabytes) for _ in range(1 if is_quick else 5)]
        rows.append([f"{megabytes:,} MB", spread([one for one, _ in found]), spread([one for _, one in found])])
    report.say("## From SIGTERM to the end of the process")
    report.table(["parameters and moments", "seconds", "of which the training waited for the copy"], rows)
    report.say(
        "The batch that runs is done to its end, the state is copied, written and synced; then the process gets its signal."
    )


if __name__ == "__main__":
    parts = {"states": measure_states, "walk": measure_walk, "signals": measure_signals}
    measure.main("What a checkpoint costs", __doc__ or "", parts)
