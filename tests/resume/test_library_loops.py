"""Training in an installed library's loops: traced once, then run, killed and resumed."""

import subprocess
import sys
from pathlib import Path

import pytest

from .harness import Moment, Place, differences, environment, live, uninterrupted
from .programs import Program
from .programs.prelude import PRELUDE

TRAINER = """\
class Trainer:
    def __init__(self, model, optimizer, epochs):
        self.model, self.optimizer, self.epochs = model, optimizer, epochs
        self.callbacks = []
        self.total = 0.0

    def fit(self, loader):
        for epoch in range(self.epochs):
            self.run_epoch(loader, epoch)

    def run_epoch(self, loader, epoch):
        for number, batch in enumerate(loader):
            loss = self.model.training_step(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.total += loss.item()
            for callback in self.callbacks:
                callback(epoch, number, self.total)
"""

SCRIPT = (
    PRELUDE
    + """\
import site
import sys

sys.path.append(site.getusersitepackages())
from trainers import Trainer


class Lit(Net):
    def training_step(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])


model = Lit()
trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=0.01), 3)
trainer.callbacks.append(log)
trainer.fit(DataLoader(Points(), 4, shuffle=True))
save(model=model, optimizer=trainer.optimizer)
"""
)
PACKAGES = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")


@pytest.mark.full
def test_training_in_a_library_is_resumed_with_the_same_bits_once_it_has_been_traced(tmp_path, monkeypatch):
    base = tmp_path / "base"
    (base / PACKAGES).mkdir(parents=True)
    (base / PACKAGES / "trainers.py").write_text(TRAINER)
    monkeypatch.setenv("PYTHONUSERBASE", str(base))
    program = Program("library", SCRIPT)
    expected = uninterrupted(tmp_path / "reference", program)
    assert "If the loop is in a library, `detrain trace` finds it" in expected.attempts[0].stderr
    place = Place(tmp_path / "killed", program)
    words = [sys.executable, "-m", "detrain", "trace", "--ckpt-dir", str(place.run_directory), "train.py"]
    traced = subprocess.run(words, cwd=place.work, env=environment(), capture_output=True, text=True)
    assert "trainers.py:8 (epoch) > trainers.py:12 (batch)" in traced.stderr
    life = live(place, "3batches", [Moment(batches=20), Moment(batches=5)])
    assert differences(expected, life) == []
    assert len(life.resumes) == 2
