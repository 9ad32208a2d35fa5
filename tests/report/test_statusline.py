"""The last line of a terminal, kept for where the run is."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from detrain.report import statusline
from detrain.report.statusline import Follower, Line, follow
from detrain.store.ledger import LedgerFile

ROOT = Path(__file__).parents[2]


class Terminal:
    """A terminal of our own; what is written to it is read here."""

    def __init__(self):
        self.screen, self.descriptor = pty.openpty()
        self.resize(24, 80)

    def resize(self, rows, columns):
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def written(self, wait_s=0.0):
        found = b""
        while select.select([self.screen], [], [], wait_s)[0]:
            found += os.read(self.screen, 65536)
        return found.decode()


@pytest.fixture
def terminal():
    own = Terminal()
    yield own
    os.close(own.screen)
    os.close(own.descriptor)


def test_the_line_is_kept_and_given_back(terminal):
    line = Line(terminal.descriptor)
    line.show("train: starting")
    # off the last line; 23 lines scroll; and the text on the 24th, with the cursor where it was
    assert terminal.written() == (
        "\x1bD\x1b[A\x1b[J\x1b7\x1b[1;23r\x1b[24;1H\x1b[2K\x1b[7mtrain: starting\x1b[27m\x1b8"
    )
    line.show("train: " + "x" * 100)
    again = terminal.written()
    assert again.startswith("\x1b7\x1b[1;23r\x1b[24;1H\x1b[2K\x1b[7mtrain: x")
    assert again.count("x") == 79 - len("train: ")
    terminal.resize(30, 80)
    line.show("train")
    assert terminal.written().startswith("\x1b7\x1b[r\x1b[24;1H\x1b[2K\x1b8\x1bD\x1b[A\x1b[J\x1b7\x1b[1;29r")
    line.hide()
    assert terminal.written() == "\x1b7\x1b[r\x1b[30;1H\x1b[2K\x1b8"
    line.hide()
    terminal.resize(2, 80)
    line.show("train")
    assert terminal.written() == ""


def test_it_is_given_back_while_the_training_is_stopped(monkeypatch):
    monkeypatch.setattr(statusline, "_POLL_S", 0)
    did = []

    class Noted:
        columns = 79

        def show(self, text):
            did.append(text)

        def hide(self):
            did.append("hidden")

    states = iter(["running", "running", "stopped", "running", ""])
    follow(Noted(), lambda columns: "text" * (columns == 79), lambda: next(states))
    assert did == ["text", "hidden", "text", "hidden"]


def test_another_run_that_lies_there_is_not_shown(tmp_path, monkeypatch):
    path = tmp_path / "train"
    follower = Follower(path)
    assert follower.text(79) == "train: starting"
    path.mkdir()
    (path / "run.json").write_text("{}")
    (path / "finished").write_text("then\n")
    assert follower.text(79) == "train: starting"
    (path / "finished").unlink()
    LedgerFile(path / "ledger").append_json(b"A", {"attempt": 2, "batches": 0, "at": 1000.0, "lengths": [["epoch", 4]]})
    monkeypatch.setattr("detrain.store.directory.RunDirectory.holder", lambda _: "attempt 2")
    assert follower.text(79) == "train: running (2), epoch 0/4, batch 0"
    # the name goes first, then what matters least; no word is cut
    assert follower.text(37) == "running (2), epoch 0/4, batch 0"
    assert follower.text(30) == "running (2), epoch 0/4"
    assert follower.text(5) == "running (2)"
    monkeypatch.setattr("detrain.store.directory.RunDirectory.holder", lambda _: None)
    assert follower.text(79) == "train: stopped (2), epoch 0/4, batch 0"


@pytest.mark.parametrize(
    ("is_terminal", "term", "is_shown"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_only_a_terminal_has_one(monkeypatch, tmp_path, is_terminal, term, is_shown):
    started = []
    monkeypatch.setattr(statusline.aside, "start_aside", lambda module, words: started.append((module, words)) or 17)
    monkeypatch.setattr("os.isatty", lambda _: is_terminal)
    monkeypatch.setenv("TERM", term)
    assert statusline.start(tmp_path) == (17 if is_shown else 0)
    assert started == ([("detrain.report.statusline", [str(os.getpid()), str(tmp_path)])] if is_shown else [])


SCRIPT = """\
import os, time, torch
model = torch.nn.Linear(4, 1)
for epoch in range(3):
    for x in torch.randn(20, 2, 4):
        model(x).sum().backward()
        time.sleep(0.05)
try:
    os.wait()
except ChildProcessError:
    print("no children")
"""


@pytest.mark.full
def test_of_a_real_run(terminal, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-m", "detrain", "run", "--progress", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    process = subprocess.Popen(
        words, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, stdout=terminal.descriptor, stderr=terminal.descriptor
    )
    seen, end_s = "", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < end_s:
        seen += terminal.written(wait_s=0.2)
    seen += terminal.written()
    assert process.returncode == 0, seen
    assert "no children" in seen
    # given back before the command has ended, and before its last word
    line, last = seen.rindex("\x1b[24;1H\x1b[2K\x1b8"), seen.rindex("detrain: finished after 60 batches")
    assert "\x1b[7m" not in seen[line:], seen
    assert line < last, seen
    assert "train: running, epoch 0/3, batch " in seen
    (found,) = json.loads(
        subprocess.run(
            [sys.executable, "-m", "detrain", "top", "--json"], cwd=tmp_path, env=env, capture_output=True, check=True
        ).stdout
    )
    assert (found["state"], found["batches"]) == ("finished", 60)
