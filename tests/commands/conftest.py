"""Real runs of a tiny torch script: one to its end, one killed and resumed, one killed and left so."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forkserver import run, server_for

SCRIPT = """\
import os, sys, torch
torch.manual_seed(1)
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
model = torch.nn.Linear(4, 3)
opt = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 3))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
losses = []
for epoch in range(4):
    for x, y in loader:
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if len(losses) == int(os.environ.get("DIE_AT", "0")):
            os.kill(os.getpid(), 9)
print("sum", sum(losses))
"""
PASSED_ON = {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "TMPDIR"}
TIMEOUT_S = 120


@dataclass
class Said:
    """What a command answered."""

    status: int
    out: str
    err: str


def call(*words: object, folder: Path, is_whole: bool = False, **env: str) -> Said:
    """`python -m detrain WORDS…` in `folder`.

    `is_whole`: started as a user starts it, never forked. Libraries draw entropy while they are loaded, which a forked attempt has
    behind it.
    """
    texts = ["-m", "detrain", *map(str, words)]
    own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    own["PYTHONPATH"] = str(Path(__file__).parents[2])
    own["DETRAIN_WAIT_FOR_DISK"] = "1"  # scripts that kill themselves in a batch are to find the checkpoint before it
    own.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))
    scripts = [folder / word for word in texts if word.endswith(".py") and (folder / word).is_file()]
    is_forked = words[0] == "run" and len(scripts) == 1 and not is_whole
    server = server_for(scripts[0].read_text(encoding="utf-8"), {**own, **env}, own) if is_forked else None
    if server is not None:
        done = run(server, texts, folder, {**own, **env}, TIMEOUT_S)
    else:
        done = subprocess.run(
            [sys.executable, *texts], cwd=folder, env={**own, **env}, capture_output=True, text=True, timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)


@dataclass
class Runs:
    """A folder with `train.py` and the run directories A (to its end), B (killed, resumed), K (killed)."""

    folder: Path
    whole: Said
    resumed: Said

    def detrain(self, *words: object, **env: str) -> Said:
        return call(*words, folder=self.folder, **env)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(SCRIPT)
    whole = call("run", "--ckpt-dir", "A", "--every", "2batches", "train.py", folder=folder)
    assert whole.status == 0, whole.err
    killed = call("run", "--ckpt-dir", "K", "--every", "epoch", "train.py", folder=folder, DIE_AT="11")
    assert killed.status == -9, killed.err
    shutil.copytree(folder / "K", folder / "B")
    resumed = call("run", "--ckpt-dir", "B", "--every", "epoch", "train.py", folder=folder)
    assert resumed.status == 0, resumed.err
    return Runs(folder, whole, resumed)


@pytest.fixture
def killed(runs: Runs, tmp_path: Path) -> Path:
    """A run directory of a killed run of `train.py`, the test's own."""
    return Path(shutil.copytree(runs.folder / "K", tmp_path / "run"))


@pytest.fixture
def detrain(tmp_path: Path) -> Callable[..., Said]:
    """Runs a command in the test's own folder."""
    return lambda *words, **env: call(*words, folder=tmp_path, **env)
