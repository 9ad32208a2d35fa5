"""What `make dist` builds: wheels that run where nothing of the checkout is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("build", reason="the frontend of `make dist` is not installed: pip install build")

ROOT = Path(__file__).parents[2]
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*")
#: Run by an installed detrain: where it is, whether the library is there, and the tracer, which is a link in the checkout.
ASKING = """
import detrain.tracer, detrain.world.preload as preload, sys
from detrain.pipeline import presets
print(detrain.__file__.startswith(sys.argv[1]), preload.library() is not None)
"""


def built(folder: Path, **variables: str) -> Path:
    """The wheel of a copy of the sources."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("detrain", "tracer", "syscalls"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=_NOT_COPIED)
    environment = {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **variables}
    words = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), "."]
    done = subprocess.run(
        [sys.executable, *words], cwd=source, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.mark.full
@pytest.mark.parametrize(
    ("variables", "platform"),
    [
        pytest.param({}, "linux_", marks=pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")),
        ({"DETRAIN_PURE": "1"}, "any.whl"),
    ],
    ids=["with the library", "for any machine"],
)
def test_a_wheel_has_the_package_and_the_library_if_it_says_so(tmp_path: Path, variables, platform) -> None:
    wheel = built(tmp_path, **variables)
    assert wheel.name.startswith("detrain_run-")
    assert f"-py3-none-{platform}" in wheel.name
    target = tmp_path / "installed"
    words = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, *words], check=True)
    told = subprocess.run(
        [sys.executable, "-c", ASKING, str(target)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(target)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.split() == ["True", str(not variables)]
    assert list(target.glob("tracer")) == []
