"""Modules that a script's set-up code writes and imports: an attempt may be killed before it has written them again."""

import subprocess
import sys
from pathlib import Path

import pytest

from .harness import environment

SCRIPT = """
import os, signal, sys
from pathlib import Path
number = int(os.environ["NUMBER"])
if number == 2:
    os.kill(os.getpid(), signal.SIGKILL)
made = Path("made")
made.mkdir(exist_ok=True)
(made / "helper.py").write_text(f"scale = {VALUE}")
sys.path.insert(0, str(made.resolve()))
import helper
import torch
torch.manual_seed(0)
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(4):
    for batch in range(3):
        optimizer.zero_grad()
        (net(torch.ones(1, 2)).sum() * helper.scale).backward()
        optimizer.step()
    if epoch == 2 and os.environ["NUMBER"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
print("end", [one.item() for one in net.weight.flatten()])
"""


def run(folder: Path, number: int) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "detrain", "run", "--every", "epoch", "train.py"]
    return subprocess.run(
        words, cwd=folder, env={**environment(), "NUMBER": str(number)}, capture_output=True, text=True, check=False
    )


@pytest.mark.full
@pytest.mark.parametrize(("value", "status"), [("3", 0), ("3 if number < 3 else 4", 2)], ids=["the same", "another"])
def test_one_that_is_not_there_yet_has_not_changed(tmp_path, value, status):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.replace("VALUE", value))
    assert run(folder, 1).returncode == -9
    assert run(folder, 2).returncode == -9
    assert not (folder / "made" / "helper.py").exists(), "the set-up code finds what the first attempt found"
    ended = run(folder, 3)
    assert ended.returncode == status, ended.stderr
    assert ("resumed at" in ended.stderr) == (status == 0)
    assert ("the source has changed since" in ended.stderr) == (status != 0)
