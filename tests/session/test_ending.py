"""What is said when an attempt ends, and which runs are over then."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from detrain.loops.position import Position
from detrain.session import ending

CHECKPOINT = SimpleNamespace(name="checkpoint_1_2.h5", meta=SimpleNamespace(epoch=1, batch=2))


def session(*, pending=None, last=None, trained=True, exhausted=True, attempt=1, is_of_one_source=True):
    position = Position()
    position.move_to(3, 25, 5)
    return SimpleNamespace(
        context=SimpleNamespace(
            position=position,
            settings=SimpleNamespace(attempt=attempt, is_of_one_source=is_of_one_source),
            named_directory=Path("runs/a"),
        ),
        memory=None,
        resume=SimpleNamespace(is_pending=pending is not None, target=pending),
        last_checkpoint=last,
        has_trained=trained,
        is_nest_exhausted=exhausted,
        is_behind=False,
    )


@pytest.mark.parametrize(
    ("options", "status", "signal_name", "is_over"),
    [
        ({}, 0, "", True),
        ({"exhausted": False}, 0, "", True),  # the script has broken its loop off by itself
        ({"exhausted": False}, 0, "SIGINT", False),
        ({"exhausted": True}, 0, "SIGINT", True),
        ({}, 1, "", False),
        ({"trained": False}, 0, "", False),
    ],
)
def test_a_run_is_over_when_its_script_ends_well_and_no_signal_has_broken_the_training_off(
    options, status, signal_name, is_over
):
    assert ending.is_finished(session(**options), status, signal_name) == is_over


@pytest.mark.parametrize(
    ("options", "status", "signal_name", "is_interrupted", "said"),
    [
        ({}, 0, "", False, "finished after 25 batches (3 epochs), in 1 attempt; `detrain verify runs/a` proves it"),
        (
            {"is_of_one_source": False}, 0, "", False,
            "finished after 25 batches (3 epochs), in 1 attempt; `detrain verify runs/a` proves what was trained since the run was changed",
        ),
        ({"attempt": 3}, 0, "", False, "finished after 25 batches (3 epochs), in 3 attempts; `detrain verify runs/a` proves it"),
        (
            {"last": CHECKPOINT}, 130, "", True,
            "interrupted at epoch 2, batch 4; the same command resumes from checkpoint_1_2.h5 (epoch 1, batch 2)",
        ),
        (
            {"exhausted": False}, 0, "SIGTERM", False,
            "ended early, after SIGTERM, at epoch 2, batch 4; there is no checkpoint yet, so the same command starts again from the "
            "beginning",
        ),
        (
            {"pending": CHECKPOINT}, 1, "", False,
            "the script ended with an error while resuming from checkpoint_1_2.h5; the same command resumes from checkpoint_1_2.h5 "
            "(epoch 1, batch 2)",
        ),
        (
            {"trained": False}, 7, "", False,
            "the script ended with status 7 before its training began; there is no checkpoint yet, so the same command starts again from "
            "the beginning",
        ),
    ],
)  # fmt: skip
def test_the_last_line_says_how_far_the_run_is_and_what_comes_next(
    options, status, signal_name, is_interrupted, said, monkeypatch, capfd
):
    monkeypatch.setattr(ending.atexit, "register", lambda function, *words: function(*words))
    ending.say_last(session(**options), status, signal_name, is_interrupted=is_interrupted)
    assert capfd.readouterr().err == f"detrain: {said}\n"


@pytest.fixture
def arrivals(monkeypatch):
    monkeypatch.setattr(ending.os, "register_at_fork", lambda **_: None)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    found = ending.Arrivals()
    yield found
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_last_signal_that_asks_for_an_end_is_known_whoever_has_heard_it(arrivals):
    assert arrivals.ending() == ""
    arrivals.begin()
    assert arrivals.ending() == ""
    os.kill(os.getpid(), signal.SIGUSR2)  # asks for a checkpoint, not for an end
    assert arrivals.ending() == ""
    os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert arrivals.ending() == "SIGUSR1"
    assert arrivals.ending() == "SIGUSR1"  # it has arrived


def test_a_script_that_has_the_interpreter_tell_itself_is_left_alone(arrivals):
    reader, writer = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    arrivals.begin()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert os.read(reader, 10) == bytes([signal.SIGUSR1])
    assert arrivals.ending() == ""
    assert signal.set_wakeup_fd(-1) == writer
    os.close(reader)
    os.close(writer)
