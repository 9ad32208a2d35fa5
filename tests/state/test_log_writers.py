"""What a library's thread has yet to write is in the file when the state has been looked at."""

import multiprocessing
import sys
import threading
import time
import types

import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.state.handlers.objects import OWNS_THREAD
from detrain.state.walk import Walk


@pytest.fixture
def writer(tmp_path, monkeypatch):
    # As where TensorFlow is not installed: it takes long to load, and writes no other file.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    module = pytest.importorskip(
        "tensorboard.summary.writer.event_file_writer", reason="TensorBoard is not installed: pip install tensorboard"
    )
    found = module.EventFileWriter(str(tmp_path))
    yield found
    found.close()


def look_at(obj):
    walk = Walk()
    walk.root("writer", obj)
    return [node for node in walk.run().tree.nodes if node.get("kept") == OWNS_THREAD]


def add(writer, steps):
    from tensorboard.compat.proto.event_pb2 import Event

    for step in steps:
        writer.add_event(Event(step=step))


def steps_in(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    (log,) = folder.iterdir()
    return [event.step for event in EventFileLoader(str(log)).Load()][1:]  # the first tells the version


def test_events_that_wait_are_written_out(writer, tmp_path):
    # In an attempt that was resumed the library's own file is another one than the thread's.
    writer._general_file_writer = None
    for step in (1, 6):
        add(writer, range(step, step + 5))
        assert len(look_at(writer)) == 1
        assert steps_in(tmp_path) == list(range(1, step + 5))


def test_writer_that_is_closed_is_left_alone(writer, tmp_path):
    add(writer, [1])
    writer.close()
    assert len(look_at(writer)) == 1
    assert steps_in(tmp_path) == [1]


class SlowQueueWriter:
    """Made as tensorboardX makes its own: a queue of `multiprocessing`, whose taker says nothing, and a thread."""

    __module__, __qualname__ = "tensorboardX.event_file_writer", "EventFileWriter"  # by which it is known

    def __init__(self):
        self._event_queue, self._closed, self.written, self.flushed = multiprocessing.Queue(10), False, [], 0
        self._worker = threading.Thread(target=self._run)
        self._worker.start()

    def _run(self):
        while (event := self._event_queue.get(True, 60)) is not None:
            time.sleep(0.03)
            self.written.append(event)

    def flush(self):
        self.flushed = len(self.written)

    def close(self):
        self._event_queue.put(None)
        self._worker.join()


def test_queue_that_nobody_answers_for_is_empty_and_its_last_event_written():
    writer = SlowQueueWriter()
    try:
        for number in range(8):
            writer._event_queue.put(number)
            if number % 3 == 2:
                assert len(look_at(writer)) == 1
                assert writer.flushed == number + 1
    finally:
        writer.close()
