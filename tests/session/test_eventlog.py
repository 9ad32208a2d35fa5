"""Events as JSON lines."""

import json
import os

import pytest

from detrain import eventlog
from detrain.messages import say, warn


@pytest.fixture(autouse=True)
def off():
    yield
    if eventlog._file >= 0:
        os.close(eventlog._file)
    eventlog._file, eventlog._rank = -1, 0


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_nothing_is_noted_where_nobody_asks():
    assert not eventlog.is_on()
    assert eventlog.note("saved", checkpoint="c") == ""


def test_each_event_is_a_line_behind_those_that_are_there(tmp_path, capfd):
    path = tmp_path / "log"
    path.write_text('{"event": "earlier"}\n')
    eventlog.log_to(str(path), 2)
    eventlog.note("saved", checkpoint="c", batches=3)
    say("hello")
    say("error: no disk")
    warn("ledger", "it is gone")
    found = lines(path)
    assert all(one["rank"] == 2 and one["at"] > 1e9 for one in found[1:])
    assert [{name: value for name, value in one.items() if name not in ("at", "rank")} for one in found] == [
        {"event": "earlier"},
        {"event": "saved", "checkpoint": "c", "batches": 3},
        {"event": "said", "text": "hello"},
        {"event": "error", "text": "no disk"},
        {"event": "warning", "slug": "ledger", "text": "it is gone"},
    ]
    assert capfd.readouterr().err.endswith("detrain: warning: it is gone [ledger]\n")


def test_a_full_disk_is_said_once_and_the_run_goes_on(capfd):
    eventlog.log_to("/dev/full")
    say("one")
    say("two")
    found = capfd.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in found] == ["[log-json]", "one", "two"]
