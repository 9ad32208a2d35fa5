"""What detrain costs while nothing goes wrong: per batch, at the start, and for a whole program."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median

import measure
from measure import Bench, Finished, Report, deterministic, detrain, differences, python, ratios, spread

LOOPS = str(measure.PROGRAMS / "loops.py")
GRAPH_STEP = str(measure.PROGRAMS / "graph_step.py")
DIGITS = measure.EXAMPLES / "torch_digits" / "train.py"

#: Batch loops that are known from an earlier run: case of programs/loops.py, and what it is.
KNOWN = {"range": "range", "list": "list", "loader": "DataLoader", "while": "while"}
#: Iterations of the cases that take longer; of the others 200,000.
_SLOW = {"loader": 50_000, "steps": 10_000}
#: Loops in a first attempt.
FIRST = {
    "dormant_for": "iteration of a `for` outside the training",
    "dormant_while": "iteration of a `while` outside the training",
    "dormant_entry": "entering a `for` outside the training",
    "in_batch_entry": "entering a `for` inside a batch",
    "in_batch_while": "iteration of a `while` inside a batch",
}


def only_info(source: Path, target: Path) -> Path:
    """A run directory of a run that has not begun but knows its loops and has its code in the cache."""
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source / "inst.info", target)
    shutil.copy(source / "lock", target)  # by which detrain knows a directory of its own
    if (source / "cache").is_dir():
        shutil.copytree(source / "cache", target / "cache", dirs_exist_ok=True)
    return target


def known_directory(bench: Bench, words: Sequence[str]) -> Path:
    """Let a script come to its end once, and once more so that the code for its known loops is in the cache."""
    first, second = bench.new_folder(), bench.new_folder()
    bench.run(detrain(first, "never", words), is_fixed=False, cwd=bench.new_folder())
    only_info(first, second)
    bench.run(detrain(second, "never", words), is_fixed=False, cwd=bench.new_folder())
    return second


# --- per batch -------------------------------------------------------------------------------------------------------


def passes_ns(done: Finished) -> list[float]:
    """What programs/loops.py has measured, without its first pass."""
    return json.loads(done.lines[-1][1])[1:]


def loop_variants(bench: Bench, case: str, size: Sequence[str], is_known: bool) -> dict[str, Callable[[], object]]:
    """A loop under plain python and under detrain. Each gives (ns per iteration in the fastest pass, in the mean)."""
    words = [LOOPS, case, *size]
    base = deterministic if case == "steps" else python
    known = known_directory(bench, [LOOPS, case, "1001", "3"]) if is_known else None

    def plain() -> tuple[float, float]:
        found = passes_ns(bench.run(base(words), is_fixed=True))
        return min(found), fmean(found)

    def hooked(every: str) -> Callable[[], object]:
        def run() -> tuple[float, float]:
            directory = bench.new_folder()
            if known is not None:
                only_info(known, directory)
            found = passes_ns(bench.run(detrain(directory, every, words), is_fixed=False))
            shutil.rmtree(directory)
            return min(found), fmean(found)

        return run

    policies = ("never", "auto") if is_known else ("never",)
    return {"python": plain, **{every: hooked(every) for every in policies}}


def loop_row(results: dict[str, list], every: str, what: str) -> list[str]:
    """One line of the table: the fastest passes, and the means, in which checkpoints are."""
    base, found = results["python"], results[every]
    usual = differences([one[0] for one in found], [one[0] for one in base])
    mean = differences([one[1] for one in found], [one[1] for one in base])
    return [what, every, spread([one[0] for one in base], 0), spread(usual, 0), spread(mean, 0)]


def measure_loops(bench: Bench, report: Report, is_quick: bool) -> None:
    """Nanoseconds per batch, and per iteration of loops that are not in the nest."""
    repeats, passes = (2, "6") if is_quick else (5, "9")
    rows = []
    for case, what in {**KNOWN, "steps": "range, a step in each batch", **FIRST}.items():
        count = _SLOW.get(case, 100_000) // (10 if is_quick else 1)
        is_known = case in KNOWN or case == "steps"
        results = measure.alternate(loop_variants(bench, case, [str(count), passes], is_known), repeats)
        rows += [loop_row(results, every, what) for every in results if every != "python"]
        last = list(results)[-1]
        fastest = differences([one[0] for one in results[last]], [one[0] for one in results["python"]])
        report.figure(f"{what}: ns added", fastest)
    report.say("## Nanoseconds per iteration")
    header = ["loop", "--every", "python", "detrain adds", "with checkpoints"]
    report.table(header, rows)
    report.say(
        f"{repeats} processes each, {passes} passes of {'10,000' if is_quick else '100,000'} iterations in each (fewer with a "
        "`DataLoader` or a step); of a process the fastest pass counts, in the last column the mean of all. Aim: a batch under 2,000 ns."
    )


# --- start-up --------------------------------------------------------------------------------------------------------


def startup_script(folder: Path) -> list[str]:
    """A copy of the digits example that says when `import torch` is done; with `--ready` it then ends."""
    source = DIGITS.read_text(encoding="utf-8")
    says = "import torch\nimport sys; print(time.monotonic(), flush=True); '--ready' in sys.argv and sys.exit()\n"
    path = folder / "startup.py"
    path.write_text(source.replace("import torch\n", says, 1), encoding="utf-8")
    return [str(path)]


def ready_s(bench: Bench, command: Sequence[str], *, is_fixed: bool) -> float:
    """Seconds from the start of the process to the statement after `import torch`."""
    process, began_s = bench.start(command, is_fixed=is_fixed)
    output, errors = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(errors)
    return float(output.split()[0]) - began_s


def measure_startup(bench: Bench, report: Report, is_quick: bool) -> None:
    """Seconds from process start to the first statement after `import torch`."""
    words = startup_script(bench.folder)
    known = known_directory(bench, [*words, "--epochs", "1", "--workers", "0"])
    words = [*words, "--ready"]
    variants = {
        "python": lambda: ready_s(bench, python(words), is_fixed=True),
        "python, environment as found": lambda: ready_s(bench, python(words), is_fixed=False),
        "detrain, first attempt": lambda: ready_s(bench, detrain(bench.new_folder(), "auto", words), is_fixed=False),
        "detrain, loops known": lambda: ready_s(
            bench, detrain(only_info(known, bench.new_folder()), "auto", words), is_fixed=False
        ),
    }
    for variant in variants.values():
        variant()  # once for the page cache and the bytecode of everything
    repeats = 3 if is_quick else 11
    results = measure.alternate(variants, repeats)
    base = results["python"]
    report.say("## Seconds to the first statement after `import torch`")
    report.table(
        ["", "seconds", "added to python"],
        [[name, spread(found, 3), spread(differences(found, base), 3)] for name, found in results.items()],
    )
    for name in ("detrain, first attempt", "detrain, loops known"):
        report.figure(f"{name}: seconds added", differences(results[name], base))
    report.say(f"{repeats} runs each. Aim: 0.15 s added by the first attempt, 0.1 s by later ones.")
    report.table(["imports, ms", "package", "by `-X importtime`"], import_table(bench, words))


def import_table(bench: Bench, words: Sequence[str]) -> list[list[str]]:
    """Milliseconds that modules take to load, by process and package, beyond those that plain python loads as well."""
    plain = imports(bench, [sys.executable, "-X", "importtime", *words])[-1]
    first, *_, last = imports(
        bench, [sys.executable, "-X", "importtime", *detrain(bench.new_folder(), "never", words)[1:]]
    )
    own = {name: ms for name, ms in last.items() if name not in plain}
    rows = []
    for where, found in (
        ("the command, which becomes the attempt", first),
        ("the attempt, beside the script's own", own),
    ):
        packages: dict[str, float] = defaultdict(float)
        for name, ms in found.items():
            package = name.partition(".")[0]
            packages[package if package in ("click", "detrain", "numpy", "h5py", "libcst") else "others"] += ms
        rows += [[where, package, f"{ms:.1f}"] for package, ms in sorted(packages.items(), key=lambda one: -one[1])]
    return rows


def imports(bench: Bench, command: Sequence[str]) -> list[dict[str, float]]:
    """Of each process in turn that a command becomes: module to the milliseconds that its own code took."""
    found: list[dict[str, float]] = []
    begins = ""
    done = subprocess.run(command, env=bench.environment, cwd=bench.folder, capture_output=True, text=True, check=True)
    for line in done.stderr.splitlines():
        if line.startswith("import time:") and "|" in line and "self" not in line:
            own_us, _, name = line.removeprefix("import time:").split("|")
            begins = begins or name
            if name == begins:  # what an interpreter loads first
                found.append({})
            found[-1][name.strip()] = float(own_us) / 1e3
    return found


# --- a whole program -------------------------------------------------------------------------------------------------


def measure_program(bench: Bench, report: Report, is_quick: bool) -> None:
    """The digits example from its start to its end, plain, deterministic, with hooks, with checkpoints."""
    epochs = "3" if is_quick else "25"

    def run(command: Callable[[list[str]], list[str]], *, is_fixed: bool) -> Finished:
        words = [str(DIGITS), "--epochs", epochs, "--patience", "1000"]
        return bench.run(command(words), is_fixed=is_fixed, cwd=bench.new_folder())

    variants = {
        "python": lambda: run(python, is_fixed=True),
        "python, deterministic kernels": lambda: run(deterministic, is_fixed=True),
        "detrain --every never": lambda: run(lambda w: detrain(bench.new_folder(), "never", w), is_fixed=False),
        "detrain": lambda: run(lambda w: detrain(bench.new_folder(), "auto", w), is_fixed=False),
    }
    repeats = 2 if is_quick else 5
    results = measure.alternate(variants, repeats)
    report.say(f"## examples/torch_digits, {epochs} epochs, 2 loader workers")
    columns = {
        "without start-up": lambda done: done.lines[-1][0] - done.lines[0][0],
        "whole": lambda done: done.total_s,
        "processor time": lambda done: done.cpu_s,
    }
    for name, seconds_of in columns.items():
        report.table(*program_table(name, {key: list(map(seconds_of, found)) for key, found in results.items()}))
    report.say(
        f"{repeats} runs each. Without start-up: from the first line that the script prints to its last. "
        "Processor time: of the whole, with the workers. Aim: at most 1.02 over deterministic kernels."
    )


def program_table(name: str, seconds: dict[str, list[float]], digits: int = 2) -> tuple[list[str], list[list[str]]]:
    """Seconds of every variant, and ratios to both plain ones."""
    plain, kernels = seconds["python"], seconds["python, deterministic kernels"]
    rows = [
        [key, spread(found, digits), spread(ratios(found, plain), 3), spread(ratios(found, kernels), 3)]
        for key, found in seconds.items()
    ]
    return [name, "seconds", "over python", "over deterministic"], rows


# --- TensorFlow ------------------------------------------------------------------------------------------------------


def measure_graphs(bench: Bench, report: Report, is_quick: bool) -> None:
    """A step in a graph, with a loop of its own and with Keras' loops: seconds per epoch, and how often the step was traced."""
    repeats, epochs = (2, "4") if is_quick else (7, "21")
    report.say("## TensorFlow, a step in a graph")
    for kind, what in {"function": "`tf.function` in a loop", "fit": "`model.fit`"}.items():
        words = [GRAPH_STEP, kind, epochs]
        commands = {
            "python": (partial(python, words), True),
            "python, deterministic kernels": (partial(deterministic, words, "tensorflow"), True),
            "detrain --every never": (lambda words=words: detrain(bench.new_folder(), "never", words), False),
            "detrain": (lambda words=words: detrain(bench.new_folder(), "auto", words), False),
        }
        variants = {
            name: lambda command=command, is_fixed=is_fixed: graph_epochs(bench.run(command(), is_fixed=is_fixed))
            for name, (command, is_fixed) in commands.items()
        }
        results = measure.alternate(variants, repeats)
        header, rows = program_table(
            what, {key: [found[0] for found in each] for key, each in results.items()}, digits=3
        )
        traces = [" ".join(sorted({str(found[1]) for found in each})) for each in results.values()]
        report.table([*header, "traced"], [[*row, count] for row, count in zip(rows, traces, strict=True)])
    report.say(
        f"{repeats} runs each, of {epochs} epochs with 100 batches; the median epoch of a run, without the first. "
        "Aim: at most 1.02 over deterministic kernels, traced as often."
    )


def graph_epochs(done: Finished) -> tuple[float, int]:
    """Of programs/graph_step.py: seconds of the median epoch without the first, and how often the step was traced."""
    found = json.loads(done.lines[-1][1])
    return median(found["epochs_s"][1:]), found["traces"]


if __name__ == "__main__":
    parts = {"loops": measure_loops, "startup": measure_startup, "program": measure_program}
    if find_spec("tensorflow") is not None:
        parts["tensorflow"] = measure_graphs
    measure.main("What the hooks cost", __doc__ or "", parts)
