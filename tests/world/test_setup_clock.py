"""The file of what set-up code was told by the clock."""

import pytest

from detrain.errors import CheckpointError
from detrain.world import setup_clock
from detrain.world.clocks import Clocks
from detrain.world.setup_clock import Answers


@pytest.fixture
def path(tmp_path):
    return tmp_path / setup_clock.NAME


def test_there_may_be_none(path):
    assert setup_clock.read(path) == {}


def test_what_a_killed_attempt_has_left_half_written_is_taken_away(path, tmp_path, monkeypatch):
    monkeypatch.setattr(Clocks, "begin", lambda *_: False)
    path.write_bytes(b'["train.py:3", 0, 17]\n["train.py:5", 0, 1')
    known = {("train.py:3", 0): 17}
    assert setup_clock.read(path) == known
    answers = Answers(
        path,
        0,
        lambda _: False,
        lambda _: False,
        Clocks(tmp_path, None, is_anew=False, is_proof=False, is_counted_anew=False),
    )
    assert answers.begin() is False
    assert path.read_bytes() == b'["train.py:3", 0, 17]\n'
    path.write_bytes(b"\0\0\0")
    assert setup_clock.read(path) == {}


@pytest.mark.parametrize("line", [b'["train.py:5", 0, ', b"\xff\xfe\xfa", b"7", b'["train.py:5", 0]'])
def test_a_damaged_line_is_said(path, line):
    path.write_bytes(b'["train.py:3", 0, 17]\n' + line + b'\n["train.py:9", 0, 18]\n')
    with pytest.raises(CheckpointError, match=r"answers\.log is damaged in line 2"):
        setup_clock.read(path)
