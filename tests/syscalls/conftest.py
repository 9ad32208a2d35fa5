"""Programs with the preload library in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.world import preload

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def library() -> Path:
    if preload.library() is None:
        subprocess.run([sys.executable, "setup.py", "build_syscalls"], cwd=CHECKOUT, check=False, capture_output=True)
    path = preload.library()
    if path is None:
        pytest.skip("the preload library is not built and cannot be: no Linux, or no C compiler")
    return path


@pytest.fixture
def python(library: Path):
    """Run Python code with the library preloaded; `seed=None` leaves it passive. Returns what it printed."""

    def run(code: str, seed: str | None = "7", *args: str) -> str:
        return output([sys.executable, "-c", code, *args], library, seed)

    return run


def output(command: list[str], library: Path, seed: str | None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != preload.SEED_VARIABLE}
    environment |= {
        "LD_PRELOAD": str(library),
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": str(Path(preload.__file__).parents[2]),
    }
    if seed is not None:
        environment[preload.SEED_VARIABLE] = seed
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout
