"""What belongs to a library's own thread, event loop or process is left as this attempt's set-up code makes it; what trains is not."""

import asyncio
import os
import threading
from pathlib import Path

import numpy as np
import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.proof.comparison import Comparison, Side
from detrain.state import user_code
from detrain.state.machinery import OWNS_THREAD
from detrain.state.restore import Origins, Restore
from detrain.state.unrestored import Unrestored
from detrain.state.walk import Walk
from detrain.store.checkpoint import Checkpoint
from detrain.store.meta import Meta


class Thing:
    """As of a library; or, for a test, of the script."""

    def __init__(self, **parts):
        self.__dict__.update(parts)


class Other(Thing):
    pass


def look(**roots):
    walk = Walk()
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run()


def why_kept(walk):
    return {node["s"].removeprefix("."): node["kept"] for node in walk.tree.nodes if "kept" in node}


def loud(walk):
    return [node["s"] for node in walk.tree.nodes if node.get("loud")]


def restored(walk, now, **options):
    live = look(client=now)
    return Restore(walk.tree, live, Origins(live), **options).run({"client": now})["client"]


@pytest.fixture
def loop():
    """An event loop that a thread is running."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join()
    made.close()


def waiting_in(loop):
    """An event that somebody waits for."""
    event = asyncio.Event()
    waiter = asyncio.run_coroutine_threadsafe(event.wait(), loop)
    while not event._waiters:
        pass
    return event, waiter


def test_what_hangs_on_an_event_loop_that_a_thread_runs_is_left_alone_and_not_spoken_of(loop):
    event, waiter = waiting_in(loop)
    reader = asyncio.StreamReader(loop=loop)
    walk = look(
        client=Thing(step=3, connection=Thing(reader=reader, sent={"id": loop.create_future()})), event=event, loop=loop
    )
    assert why_kept(walk) == dict.fromkeys(("connection", "event", "loop"), OWNS_THREAD)
    assert loud(walk) == []
    now = Thing(step=0, connection=Thing(reader=None, sent={}))
    came = restored(walk, now)
    assert (came.step, came.connection.sent) == (3, {})
    loop.call_soon_threadsafe(event.set)
    waiter.result()


def test_a_future_of_a_loop_that_no_thread_runs_is_spoken_of():
    own = asyncio.new_event_loop()
    walk = look(client=Thing(future=own.create_future()))
    own.close()
    assert ".future" in loud(walk)


def exporter(**parts):
    """As made when it is first wanted: an object with a thread somewhere below."""
    return Thing(
        readers=[Other(name="reader", thread=threading.Thread(name="exports"))], lock=threading.Lock(), **parts
    )


def test_what_a_library_makes_in_the_loop_with_a_thread_of_its_own_is_left_for_it_to_make_again():
    walk = look(client=Thing(step=3, exporter=exporter()))
    came = restored(walk, Thing(step=0, exporter=None))
    assert (came.step, came.exporter) == (3, None)


def test_texts_that_look_like_refs_are_texts():
    walk = look(client=Thing(exporter=exporter(names=["@", 1_000_000])))
    assert restored(walk, Thing(exporter=None)).exporter is None


@pytest.mark.parametrize(
    "part", [np.arange(3), iter([1, 2]), {"batches": [iter(range(3))]}], ids=["an array", "an iterator", "one below"]
)
def test_what_may_hold_something_of_the_training_is_not_left(part):
    came = restored(look(client=Thing(exporter=exporter(part=part))), Thing(exporter=None))
    assert type(came.exporter) is Thing
    assert type(came.exporter.readers[0]) is Unrestored


def test_what_the_script_has_made_is_not_left(monkeypatch):
    came = restored(look(client=exporter()), None)
    assert type(came) is Thing
    monkeypatch.setattr(user_code, "user_modules", {__name__})
    walk = look(client=Thing(exporter=Thing(readers=[1], thread=threading.Thread(name="own"))))
    assert type(restored(walk, Thing(exporter=None)).exporter) is Thing


def test_a_library_goes_on_knowing_the_process_that_it_is_in():
    saved = 4_000_123
    walk = look(client=Thing(process=saved, step=saved))
    came = restored(walk, Thing(process=os.getpid(), step=0), process=saved)
    assert (came.process, came.step) == (os.getpid(), saved)


def differences(one, other):
    sides = []
    for thing, process in (one, other):
        meta = Meta(1, folder="/nowhere", entropy=[0, 0], process=process)
        sides.append(Side(Checkpoint(Path("/run/checkpoint_0_0.h5"), meta), look(client=thing).tree))
    found = Comparison(*sides)
    found.run()
    return [difference["path"] for difference in found.differences]


def test_the_number_of_its_own_process_that_a_library_keeps_is_no_difference(monkeypatch):
    assert differences((Thing(process=7, step=7), 7), (Thing(process=8, step=7), 8)) == []
    assert differences((Thing(process=7), 7), (Thing(process=9), 8)) == ["client.process"]
    monkeypatch.setattr(user_code, "user_modules", {__name__})
    assert differences((Thing(process=7), 7), (Thing(process=8), 8)) == ["client.process"]


def test_machinery_of_a_library_is_no_difference():
    one, other = (Thing(exporter=exporter(number=number)) for number in (1, 2))
    assert differences((one, 7), (other, 7)) == []
    assert differences((one, 7), (Thing(exporter=None), 7)) == []
    assert differences((Thing(exporter=Thing(number=1)), 7), (Thing(exporter=None), 7)) == ["client.exporter"]


def test_a_function_of_detrains_is_left_alone():
    from detrain.state import liveness
    from detrain.state.walk import Walk

    walk = Walk()
    walk.root("train.init_process_group", liveness.dead_variables)
    (node,) = walk.run().tree.nodes
    assert "kept" in node
    assert "loud" not in node
