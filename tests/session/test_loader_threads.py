"""Loaders that read ahead in threads: what a thread may change at any moment is no difference, all else is."""

import collections
import functools
import queue
import sys
import threading
import types

import pytest

from detrain.errors import RestoreError
from detrain.session.loader_threads import changed_beside
from detrain.session.replay import Replay, check, digest_without
from detrain.state.walk import Walk


class Ahead:
    """Its thread puts numbers into a queue, as far as it is let."""

    def __init__(self):
        self.epoch, self.scale, self.files = 0, [1], ["a", "b"]
        self.position = 0
        self.buffer = collections.deque()
        self.gate = threading.Semaphore(0)
        self.idle = threading.Event()
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        for number in range(1000):
            self.gate.acquire()
            self._put(number)
            self.idle.set()

    def _put(self, number):
        self.position = number
        self.buffer.append(number)

    def let(self, count=1):
        for _ in range(count):
            self.idle.clear()
            self.gate.release()
            self.idle.wait()

    def get(self):
        if not self.buffer:
            self.let()
        return [self.buffer.popleft() * self.scale[0]]


def seen(loader):
    """What of a loader is compared."""
    return digest_without(loader, changed_beside(loader))


def test_how_far_a_thread_has_read_makes_no_difference():
    early, late = Ahead(), Ahead()
    late.let(5)
    assert seen(early) == seen(late)
    assert changed_beside(late) == {"position", "buffer", "gate", "idle", "thread"}


@pytest.mark.parametrize(("name", "value"), [("epoch", 1), ("scale", [2]), ("added", "x"), ("position", 7)])
def test_what_the_loop_changes_is_a_difference_unless_the_thread_assigns_it(name, value):
    one, other = Ahead(), Ahead()
    setattr(other, name, value)
    assert (seen(one) == seen(other)) is (name == "position")


def fill(into, closed_over=None):
    into.append(1)


def given_by_argument(found):
    return threading.Thread(target=fill, args=(found,))


def given_by_name(found):
    return threading.Thread(target=fill, kwargs={"into": found})


def given_in_part(found):
    return threading.Thread(target=functools.partial(fill, found))


def given_by_closure(found):
    return threading.Thread(target=lambda: found.append(1))


def given_to_a_subclass(found):
    class Reader(threading.Thread):
        def run(self):
            self.into.append(1)

    thread = Reader()
    thread.into = found
    return thread


@pytest.mark.parametrize(
    "make", [given_by_argument, given_by_name, given_in_part, given_by_closure, given_to_a_subclass]
)
def test_what_a_thread_was_given_is_its_own(make):
    class Loader:
        def __init__(self):
            self.found, self.own = [], []
            self.thread = make(self.found)

    one, other = Loader(), Loader()
    other.found.append(1)
    assert seen(one) == seen(other)
    other.own.append(1)
    assert seen(one) != seen(other)


def test_loader_without_a_thread_is_compared_whole():
    held = types.SimpleNamespace(lock=threading.Lock(), found=queue.Queue())
    before = seen(held)
    held.found.put(1)
    assert seen(held) != before


@pytest.fixture
def loading(monkeypatch):
    extra = {"loop_type": {"type": "ON_CUSTOM"}, "dataloader": {"next": ("ahead", "Ahead.get"), "persistent": False}}

    def begin():
        module = types.ModuleType("ahead")
        module.Ahead = type("Ahead", (Ahead,), {"get": Ahead.get, "__module__": "ahead", "__qualname__": "Ahead"})
        monkeypatch.setitem(sys.modules, "ahead", module)
        ahead = module.Ahead()
        made = Replay(extra, lambda: 0)
        made.begin()
        return made, ahead

    return begin


def checkpoint(made, ahead):
    walk = Walk(leave=made.left)
    walk.root("data", ahead)
    captured = walk.run()
    made.mark(captured, 1)
    return captured.tree


def test_loader_is_replayed_however_far_its_thread_has_read(loading):
    made, ahead = loading()
    before = [ahead.get() for _ in range(4)]
    ahead.let(3)
    tree = checkpoint(made, ahead)
    again, other = loading()
    check(again.replay(tree, {"data": other}))
    assert before == [[0], [1], [2], [3]]
    assert other.get() == ahead.get() == [4]


def test_thread_that_has_ended_is_remembered(loading):
    made, ahead = loading()
    ahead.get()
    ahead.gate.release(2000)
    ahead.thread.join()
    tree = checkpoint(made, ahead)
    again, other = loading()
    check(again.replay(tree, {"data": other}))
    assert "_target" not in vars(ahead.thread)
    assert other.get() == [1]


def test_loader_that_gives_something_else_when_replayed_is_refused(loading):
    made, ahead = loading()
    ahead.scale[0] = 3
    for _ in range(4):
        ahead.get()
    ahead.scale[0] = 1
    tree = checkpoint(made, ahead)
    again, other = loading()
    with pytest.raises(
        RestoreError, match="data has threads, and its 4 calls have not returned what they returned before"
    ):
        again.replay(tree, {"data": other})
