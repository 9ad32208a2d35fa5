"""What is printed of an exception that leaves the script."""

import os
import signal
import sys
from types import TracebackType

import pytest

from detrain.launch import script
from detrain.messages import counted


def raised_in(*files: str) -> TracebackType:
    """A traceback through functions of these files, the outermost first."""

    def stop() -> None:
        raise KeyboardInterrupt

    inner = stop
    for file in reversed(files):
        names = {"inner": inner}
        exec(compile("def call():\n inner()", file, "exec"), names)
        inner = names["call"]
    try:
        inner()
    except KeyboardInterrupt:
        found = sys.exc_info()[2]
    assert found is not None
    below = found.tb_next
    assert below is not None
    last = below
    while last.tb_next is not None and last.tb_next.tb_next is not None:
        last = last.tb_next
    last.tb_next = None  # `stop` itself
    return below


def files_of(traceback: TracebackType | None) -> list[str]:
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_filename)
        traceback = traceback.tb_next
    return found


def test_frames_of_detrain_are_left_out_at_both_ends() -> None:
    own = f"{script._PACKAGE}x.py"
    traceback = script.peel(raised_in(own, "train.py", own, "torch.py", own, own))
    assert files_of(traceback) == ["train.py", own, "torch.py", own, own]
    script.cut(traceback)
    assert files_of(traceback) == ["train.py", own, "torch.py"]
    script.cut(None)


def test_an_interrupt_that_comes_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            script._with_peeled_traceback(interrupted)
        interrupted()
        monkeypatch.setattr(script, "_ONCE_S", -1.0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            script._with_peeled_traceback(interrupted)
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        # one that the script has set stays
        signal.signal(signal.SIGINT, raising := lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            script._with_peeled_traceback(interrupted)
        assert signal.getsignal(signal.SIGINT) is raising
    finally:
        signal.signal(signal.SIGINT, before)


def test_things_are_counted() -> None:
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]
    assert [counted(number, "epoch") for number in (0, 1)] == ["0 epochs", "1 epoch"]
