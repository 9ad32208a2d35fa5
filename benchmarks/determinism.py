"""What determinism costs: whole runs of the examples under `detrain run`, over `detrain run --nondeterministic`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import measure
from measure import Bench, Report, detrain, ratios, spread

#: By device: arguments that make a run take some seconds.
EXAMPLES = {
    "cpu": {
        "torch_digits": ["--epochs", "15", "--print-every", "1000"],
        "torch_char_lm": ["--max_iters=200"],
    },
    "cuda": {
        "torch_digits": ["--device", "cuda", "--epochs", "15", "--print-every", "1000"],
        "torch_char_lm": ["--device=cuda", "--n_layer=6", "--n_head=6", "--n_embd=384", "--batch_size=64", "--block_size=256",
                          "--max_iters=200", "--eval_interval=100"],
    },
}  # fmt: skip


def variants(bench: Bench, name: str, arguments: list[str]) -> dict[str, Callable[[], object]]:
    """The two ways to run an example; each gives seconds."""
    words = [str(measure.EXAMPLES / name / "train.py"), *arguments]

    def run(*options: str) -> float:
        folder = bench.new_folder()
        command = detrain(folder / "run", "never", words)
        return bench.run([*command[:4], *options, *command[4:]], is_fixed=False, cwd=folder).total_s

    return {"--nondeterministic": lambda: run("--nondeterministic"), "detrain run": run}


def measure_on(device: str, bench: Bench, report: Report, is_quick: bool) -> None:
    """One table."""
    repeats = 1 if is_quick else 7
    rows = []
    for name, arguments in EXAMPLES[device].items():
        results = measure.alternate(variants(bench, name, arguments), repeats)
        base = results["--nondeterministic"]
        rows += [[f"{name}: {key}", spread(found), spread(ratios(found, base), 3)] for key, found in results.items()]
    report.table(["", "seconds", "over --nondeterministic"], rows)
    report.say(f"{repeats} runs each, without checkpoints, from the start of the process to its end, on {device}.")


def measure_cpu(bench: Bench, report: Report, is_quick: bool) -> None:
    """On the processor."""
    measure_on("cpu", bench, report, is_quick)


def measure_cuda(bench: Bench, report: Report, is_quick: bool) -> None:
    """On a CUDA device, with a larger character model."""
    name = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    if not name:
        report.say("There is no CUDA device.")
        return
    report.say(f"Device: {name}.")
    measure_on("cuda", bench, report, is_quick)


if __name__ == "__main__":
    measure.main("What determinism costs", __doc__ or "", {"cpu": measure_cpu, "cuda": measure_cuda})
