"""Loaders that a script calls by itself: traced in two rounds, then run, killed and resumed."""

import ast
import subprocess
import sys

import pytest

from .harness import Moment, Place, differences, environment, live, uninterrupted
from .programs import Program
from .programs.prelude import PRELUDE

SCRIPT = (
    PRELUDE
    + """\
import sys

from data import Data

dataset = Data(sys.argv[1])
model = nn.Sequential(nn.Embedding(32, 8), nn.LSTM(8, 16, batch_first=True))
head = nn.Linear(16, 32)
optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)
for epoch in range(2):
    for batch in range(20):
        try:
            x, y = dataset.slide_seq2seq_batch(4, length=6)
        except ValueError:
            continue
        hidden, _ = model(torch.as_tensor(x))
        loss = F.cross_entropy(head(F.dropout(hidden, 0.1)).flatten(0, 1), torch.as_tensor(y).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(epoch, batch, loss.item())
save(model=model, head=head, optimizer=optimizer)
"""
)

#: Reads a folder of event sequences at random offsets; ordinary objects and a generator of its own.
PLAIN = """\
import os
import random


class Data:
    def __init__(self, folder):
        self.files = sorted(os.listdir(folder))
        self.folder = folder
        self.rng = random.Random(3)

    def _read(self, name):
        with open(os.path.join(self.folder, name)) as file:
            return [int(word) for word in file.read().split()]

    def slide_seq2seq_batch(self, batch_size, length):
        xs, ys = [], []
        for name in self.rng.sample(self.files, batch_size):
            events = self._read(name)
            start = self.rng.randrange(0, len(events) - length)
            if events[start] == 0:
                raise ValueError("begins with a rest")
            xs.append(events[start : start + length])
            ys.append(events[start + 1 : start + 1 + length])
        return xs, ys
"""

#: The same from a database, whose cursors say nothing of where they are.
DATABASE = """\
import os
import sqlite3


class Data:
    def __init__(self, folder):
        self.names = sorted(os.listdir(folder))
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table tunes (events text)")
        for name in self.names:
            with open(os.path.join(folder, name)) as file:
                self.database.execute("insert into tunes values (?)", [file.read().strip()])
        self.rows = iter(())

    def _row(self):
        for (events,) in self.rows:
            return [int(word) for word in events.split()]
        self.rows = self.database.execute("select events from tunes")
        return self._row()

    def slide_seq2seq_batch(self, batch_size, length):
        rows = [self._row() for _ in range(batch_size)]
        if rows[0][0] == 0:
            raise ValueError("begins with a rest")
        return [row[:length] for row in rows], [row[1 : length + 1] for row in rows]
"""

#: The same through a thread that reads ahead.
THREAD = """\
import itertools
import os
import queue
import threading


class Data:
    def __init__(self, folder):
        self.files = sorted(os.listdir(folder))
        self.ready = queue.Queue(3)
        self.thread = threading.Thread(target=self._read_ahead, args=(folder,), daemon=True)
        self.thread.start()

    def _read_ahead(self, folder):
        for name in itertools.cycle(self.files):
            with open(os.path.join(folder, name)) as file:
                self.ready.put([int(word) for word in file.read().split()])

    def slide_seq2seq_batch(self, batch_size, length):
        rows = [self.ready.get() for _ in range(batch_size)]
        if rows[0][0] == 0:
            raise ValueError("begins with a rest")
        return [row[:length] for row in rows], [row[1 : length + 1] for row in rows]
"""


def sequences(count: int) -> dict[str, str]:
    """Files of small numbers; some begin with 0."""
    return {
        f"{number:03}.txt": " ".join(str((number * number + 7 * step * number + step) % 32) for step in range(12))
        + "\n"
        for number in range(count)
    }


def program(loader: str) -> Program:
    folders = {f"piano/{name}": text for name, text in sequences(24).items()}
    folders.update({f"piano1/{name}": text for name, text in sequences(31).items()})
    return Program("custom loader", SCRIPT, {"data.py": loader, **folders}, arguments=("piano",))


def trace(place: Place) -> str:
    """Both rounds; returns what was said."""
    words = [
        "trace",
        "--ckpt-dir",
        str(place.run_directory),
        "--vary",
        "piano1",
        "--diff-size",
        "7",
        "train.py",
        "piano",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "detrain", *words], cwd=place.work, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("loader", "is_persistent"),
    [
        pytest.param(PLAIN, True, id="plain", marks=pytest.mark.full),
        pytest.param(DATABASE, False, id="database", marks=pytest.mark.full),
        pytest.param(THREAD, False, id="thread", marks=pytest.mark.full),
    ],
)
def test_custom_loader_is_traced_then_killed_and_resumed_with_the_same_bits(tmp_path, loader, is_persistent):
    expected = uninterrupted(tmp_path / "reference", program(loader))
    place = Place(tmp_path / "killed", program(loader))
    said = trace(place)
    assert "data loader: data.Data, asked by Data.slide_seq2seq_batch at train.py:" in said
    info = ast.literal_eval((place.run_directory / "inst.info").read_text())
    assert info["dataloader"]["next"] == ("data", "Data.slide_seq2seq_batch")
    assert info["dataloader"]["persistent"] is is_persistent
    assert info["loop_type"] == {"type": "ON_CUSTOM"}
    life = live(place, "3batches", [Moment(batches=9), Moment(batches=5, is_whole_group=False)])
    assert differences(expected, life) == []
    assert len(life.resumes) == 2
