"""Training in an installed library's loops, which the first attempt finds: killed and resumed."""

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


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The folder of installed packages."""
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "base"))
    folder = tmp_path / "base" / PACKAGES
    folder.mkdir(parents=True)
    return folder


def test_training_in_a_library_is_found_by_the_first_attempt_and_resumed_with_the_same_bits(tmp_path, packages):
    (packages / "trainers.py").write_text(TRAINER)
    program = Program("library", SCRIPT)
    expected = uninterrupted(tmp_path / "reference", program)
    life = live(Place(tmp_path / "killed", program), "3batches", [Moment(batches=20), Moment(batches=5)])
    assert "training loop found: trainers.py:8 (epoch) > trainers.py:12 (batch)" in life.attempts[0].stderr
    assert differences(expected, life) == []
    assert len(life.resumes) == 2


#: The loop names nothing that trains; what it calls does, in another file.
CALLS = TRAINER.replace(
    TRAINER[TRAINER.index("            loss = ") : TRAINER.index("            self.total")],
    "            loss = one_step(self, batch)\n",
)
STEP = """\
def one_step(trainer, batch):
    loss = trainer.model.training_step(batch)
    trainer.optimizer.zero_grad()
    loss.backward()
    trainer.optimizer.step()
    return loss
"""


@pytest.mark.full
def test_a_library_whose_loops_name_nothing_that_trains_is_resumed_once_it_has_been_traced(tmp_path, packages):
    (packages / "trainers.py").write_text("from steps import one_step\n\n\n" + CALLS)
    (packages / "steps.py").write_text(STEP)
    program = Program("library", SCRIPT)
    expected = uninterrupted(tmp_path / "reference", program)
    assert "If the loop is in a library, `detrain trace` finds it" in expected.attempts[0].stderr
    place = Place(tmp_path / "killed", program)
    words = [sys.executable, "-m", "detrain", "trace", "--ckpt-dir", str(place.run_directory), "train.py"]
    traced = subprocess.run(words, cwd=place.work, env=environment(), capture_output=True, text=True)
    assert "trainers.py:11 (epoch) > trainers.py:15 (batch)" in traced.stderr
    life = live(place, "3batches", [Moment(batches=20), Moment(batches=5)])
    assert differences(expected, life) == []
    assert len(life.resumes) == 2
