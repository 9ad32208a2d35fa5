"""What determinism costs: whole runs of the examples under `detrain run`, over `detrain run --nondeterministic`."""

from __future__ import annotations

from collections.abc import Callable

import measure
from measure import Bench, Report, detrain, ratios, spread

#: Arguments that make a run take some seconds.
EXAMPLES = {
    "torch_digits": ["--epochs", "15", "--print-every", "1000"],
    "torch_char_lm": ["--max_iters=200"],
}


def variants(bench: Bench, name: str) -> dict[str, Callable[[], object]]:
    """The two ways to run an example; each gives seconds."""
    words = [str(measure.EXAMPLES / name / "train.py"), *EXAMPLES[name]]

    def run(*options: str) -> float:
        folder = bench.new_folder()
        command = detrain(folder / "run", "never", words)
        return bench.run([*command[:4], *options, *command[4:]], is_fixed=False, cwd=folder).total_s

    return {"--nondeterministic": lambda: run("--nondeterministic"), "detrain run": run}


def measure_examples(bench: Bench, report: Report, is_quick: bool) -> None:
    """One table."""
    repeats = 1 if is_quick else 7
    rows = []
    for name in EXAMPLES:
        results = measure.alternate(variants(bench, name), repeats)
        base = results["--nondeterministic"]
        rows += [[f"{name}: {key}", spread(found), spread(ratios(found, base), 3)] for key, found in results.items()]
    report.table(["", "seconds", "over --nondeterministic"], rows)
    report.say(f"{repeats} runs each, without checkpoints, from the start of the process to its end, on the CPU.")


if __name__ == "__main__":
    measure.main("What determinism costs", __doc__ or "", {"examples": measure_examples})
