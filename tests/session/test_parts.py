"""The small parts of a session, each by itself."""

import contextlib
import dataclasses
import os
import signal
import struct
import threading

import pytest

from detrain.adapters.loaded import Frameworks
from detrain.loops.nest import NestFinder
from detrain.session import progress
from detrain.session.background import Background
from detrain.session.losses import MOST_VALUES, Losses
from detrain.session.unsaved import ENOUGH, Unsaved
from detrain.world.signal_deferral import handlers_deferred


def test_work_beside_gives_its_result_once():
    background = Background()
    assert background.wait() is None
    gate = threading.Lock()
    with gate:
        background.begin(lambda: gate.acquire() and "done")
        assert background.is_busy
    assert background.wait() == "done"
    assert not background.is_busy
    assert background.wait() is None


def test_what_work_beside_raises_is_raised_to_who_waits_and_once():
    background = Background()
    background.begin(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        background.wait()
    assert background.wait() is None


def test_child_of_a_fork_has_no_work_beside():
    background = Background()
    background._forget()
    assert not background.is_busy
    assert background.wait() is None


@pytest.fixture
def heard():
    """The signals that a handler of the script's has heard."""
    numbers = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGUSR1, before)


def test_handlers_are_called_behind_the_work(heard):
    with handlers_deferred():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert heard == []
    assert heard == [signal.SIGUSR1] * 2
    signal.raise_signal(signal.SIGUSR1)
    assert len(heard) == 3


def test_in_another_thread_handlers_are_left_alone(heard):
    def work():
        before = signal.getsignal(signal.SIGUSR1)
        with handlers_deferred():
            same.append(signal.getsignal(signal.SIGUSR1) is before)

    same = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert same == [True]


def loss(value):
    return lambda: (struct.pack("<d", value), [value])


def test_losses_are_digested_by_batch_and_only_once_on_the_curve():
    one, other = Losses(), Losses()
    for losses, values in ((one, [1.0, 2.0]), (other, [1.0, 3.0])):
        for number, value in enumerate(values):
            losses.add([loss(value), loss(-value)])
            losses.end_batch(number, counts=True)
    assert one.digest(0, 1) == other.digest(0, 1) != 0
    assert one.digest(1, 2) != other.digest(1, 2)
    assert one.digest(2, 2) == 0
    assert one.take_curve() == [(0, 0, 1.0), (0, 1, -1.0), (1, 0, 2.0), (1, 1, -2.0)]
    assert one.take_curve() == []
    assert one.num_batches == 2
    one.forget()
    assert one.num_batches == 0


def test_losses_before_the_first_batch_and_too_many_of_one():
    losses = Losses()
    losses.add([loss(5.0)])
    losses.forget_running()
    losses.add([loss(float(n)) for n in range(MOST_VALUES + 5)])
    losses.end_batch(0, counts=False)
    assert losses.digest(0, 1) == Losses().digest(0, 1)
    assert [value for _, _, value in losses.take_curve()] == [float(n) for n in range(MOST_VALUES)]


@pytest.mark.parametrize("patience_s", [-1.0, 60.0])
def test_bar_hands_on_every_number_and_writes_nothing_to_a_file(patience_s, monkeypatch, capfd):
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    assert list(progress.bar(range(5), "loading")) == list(range(5))
    assert capfd.readouterr() == ("", "")


def test_bar_on_a_terminal(monkeypatch):
    reader, writer = os.openpty()
    with open(writer, "w") as terminal:
        monkeypatch.setattr(progress, "PATIENCE_S", -1.0)
        monkeypatch.setattr("sys.__stderr__", terminal)
        assert list(progress.bar(range(5), "loading")) == list(range(5))
        terminal.flush()
        assert b"detrain: loading" in os.read(reader, 10_000)
    os.close(reader)


@pytest.mark.parametrize("where", ["outside_loops", "in_thread", "in_child"])
def test_training_that_nobody_saves_is_said_once_and_not_at_the_first_update(where, monkeypatch, capfd):
    at_first = Unsaved()
    monkeypatch.setattr(at_first, "_pid", os.getpid() + 1)
    for _ in range(ENOUGH - 1):
        getattr(at_first, where)()
    assert capfd.readouterr().err == ""
    counts = Unsaved()
    monkeypatch.setattr(counts, "_pid", os.getpid() + 1)
    for _ in range(ENOUGH * 3):
        getattr(counts, where)()
    assert capfd.readouterr().err.count("[nothing-saved]") == 1


class Clocks:
    def __init__(self):
        self.depth = 0

    @contextlib.contextmanager
    def aside(self):
        self.depth += 1
        yield
        self.depth -= 1


class Entropy:
    state = (1, 2)

    def entropy_state(self):
        return self.state

    def set_entropy_state(self, state):
        self.state = state


def test_what_detrain_draws_and_reads_for_itself_is_put_back():
    frameworks = Frameworks(entropy=Entropy(), clocks=Clocks())
    with frameworks.hidden_from_script() as state:
        assert state == (1, 2)
        assert frameworks.clocks.depth == 1
        frameworks.entropy.state = (1, 90)
    assert (frameworks.entropy.state, frameworks.clocks.depth) == ((1, 2), 0)


def test_update_in_the_script_itself_is_none_of_a_child(capfd):
    counts = Unsaved()
    for _ in range(ENOUGH * 2):
        counts.in_child()
    assert capfd.readouterr().err == ""


@dataclasses.dataclass(eq=False)
class ASite:
    part: str = ""
    is_demoted: bool = False
    is_fixed: bool = False


@dataclasses.dataclass
class AnEntry:
    site: ASite
    iteration: int = 0
    gradient_at: int = -1
    updated_at: int = -1
    num_updated: int = 0
    iterator: object = None


@pytest.mark.parametrize("num_steps_late", [0, 1])
def test_a_batch_loop_may_begin_with_the_update_of_the_iteration_before(num_steps_late):
    """As a pipeline without flushes does, or a script that steps late; a loop over optimizers has no gradients of its own."""
    finder = NestFinder(lambda: True)
    epoch, batch, optimizers = ASite(), ASite(), ASite()
    outer, inner = AnEntry(epoch), AnEntry(batch)
    for inner.iteration in range(4):
        if num_steps_late and inner.iteration:
            finder.on_update([outer, inner])
        finder.on_gradient([outer, inner])
        if not num_steps_late:
            for number in range(2):
                finder.on_update([outer, inner, AnEntry(optimizers, number)])
    assert [epoch.part, batch.part, optimizers.part] == ["epoch", "batch", ""]
