"""Names that the standard library makes of random numbers."""

import multiprocessing.synchronize
import os
from pathlib import Path

import pytest

from detrain.adapters import names


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    semaphores = multiprocessing.synchronize.SemLock
    monkeypatch.setattr(semaphores, "_rand", semaphores._rand)
    names.seed_now()


def test_semaphores_are_named_after_the_process_that_made_them(seeded):
    locks = [multiprocessing.get_context("spawn").Lock() for _ in range(3)]
    taken = [lock._semlock.name for lock in locks]
    assert len(set(taken)) == 3
    # What stands before is `/mp`, or joblib's own where another test has loaded it: it replaces the function that makes the names.
    assert all(f"-{os.readlink('/proc/self')}-" in name for name in taken)


def test_a_child_has_names_of_its_own(seeded):
    reading, writing = os.pipe()
    sequence = multiprocessing.synchronize.SemLock._rand
    child = os.fork()
    if child == 0:
        os.write(writing, next(sequence).encode())
        os._exit(0)
    os.waitpid(child, 0)
    mine = next(sequence)
    theirs = os.read(reading, 100).decode()
    assert theirs.split("-")[0] == str(child) != mine.split("-")[0]
    assert Path(f"/proc/{mine.split('-')[0]}").is_dir()
