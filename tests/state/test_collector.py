"""Python's cyclic collector while detrain makes many objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from detrain.state.collector import collector_paused


class Ring:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.enable()
    yield
    gc.unfreeze()
    (gc.enable if was_enabled else gc.disable)()


def is_old(obj: object) -> bool:
    return any(one is obj for one in gc.get_objects(generation=2))


@pytest.mark.parametrize("promotes", [False, True])
def test_nothing_is_collected_inside(promotes: bool) -> None:
    with collector_paused(promotes=promotes):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), collector_paused(promotes=promotes):
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    with collector_paused(promotes=promotes):
        pass
    assert not gc.isenabled()


def test_what_was_made_is_old_at_once_and_no_collection_is_due() -> None:
    with collector_paused(promotes=True):
        made = [[number] for number in range(20_000)]
    assert gc.get_count()[0] < gc.get_threshold()[0]
    assert is_old(made)
    assert gc.get_freeze_count() == 0
    with collector_paused():
        made = [[number] for number in range(20_000)]
        assert not is_old(made)


def test_garbage_of_the_script_is_freed_before_it_could_grow_old() -> None:
    loop = Ring()
    seen = weakref.ref(loop)
    del loop
    with collector_paused(promotes=True):
        pass
    assert seen() is None


def test_what_the_script_has_frozen_stays_so() -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with collector_paused(promotes=True):
        made = [[number] for number in range(20_000)]
    assert gc.get_freeze_count() == count > 0
    assert not is_old(made)


def test_a_small_block_does_not_have_python_count_what_is_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise AssertionError("20 ms for the objects that torch brings")

    monkeypatch.setattr(gc, "get_freeze_count", fail)
    with collector_paused(promotes=True):
        _ = [[number] for number in range(100)]
