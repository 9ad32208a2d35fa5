"""Work beside the training, in a thread that the script does not see."""

import os
import threading

import pytest

from detrain.session.background import Background


def test_what_the_work_returns_is_given_once():
    background = Background()
    assert background.wait() is None
    background.begin(lambda: 5)
    assert background.wait() == 5
    assert background.wait() is None


def test_what_the_work_raises_is_raised_where_it_is_waited_for():
    background = Background()

    def work():
        raise KeyboardInterrupt  # whatever it is

    background.begin(work)
    with pytest.raises(KeyboardInterrupt):
        background.wait()
    assert background.wait() is None


def number_of_next_thread() -> int:
    return int(threading.Thread().name.removeprefix("Thread-"))


def test_the_script_sees_no_thread():
    background, may_end = Background(), threading.Event()
    threads, number = threading.enumerate(), number_of_next_thread()
    background.begin(may_end.wait)
    assert background.is_busy
    assert threading.enumerate() == threads
    assert number_of_next_thread() == number + 1
    may_end.set()
    background.wait()
    assert not background.is_busy


def test_a_forked_child_has_nothing_to_wait_for():
    background, may_end = Background(), threading.Event()
    background.begin(may_end.wait)
    child = os.fork()
    if child == 0:
        os._exit(1 if background.is_busy or background.wait() is not None else 0)
    _, status = os.waitpid(child, 0)
    may_end.set()
    assert os.waitstatus_to_exitcode(status) == 0
    assert background.wait() is True
