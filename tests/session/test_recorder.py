"""The ledger of one attempt, and of a later one that does the same batches again: in one process, on arrays."""

import random
import struct
from types import SimpleNamespace

import numpy as np
import pytest

import detrain.adapters.numpy  # noqa: F401 - registers the handlers
from detrain.loops.position import Position
from detrain.session import recorder as module
from detrain.session.recorder import Recorder
from detrain.state import registry
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


def test_leaves_are_listed_once_however_many_checkpoints_there_are(path):
    one = Training(path)
    one.recorder.begin(1, 0)
    one.train(5, scan_at=2)
    for _ in range(20):
        one.train(3, scan_at=1)
    found = ledger.read(path)
    assert len({id(names) for names in found.lists.values()}) == 1
    assert len(found.lists) == len(found.seen_at) == 21
    assert path.read_bytes().count(b"weight") == 1


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


def test_what_watches_a_generator_sees_every_change_of_its_fingerprint():
    """Draws, a normal number that is held back, a state that is set, other bits under it."""
    python, numpy = random.Random(5), np.random.RandomState(np.random.MT19937(5))
    steps = [
        (python, [python.random, lambda: python.gauss(0, 1), lambda: python.gauss(0, 1), lambda: python.seed(5)]),
        (
            numpy,
            [
                numpy.random,
                numpy.standard_normal,
                numpy.standard_normal,
                lambda: numpy.set_state(("MT19937", numpy.get_state()[1], 7, 1, 0.5)),
                lambda: numpy.set_state(("MT19937", numpy.get_state()[1], 7, 1, 0.25)),
                lambda: numpy.set_state(("MT19937", numpy.get_state()[1], 7, 0, 0.25)),
                lambda: numpy.random(2000),
                lambda: numpy.__setstate__(np.random.RandomState(np.random.MT19937(6)).get_state(legacy=False)),
            ],
        ),
    ]
    for generator, changes in steps:
        handler = registry.handler_for(type(generator))
        for change in changes:
            fingerprint, watch = handler.fingerprint(generator), handler.watch(generator)
            assert watch is not None
            before = watch()
            assert watch() == before
            change()
            assert handler.fingerprint(generator) != fingerprint
            assert watch() != before


def test_generators_that_are_watched_have_the_digest_that_they_would_have_otherwise(path, monkeypatch):
    one, draws = Training(path), 0
    for number in range(6):
        watched = one.recorder._digest_of_generators()
        monkeypatch.setattr(one.recorder, "_fingerprints", {})
        assert one.recorder._digest_of_generators() == watched
        draws += number % 2
        if number % 2:
            one.generator.random()


def test_state_is_covered_also_where_records_alone_use_up_the_time(path):
    """Every so many records get a piece, or the state of a training with short batches would never be looked at."""
    one = Training(path)
    one.recorder.begin(1, 0)
    one.train(6)
    one.recorder._began_s -= 1000.0  # the attempt has run for so long
    for spent_s, num_pieces in ((1e9, 0), (0.0, 1)):
        one.recorder._pieces_s = spent_s
        assert len(one.recorder._cover(0.0, is_urgent=False)[1]) == num_pieces
    one.recorder._pieces_s = 1e9
    assert len(one.recorder._cover(0.0, is_urgent=True)[1]) == 1


def test_a_record_with_its_losses_is_one_call_of_the_system(path, monkeypatch):
    one = Training(path)
    one.recorder.begin(1, 0)
    one.train(2, scan_at=None)
    written = []
    monkeypatch.setattr(ledger.os, "write", lambda number, content: written.append(content) or len(content))
    one.batch()
    one.header(1e9)
    assert [content[:1] for content in written] == [b"B"]
