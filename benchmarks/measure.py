"""What the benchmarks share: processes started alike, runs that alternate, medians, the machine in words, tables."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from detrain.launch.environment import fix_address_space

PROGRAMS = Path(__file__).with_name("programs")
EXAMPLES = Path(__file__).parent.with_name("examples")

_ENVIRONMENT_SCRIPT = "import json, os; print(json.dumps(dict(os.environ)))"


@dataclass(frozen=True)
class Finished:
    """A process that has ended. Times count from just before it was started."""

    total_s: float
    cpu_s: float  # its own and that of all its children, user and system
    lines: list[tuple[float, str]]  # when a line of standard output came, and the line
    errors: str
    status: int


class Bench:
    """The two environments in which everything runs: the user's, and what detrain makes of it."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.fixed_environment = self._ask_detrain()
        self._count = 0

    def _ask_detrain(self) -> dict[str, str]:
        """The environment that detrain gives a script, asked of detrain itself so that it cannot be a different one."""
        script = self.folder / "environment.py"
        script.write_text(_ENVIRONMENT_SCRIPT)
        command = detrain(self.folder / "environment", "never", [str(script)])
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def new_folder(self) -> Path:
        """A folder that no run has used."""
        self._count += 1
        path = self.folder / f"run-{self._count}"
        path.mkdir()
        return path

    def start(
        self, command: Sequence[str], *, is_fixed: bool, cwd: Path | None = None
    ) -> tuple[subprocess.Popen, float]:
        """Start a process; returns it and when that was. `is_fixed`: in detrain's environment (for plain `python`).

        Address-space randomisation is off for all, as detrain switches it off.
        """
        began_s = time.monotonic()
        process = subprocess.Popen(
            command,
            env=self.fixed_environment if is_fixed else self.environment,
            cwd=cwd or self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=fix_address_space,
        )
        return process, began_s

    def run(self, command: Sequence[str], *, is_fixed: bool, cwd: Path | None = None) -> Finished:
        """Run a process to its end; standard error must be small. Raises `RuntimeError` if it fails."""
        process, began_s = self.start(command, is_fixed=is_fixed, cwd=cwd)
        assert process.stdout is not None
        assert process.stderr is not None
        lines = [(time.monotonic() - began_s, line.rstrip("\n")) for line in process.stdout]
        errors = process.stderr.read()
        _, state, usage = os.wait4(process.pid, 0)
        total_s = time.monotonic() - began_s
        process.returncode = os.waitstatus_to_exitcode(state)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{errors}")
        return Finished(total_s, usage.ru_utime + usage.ru_stime, lines, errors, process.returncode)


def python(words: Sequence[str]) -> list[str]:
    """The command for plain `python`."""
    return [sys.executable, *words]


def deterministic(words: Sequence[str], framework: str = "torch") -> list[str]:
    """The command for `python` with detrain's deterministic settings of the framework, and nothing else of detrain's."""
    return [sys.executable, str(PROGRAMS / "deterministic.py"), framework, *words]


def detrain(directory: Path, every: str, words: Sequence[str]) -> list[str]:
    """The command for `detrain run` in this run directory."""
    options = ["--ckpt-dir", str(directory), "--every", every]
    return [sys.executable, "-m", "detrain", "run", *options, *words]


def alternate(variants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list]:
    """Run every variant in turn, `repeats` times over, so that a slow minute of the machine hits them all alike.

    Every other round goes backwards: then none always follows the same one.
    """
    results: dict[str, list] = {name: [] for name in variants}
    is_terminal = sys.stderr.isatty()
    for number in range(repeats):
        for name in list(variants)[:: 1 if number % 2 == 0 else -1]:
            if is_terminal:
                print(f"\r\x1b[K{number + 1}/{repeats} {name}", end="", file=sys.stderr, flush=True)
            results[name].append(variants[name]())
    if is_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return results


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median and range: `1.20 (1.10–1.42)`."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def differences(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Of runs in the same round."""
    return [value - other for value, other in zip(values, base, strict=True)]


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Of runs in the same round."""
    return [value / other for value, other in zip(values, base, strict=True)]


def error_of_median(values: Sequence[float]) -> float:
    """Its standard error, by the quartiles, as if the values were normal: 1.25 sigma / sqrt(n); 0 of a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4)
    return 1.25 * 0.74 * (high - low) / len(values) ** 0.5


def _version(name: str) -> str:
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        return f"no {name}"


def machine(threads: int) -> str:
    """One line on what this was measured on."""
    model = platform.processor() or platform.machine()
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = next(line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = os.getloadavg()[0]
    return (
        f"{model}, {len(os.sched_getaffinity(0))} cores ({threads} thread{'s' * (threads != 1)} for torch), "
        f"load {load:.1f} at the start, Python {platform.python_version()}, "
        f"{_version('torch')}, {_version('tensorflow')}"
    )


class Report:
    """Paragraphs and tables as Markdown: to standard output as they come, and to a file at the end."""

    def __init__(self, title: str) -> None:
        self._parts: list[str] = []
        self._figures: dict[str, float] = {}
        self.say(f"# {title}")

    def figure(self, name: str, values: Sequence[float]) -> None:
        """One that there is an aim for (`aims.py`): the median, and beside it its standard error."""
        self._figures[name] = statistics.median(values)
        self._figures[f"{name}, error"] = error_of_median(values)

    def say(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(text)
        print(text + "\n", flush=True)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns padded, so that it reads as well in a terminal; all but the first to the right."""
        widths = [max(2, *(len(row[n]) for row in [header, *rows])) for n in range(len(header))]
        rule = [("-" * width if n == 0 else "-" * (width - 1) + ":") for n, width in enumerate(widths)]
        lines = [
            "| " + " | ".join(c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))) + " |"
            for row in [header, rule, *rows]
        ]  # fmt: skip
        self.say("\n".join(lines))

    def write(self, path: Path | None) -> None:
        """Everything that was said, if a file was asked for; beside it the figures, and those of an earlier report that are not here."""
        if path is None:
            return
        path.write_text("\n\n".join(self._parts) + "\n", encoding="utf-8")
        if self._figures:
            beside = path.with_suffix(".json")
            earlier = json.loads(beside.read_text(encoding="utf-8")) if beside.exists() else {}
            figures = {name: round(value, 3) for name, value in {**earlier, **self._figures}.items()}
            beside.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(title: str, doc: str, measurements: Mapping[str, Callable[[Bench, Report, bool], None]]) -> None:
    """The command line of a benchmark: run what was asked for, in a temporary folder."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(
        "--quick", action="store_true", help="few and short runs: does it work, and about what comes out"
    )
    parser.add_argument("--only", choices=list(measurements), action="append", help="leave out the others")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads for torch (default %(default)s)")
    arguments = parser.parse_args()
    report = Report(title)
    report.say(f"{machine(arguments.threads)}. Medians, in parentheses the range.")
    with tempfile.TemporaryDirectory(prefix="detrain-bench-") as folder:
        bench = Bench(Path(folder), arguments.threads)
        for name, measure in measurements.items():
            if not arguments.only or name in arguments.only:
                measure(bench, report, arguments.quick)
    report.write(arguments.output)
