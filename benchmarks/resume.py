"""How long a resume takes to the first new batch, early and late in one long epoch, beside a plain start."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import measure
from measure import Bench, Report, detrain, python, ratios, spread

NUM_BATCHES = 21_000
EARLY, LATE = 200, 20_000
#: What is measured: the script's name and its last argument.
LOADERS = {
    "A `DataLoader` without workers": ("long_epoch.py", "0"),
    "A `DataLoader` with 2 workers": ("long_epoch.py", "2"),
}
DATA_SETS = {
    "A `tf.data` data set": ("long_epoch_tensorflow.py", "plain"),
    "A `tf.data` data set whose `map` draws random numbers": ("long_epoch_tensorflow.py", "drawing"),
}


def killed_run(bench: Bench, words: Sequence[str], batch: int) -> Path:
    """The run directory of an attempt that was killed just after its checkpoint at this batch.

    The script waits in the body of that batch, so that the kill cannot come too late.
    """
    directory = bench.new_folder()
    command = detrain(directory, f"{batch}batches", words)
    bench.environment["PAUSE_AT"] = str(batch)
    process, began_s = bench.start(command, is_fixed=False)
    del bench.environment["PAUSE_AT"]
    while not (directory / f"checkpoint_0_{batch}.h5").exists():
        if process.poll() is not None or time.monotonic() - began_s > 600:
            process.kill()
            raise RuntimeError(f"no checkpoint at batch {batch}: {process.communicate()[1]}")
        time.sleep(0.05)
    process.kill()
    process.communicate()
    return directory


def first_batch(bench: Bench, command: Sequence[str], expected: int, *, is_fixed: bool) -> float:
    """Seconds from process start to the body of the first batch, which must be the expected one."""
    process, began_s = bench.start(command, is_fixed=is_fixed)
    assert process.stdout is not None
    line = process.stdout.readline()
    seconds = time.monotonic() - began_s  # here: the script's own clock goes on from where the killed attempt's stood
    process.kill()
    _, errors = process.communicate()
    if line.split()[:1] != [str(expected)]:
        raise RuntimeError(f"the first batch was {line!r}, not {expected}: {errors}")
    return seconds


def variants(bench: Bench, words: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Plain starts and resumes; each gives seconds."""
    killed = {batch: killed_run(bench, words, batch) for batch in (EARLY, LATE)}

    def resume(batch: int) -> Callable[[], object]:
        def run() -> float:
            directory = bench.new_folder()
            shutil.copytree(killed[batch], directory, dirs_exist_ok=True)
            seconds = first_batch(bench, detrain(directory, f"{batch}batches", words), batch, is_fixed=False)
            shutil.rmtree(directory)
            return seconds

        return run

    return {
        "python": lambda: first_batch(bench, python(words), 0, is_fixed=True),
        "detrain, fresh": lambda: first_batch(bench, detrain(bench.new_folder(), "never", words), 0, is_fixed=False),
        f"resume at batch {EARLY:,}": resume(EARLY),
        f"resume at batch {LATE:,}": resume(LATE),
    }


def measure_resume(loaders: Mapping[str, tuple[str, str]], bench: Bench, report: Report, is_quick: bool) -> None:
    """One table for each way to load."""
    repeats = 2 if is_quick else 9
    for what, (script, kind) in loaders.items():
        words = [str(measure.PROGRAMS / script), str(NUM_BATCHES), kind]
        results = measure.alternate(variants(bench, words), repeats)
        base, early = results["python"], results[f"resume at batch {EARLY:,}"]
        report.say(f"## {what}: seconds from process start to the first new batch")
        report.table(
            ["", "seconds", "over python", f"over batch {EARLY:,}"],
            [
                [name, spread(found), spread(ratios(found, base)), spread(ratios(found, early))]
                for name, found in results.items()
            ],
        )
    report.say(
        f"{repeats} runs each, of one epoch with {NUM_BATCHES:,} batches of 4 items, shuffled. "
        f"Aim: batch {LATE:,} within 10 % of batch {EARLY:,}."
    )


if __name__ == "__main__":
    parts = {"torch": partial(measure_resume, LOADERS)}
    if find_spec("tensorflow") is not None:
        parts["tensorflow"] = partial(measure_resume, DATA_SETS)
    measure.main("How long a resume takes", __doc__ or "", parts)
