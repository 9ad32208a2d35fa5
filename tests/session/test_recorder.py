"""The ledger of one attempt, and of a later one that does the same batches again: in one process, on arrays."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest

import detrain.adapters.numpy  # noqa: F401 - registers the handlers
from detrain.loops.position import Position
from detrain.session import recorder as module
from detrain.session.recorder import Recorder
from detrain.state.walk import Walk
from detrain.store import ledger


class Training:
    """A model of two arrays, one of which is larger than a piece; data that never changes; a generator."""

    def __init__(self, path):
        self.weight, self.bias = np.zeros(400_000), np.zeros(3)
        self.data = np.arange(100.0)
        self.generator = np.random.RandomState(0)
        self.at, self.loop = Position(), SimpleNamespace(nest=[])
        self.told: list[tuple[int, str]] = []
        self.recorder = Recorder(
            path, lambda: {"numpy": self.generator}, lambda batch, leaf: self.told.append((batch.batches, leaf))
        )

    def scan(self):
        walk = Walk()
        for name in ("weight", "bias", "data"):
            walk.root(name, getattr(self, name))
        self.recorder.scan(walk.run(), self.at.batches, self.loop)

    def header(self, now_s):
        self.loop.nest = [SimpleNamespace(ordinal=0, iteration=self.at.batches)]
        self.recorder.at_header(self.at, self.loop, now_s)
        self.at.begin_batch()

    def batch(self, meddle=lambda _: None):
        loss = float(self.generator.random())
        self.recorder.add_losses([lambda: (struct.pack("<d", loss), [loss])])
        self.weight[::7] += loss
        self.bias -= loss
        meddle(self)

    def train(self, num_batches, scan_at=3, meddles=None):
        for number in range(num_batches):
            self.loop.nest = [SimpleNamespace(ordinal=0, iteration=self.at.batches)]
            if number == scan_at or self.recorder.is_to_scan(self.at.batches, self.loop):
                self.scan()
            self.header(1e9)  # so late that every batch may have its record
            self.batch((meddles or {}).get(number, lambda _: None))
        self.header(1e9)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger"


def test_windows_move_over_what_changes_and_over_nothing_else(path):
    one = Training(path)
    one.recorder.begin(1, 0)
    one.train(20)
    found = ledger.read(path)
    assert len(found.batches) == 21
    names = {name for names in found.lists.values() for name, _ in names}
    assert names == {"weight", "bias"}
    assert one.told == []
    assert not one.recorder.has_expectations


def test_an_attempt_that_does_the_same_is_compared_and_nothing_is_told(path):
    first = Training(path)
    first.recorder.begin(1, 0)
    first.train(20)
    again = Training(path)
    again.recorder.begin(2, 0)
    assert again.recorder.has_expectations
    again.train(20)
    assert again.told == []
    assert again.recorder.num_compared == 21
    assert not again.recorder.has_expectations


def flip(training):
    training.weight.view(np.uint64)[399_999] ^= 1


@pytest.mark.parametrize(
    ("meddle", "leaf"),
    [
        (flip, "weight"),
        (lambda training: training.bias.__setitem__(1, 7.0), "bias"),
        (lambda training: training.generator.random(), "a generator of random numbers"),
        (lambda training: training.recorder.add_losses([lambda: (b"another", [])]), "a loss"),
    ],
    ids=["one bit of a large array", "a small array", "a draw", "a loss"],
)
def test_the_first_batch_that_differs_is_told_with_its_leaf(path, meddle, leaf):
    first = Training(path)
    first.recorder.begin(1, 0)
    first.train(20)
    again = Training(path)
    again.recorder.begin(2, 0)
    again.train(20, meddles={12: meddle})
    assert again.told[0] == (13, leaf)


def test_with_no_time_left_losses_wait_for_a_record_that_is_due_by_their_number(path, monkeypatch):
    monkeypatch.setattr(module, "MOST_LOSSES", 5)
    one = Training(path)
    one.recorder.begin(1, 0)
    one.recorder._spent_s = 1e12
    one.train(20, scan_at=None)
    assert [batches for batches, _ in sorted(ledger.read(path).batches)] == [4, 9, 14, 19]
    until_batch, until_s = one.recorder.next_at_header(one.at.batches)
    assert until_batch == one.at.batches - 1 + 5 - 1
    assert until_s > 1e12


def test_a_ledger_that_cannot_be_written_is_said_once_and_no_more_is_recorded(path, capfd):
    one = Training(path / "no folder" / "ledger")
    one.recorder.begin(1, 0)
    one.train(3)
    assert one.recorder.is_off
    assert capfd.readouterr().err.count("the ledger cannot be written") == 1
    assert one.recorder.next_at_header(3) == (float("inf"), float("inf"))
