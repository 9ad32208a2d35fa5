"""`detrain doctor` names what threatens determinism, worst first, with the line and a way out."""

from __future__ import annotations

import json

import pytest

CLEAN = """\
import os, torch
torch.manual_seed(0)
names = sorted(os.listdir("."))
model = torch.nn.Linear(2, 1)
"""
LOOP = "for batch in range(3):\n    model(torch.ones(1, 2)).sum().backward()\n"

#: A line, and what is said of it: level and a part of the text.
LINES = {
    "import time; torch.manual_seed(int(time.perf_counter() * 1e6))": ("risk", "a seed from time.perf_counter"),
    "from time import monotonic as now; import random; random.seed(now())": ("risk", "a seed from time.monotonic"),
    "import time; torch.manual_seed(time.time_ns())": ("risk", "a seed from time.time_ns"),
    "from concurrent.futures import as_completed; list(as_completed([]))": ("breaks", "in the order of their timing"),
    "import concurrent.futures as cf; cf.ThreadPoolExecutor(2)": ("risk", "runs threads in an order that differs"),
    "import numpy as np; np.empty(3)": ("risk", "what was in that memory before"),
    "import subprocess; subprocess.run(['true'])": ("note", "whose clock and random numbers are its own"),
    "torch.backends.cudnn.benchmark = True": ("breaks", "cuDNN chooses kernels by timing them"),
    "torch.backends.cudnn.deterministic = False": ("breaks", "cuDNN may use kernels that are not deterministic"),
    "f = torch.compile(model, mode='max-autotune')": ("breaks", "kernels are chosen by timing them"),
    "import threading; threading.Thread(target=print).start()": ("breaks", "starts a thread beside the script"),
    "import multiprocessing as mp; mp.Process(target=print).start()": ("breaks", "starts a process beside the script"),
    "import time\nwhile time.time() < 9e9:\n    model(torch.ones(1, 2)).sum().backward()": (
        "breaks",
        "how long a loop runs",
    ),
    "import time\nfor _ in range(9):\n    model.step()\n    if time.time() > 9e9: break": (
        "breaks",
        "how long a loop runs",
    ),
    "import time\nwhile time.time() < 9e9: pass": ("risk", "how long a loop runs"),
    "import requests; requests.get('http://x')": ("risk", "requests.get asks the network"),
    "import uuid; uuid.uuid1()": ("risk", "mixes in the process id"),
    "import uuid; uuid.uuid4()": ("note", "uuid.uuid4 is the same whenever this command is repeated"),
    "import wandb; wandb.init(project='p')": ("risk", "wandb.init draws the run's id"),
    "from comet_ml import Experiment; Experiment()": ("risk", "comet_ml.Experiment draws the run's id"),
    "from lightning.pytorch.loggers import WandbLogger; WandbLogger()": ("risk", "WandbLogger draws the run's id"),
    "input()": ("risk", "reads what a person types"),
    "import glob; glob.glob('*')": ("note", "is sorted under detrain, and by chance under python"),
    "torch.backends.cuda.matmul.allow_tf32 = True": ("note", "TF32 gives other bits"),
}


def findings(said) -> list[dict[str, str]]:
    """About the script, not about the machine that the test runs on."""
    return [one for one in json.loads(said.out) if "train.py" in one["where"] or "helper.py" in one["where"]]


def test_nothing_is_said_of_a_clean_script(detrain, tmp_path):
    (tmp_path / "train.py").write_text(CLEAN + LOOP)
    assert findings(detrain("doctor", "train.py", "--json")) == []


@pytest.mark.parametrize("line", LINES)
def test_a_threat_is_named_with_its_line(detrain, tmp_path, line: str):
    level, text = LINES[line]
    (tmp_path / "train.py").write_text(CLEAN + line + "\n")
    said = detrain("doctor", "train.py", "--json")
    first = findings(said)[0]
    assert (first["level"], text in first["what"]) == (level, True)
    number = int(first["where"].rpartition(":")[2])
    assert 5 <= number <= 5 + line.count("\n")
    assert first["advice"]
    assert said.status == (1 if level == "breaks" else 0)


def test_an_id_that_is_given_to_a_service_is_no_threat(detrain, tmp_path):
    (tmp_path / "train.py").write_text("import sys, wandb\nwandb.init(project='p', id=sys.argv[1])\n")
    assert findings(detrain("doctor", "train.py", "--json")) == []


def test_the_worst_comes_first_and_modules_beside_the_script_are_read(detrain, tmp_path):
    (tmp_path / "train.py").write_text("import glob, helper\nprint(glob.glob('*'))\n")
    (tmp_path / "helper.py").write_text("import torch\ntorch.backends.cudnn.benchmark = True\n")
    said = detrain("doctor", "train.py")
    assert said.status == 1
    levels = [line.partition(":")[0] for line in said.out.splitlines() if not line.startswith(" ")]
    assert levels == sorted(levels, key=("breaks", "risk", "note").index)
    assert "breaks: helper.py:2: cuDNN chooses kernels by timing them" in said.out


def test_what_the_last_run_could_not_capture_is_named(detrain, tmp_path):
    (tmp_path / "train.py").write_text(
        "import socket, torch\nline = socket.socket()\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for epoch in range(2):\n    for batch in range(3):\n        model(torch.ones(1, 2)).sum().backward()\n        optimizer.step()\n"
    )
    assert detrain("run", "--every", "epoch", "train.py").status == 0
    said = detrain("doctor", "train.py")
    assert said.status == 1
    assert "train.line (socket:socket) is not in the checkpoint" in said.out


def test_a_file_that_is_no_python_is_a_usage_error(detrain, tmp_path):
    (tmp_path / "train.py").write_text("for")
    said = detrain("doctor", "train.py")
    assert (said.status, said.out) == (2, "")
    assert "train.py cannot be parsed" in said.err


def test_a_missing_preload_library_breaks(detrain, monkeypatch):
    from detrain.doctor import surroundings
    from detrain.world import preload

    monkeypatch.setattr(preload, "library", lambda: None)
    found = surroundings.of_machine()
    assert ("breaks", "machine") in [(one.level, one.where) for one in found]
    assert any("preload library is not built" in one.what for one in found)
