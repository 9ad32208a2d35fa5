"""Copies of a state: as it was, whatever happens to the originals, in memory that is used again."""

import os
import subprocess
import sys

import numpy as np
import pytest

from detrain.state.tree import Array
from detrain.store import staging
from detrain.store.staging import Staging


def arrays() -> list[Array]:
    big = np.random.default_rng(0).random(6_000_000)  # 48 MB: cut into pieces, and copied by threads
    return [
        Array("big", big), Array("turned", big[:600_000].reshape(600, 1000).T, "label"), Array("none", np.empty((0, 3))),
        Array("number", np.array(7)), Array("odd", np.frombuffer(b"xabcdefgh", "<u4", 2, 1)), Array("flags", np.array([True, False])),
    ]  # fmt: skip


def test_copies_stay_as_they_are_when_the_originals_change():
    originals, told = (
        arrays(),
        [(one.path, one.label, one.data.dtype, one.data.shape, one.data.tobytes()) for one in arrays()],
    )
    copies = Staging().copy(originals)
    assert copies is not None
    originals[0].data.fill(0)
    assert [(one.path, one.label, one.data.dtype, one.data.shape, one.data.tobytes()) for one in copies] == told
    assert [one.compute_digest() for one in copies] == [one.compute_digest() for one in arrays()]


def test_memory_is_used_again_until_more_is_needed():
    held = Staging()
    places = []
    for size in (100_000, 50_000, 100_000, 200_000):
        copies = held.copy([Array("a", np.ones(size))])
        assert copies is not None
        places.append(copies[0].data.ctypes.data)
        assert copies[0].data.sum() == size
    assert len(set(places[:3])) == 1


def test_state_for_which_there_is_no_memory_is_not_copied(monkeypatch):
    monkeypatch.setattr(staging, "_MOST_OF_FREE", 0.0)
    assert Staging().copy([Array("a", np.ones(100_000))]) is None


def test_what_is_a_copy_already_is_not_copied_again():
    given = [Array("a", np.ones(1000), is_copy=True), Array("b", np.ones(1000))]
    copies = Staging().copy(given)
    assert copies is not None
    assert [np.shares_memory(one.data, copy.data) for one, copy in zip(given, copies, strict=True)] == [True, False]
    assert all(copy.is_copy for copy in copies)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_threads_that_copy_are_not_counted_as_the_scripts():
    program = """if True:
        import threading
        import numpy as np
        from detrain.state.tree import Array
        from detrain.store.staging import Staging
        seen = []
        threading.setprofile(lambda *_: seen.append(threading.current_thread().name))
        Staging().copy([Array("a", np.ones(8_000_000))])
        print(threading.Thread(target=print).name, threading.active_count(), seen)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "Thread-1 (print) 1 []\n"
