"""What comes out where a training is killed and goes on: by hand, by libraries, by detrain.

Each program of `programs/others/` is run twice whole, and then once for each moment of the kill: killed there, started again with the same
command. Compared are the digests of the weights at the end, and the batches that were done again are counted. What is not installed is left
out, and said.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import measure
from measure import PROGRAMS, Bench, Report, detrain

FOLDER = PROGRAMS / "others"
#: In the middle of an epoch, shortly before its end, in its first batch, in later epochs; none in the first, before all of them have saved.
KILLS = (58, 78, 80, 101, 147)


class Other(NamedTuple):
    """A way to go on."""

    name: str
    program: str
    needs: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    is_ours: bool = False


OTHERS = (
    Other("`torch.save` each epoch: model, optimizer, scheduler", "by_hand.py"),
    Other("the same, and torch's generator", "by_hand.py", variables=(("RANDOM", "1"),)),
    Other("`StatefulDataLoader`, `torch.save` within epochs", "stateful_loader.py", "torchdata"),
    Other("Lightning, `ckpt_path='last'`", "in_lightning.py", "lightning"),
    Other("Hugging Face `Trainer`, `resume_from_checkpoint`", "in_transformers.py", "transformers"),
    Other("`detrain run` of a script that saves nothing", "plain.py", is_ours=True),
    Other("`detrain run` of the Lightning program, without its checkpoints", "in_lightning.py", "lightning", (("SAVES", "0"),), True),
)  # fmt: skip


class Run(NamedTuple):
    """What a training has printed, in all its attempts."""

    weights: str
    batches: list[int]
    errors: str


def run(bench: Bench, other: Other, kill_at: int | None) -> Run:
    """To its end; killed once, if at all."""
    folder = bench.new_folder()
    for path in FOLDER.glob("*.py"):
        shutil.copy(path, folder)
    command = [sys.executable, other.program]
    if other.is_ours:
        command = detrain(folder / "run", "15batches", [other.program])
    environment = {**bench.environment, **dict(other.variables)}
    batches: list[int] = []
    weights = errors = ""
    for variables in ([{"KILL_AT": str(kill_at)}] if kill_at is not None else []) + [{}]:
        done = subprocess.run(
            command, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, check=False
        )
        words = [line.split() for line in done.stdout.splitlines()]
        batches += [int(line[1]) for line in words if line[:1] == ["batch"] and line[1] != variables.get("KILL_AT")]
        weights = next((line[1] for line in words if line[:1] == ["weights"]), "")
        errors = done.stderr
    shutil.rmtree(folder)
    return Run(weights, batches, errors)


def compare(bench: Bench, report: Report, is_quick: bool) -> None:
    """All of them."""
    rows: list[Sequence[object]] = []
    killed: list[Run] = []
    missing = []
    for other in OTHERS:
        if other.needs and importlib.util.find_spec(other.needs) is None:
            missing.append(other.needs)
            continue
        whole, again = run(bench, other, None), run(bench, other, None)
        if not whole.weights:
            raise RuntimeError(f"{other.program} has failed:\n{whole.errors[-2000:]}")
        killed = [run(bench, other, moment) for moment in (KILLS[:2] if is_quick else KILLS)]
        same = sum(one.weights == whole.weights for one in killed)
        failed = sum(not one.weights for one in killed)
        repeated = [len(one.batches) - len(set(one.batches)) for one in killed]
        left_out = [len(set(whole.batches) - set(one.batches)) for one in killed]
        rows.append([
            other.name, "yes" if whole.weights == again.weights else "no", f"{same} of {len(killed)}",
            f"{sum(repeated) / len(killed):.0f}", f"{sum(left_out) / len(killed):.0f}", failed or "",
        ])  # fmt: skip
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    report.table(
        ["", "two whole runs alike", "same bits after a kill", "batches done again", "left out", "failed"], rows
    )
    moments = ", ".join(map(str, KILLS[: len(killed)]))
    report.say(
        f"A network with dropout, shuffled batches, Adam, a schedule; 4 epochs of 40 batches; killed (SIGKILL) in batch {moments}, then "
        "the same command again. Where a checkpoint within an epoch can be taken, there is one after each 15 batches. Means over the kills."
    )
    if missing:
        report.say(f"Not installed here: {', '.join(sorted(set(missing)))}.")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    measure.main("Killed, and gone on", __doc__ or "", {"others": compare})
