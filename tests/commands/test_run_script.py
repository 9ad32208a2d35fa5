"""`./run`: what it installs where nothing is. A stub stands for Python: it makes environments, and notes what pip is told to install."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from detrain.doctor import imports

ROOT = Path(__file__).parents[2]
STUB = """#!/bin/sh
case "$*" in
    "-m venv "*)
        mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
        printf '#!/bin/sh\\necho "$@"\\n' >"$3/bin/detrain" && chmod +x "$3/bin/detrain" ;;
    *"pip install"*) for word; do :; done; echo "$word" >>"$STUB_LOG" ;;
    *"pip --version"|*build_syscalls*|--version) ;;
    "- "*) exit 1 ;;
    *) exec REAL "$@" ;;
esac
"""


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.nn as nn", ["torch"]),
        ("from tensorflow import keras", ["tensorflow"]),
        ("def f():\n    import keras", ["tensorflow"]),
        ("import keras, torch", ["tensorflow", "torch"]),
        ("import numpy", []),
        ("import model", ["tensorflow"]),
        ("from parts import blocks", ["torch"]),
        ("from parts.blocks import x", ["torch"]),
        ("from torchvision import models\nimport absent", []),
        ("x = (", []),
    ],
)
def test_frameworks_are_those_that_the_scripts_own_files_import(
    tmp_path: Path, source: str, expected: list[str]
) -> None:
    files = {"train.py": source, "model.py": "import tensorflow as tf", "parts/__init__.py": "", "parts/blocks.py": "from .deep import y",
             "parts/deep.py": "import torch", "other.py": "import torch"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert imports.extras([str(tmp_path / "train.py"), "--lr", "3"]) == expected


def test_script_is_found_behind_options_in_a_folder_and_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    for name, text in {
        "pkg/__main__.py": "import keras",
        "pkg/train.py": "import torch",
        "last.h5": "\0",
        "train.py": "import torch",
    }.items():
        (tmp_path / name).write_text(text)
    assert imports.extras(["--from", "last.h5", "train.py", "pkg/__main__.py"]) == ["torch"]
    assert imports.extras(["--ckpt-dir", "out", "pkg"]) == ["tensorflow"]
    assert imports.extras(["-m", "pkg"]) == ["tensorflow"]
    assert imports.extras(["-m", "pkg.train", "last.h5"]) == ["torch"]
    assert (
        imports.extras(["-m", "absent"])
        == imports.extras(["absent.py"])
        == imports.extras([])
        == imports.extras(["-m"])
        == []
    )


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[str, list[str]]]:
    """`./run WORDS` in a checkout where nothing is installed: what it prints, and what pip was told to install so far."""
    checkout, tools = tmp_path / "checkout", tmp_path / "tools"
    (checkout / "detrain" / "doctor").mkdir(parents=True)
    tools.mkdir()
    for name in ("run", "pyproject.toml", "setup.py", "constraints.txt", "detrain/doctor/imports.py"):
        shutil.copy(ROOT / name, checkout / name)
    shutil.copytree(ROOT / "syscalls", checkout / "syscalls")
    for name in ("python3", "python3.11"):
        (tools / name).write_text(STUB.replace("REAL", sys.executable))
        (tools / name).chmod(stat.S_IRWXU)
    (checkout / "flow.py").write_text("import tensorflow")
    (checkout / "torchy.py").write_text("import torch")
    log = tmp_path / "log"

    def call(*words: str, status: int = 0) -> tuple[str, list[str]]:
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "STUB_LOG": str(log), "CC": "absent"}
        done = subprocess.run(
            ["bash", checkout / "run", *words],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stderr
        return done.stdout, log.read_text().split() if log.exists() else []

    return call


def test_each_framework_is_installed_when_a_script_needs_it_and_once(run: Callable[..., tuple[str, list[str]]]) -> None:
    assert run("torchy.py", "--lr", "1") == ("run torchy.py --lr 1\n", [".[torch,examples,report]"])
    assert run("torchy.py")[1] == [".[torch,examples,report]"]
    assert run("--every", "epoch", "flow.py")[1] == [".[torch,examples,report]", ".[tensorflow,examples,report]"]
    assert run("flow.py")[1] == run("torchy.py")[1] == [".[torch,examples,report]", ".[tensorflow,examples,report]"]
    assert run("--setup-only", "dev")[1][2:] == [".[torch,tensorflow,examples,dev]"]
    assert run("--setup-only", "other", status=2)[1] == run("--setup-only")[1] == run("flow.py")[1]


def test_tensorflow_alone_is_installed_for_a_script_of_its(run: Callable[..., tuple[str, list[str]]]) -> None:
    assert run("flow.py") == ("run flow.py\n", [".[tensorflow,examples,report]"])
