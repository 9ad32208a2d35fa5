"""Captured in the middle, written, read and restored, a program goes on as if nothing had been: each in a few milliseconds, in one process."""

import os

import pytest

from tests.state import roundtrip
from tests.state.programs import containers, iterators

PROGRAMS = {**containers.PROGRAMS, **iterators.PROGRAMS}
ANEW = {name: program.made_by_the_loop() for name, program in PROGRAMS.items() if program.anew}


@pytest.fixture(scope="module", autouse=True)
def _as_a_new_process():
    with roundtrip.as_a_new_process():
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a program may have files."""
    made = tmp_path / "files"
    made.mkdir()
    monkeypatch.chdir(made)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # nobody is killed here
    return made


def check(program, folder):
    expected = roundtrip.never_captured(program)
    roundtrip._empty(folder)
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    assert taken.seen == expected, "to be captured has changed the program"
    with roundtrip.restored(program, taken) as one:
        assert roundtrip.differences(taken, one) == []
        seen = roundtrip.judge(one)
    assert seen.at == expected.at
    assert seen.after == expected.after


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_set_up_has_made_is_brought_to_the_checkpoint(name, folder):
    check(PROGRAMS[name], folder)


@pytest.mark.parametrize("name", ANEW)
def test_what_the_loop_has_made_is_made_again(name, folder):
    check(ANEW[name], folder)
