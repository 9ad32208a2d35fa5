"""Ranks that are started and started again; the launcher is a program of a few lines."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detrain.cli.run import _without
from detrain.launch import supervising
from detrain.launch.supervising import MOST_IN_VAIN, Supervisor
from detrain.store.job import JobDirectory, Manifest


def supervisor(tmp_path, monkeypatch, code, restarts):
    """One whose launcher runs this code, with the number of the start and the folder of cuts as its arguments."""
    (tmp_path / "cuts").mkdir()
    counter = tmp_path / "starts"
    program = (
        f"import sys, pathlib; c = pathlib.Path({str(counter)!r}); cuts = pathlib.Path({str(tmp_path / 'cuts')!r}); "
        f"n = int(c.read_text()) if c.exists() else 0; c.write_text(str(n + 1)); {code}"
    )
    monkeypatch.setattr(supervising.launchers, "command", lambda _: [sys.executable, "-c", program])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return Supervisor(["first"], ["again"], 2, restarts, tmp_path), counter


def test_it_starts_again_until_all_is_well(tmp_path, monkeypatch, capfd):
    made, counter = supervisor(tmp_path, monkeypatch, "(cuts / str(n)).touch(); sys.exit(0 if n == 2 else 9)", 5)
    assert made.run() == 0
    assert counter.read_text() == "3"
    said = "ended with status 9; starting them again (2 of 5): the job starts from the beginning, as there is no checkpoint yet"
    assert said in capfd.readouterr().err


def test_it_gives_up_where_no_start_brings_a_cut(tmp_path, monkeypatch, capfd):
    made, counter = supervisor(tmp_path, monkeypatch, "sys.exit(7)", 50)
    assert made.run() == 7
    assert counter.read_text() == str(MOST_IN_VAIN)
    assert "without a new cut" in capfd.readouterr().err


def test_a_later_start_is_given_what_goes_on(tmp_path, monkeypatch):
    made, _ = supervisor(tmp_path, monkeypatch, "(cuts / sys.argv[1]).touch(); sys.exit(n == 0)", 1)
    assert made.run() == 0
    assert {path.name for path in (tmp_path / "cuts").iterdir()} == {"first", "again"}


def test_told_to_end_it_does_not_start_again(tmp_path, monkeypatch):
    made, counter = supervisor(tmp_path, monkeypatch, "import time; time.sleep(60)", 5)
    monkeypatch.setattr(made, "_cuts", lambda: made._on_signal(signal.SIGTERM, None) or set())
    assert made.run() == 128 + signal.SIGTERM
    assert not counter.exists() or counter.read_text() == "1"


def test_the_last_line_says_what_the_same_command_does(tmp_path, monkeypatch, capfd):
    code = (
        "import json, time; job = cuts.parent; (job / 'job.json').write_text('{}'); (job / 'rank_0').mkdir(); "
        "(job / 'rank_0' / 'lost.log').write_text(json.dumps(dict(at=time.time(), attempt=1, why='rank 1 is gone')) + chr(10)); "
        "print('a traceback of the launcher', file=sys.stderr); sys.exit(1)"
    )
    made, _ = supervisor(tmp_path, monkeypatch, code, 0)
    JobDirectory(tmp_path).manifests.write(Manifest("checkpoint_1_20.h5", 3, 1, 20, 120, ()))
    assert made.run() == 1
    assert capfd.readouterr().err.splitlines()[-1] == (
        "detrain: rank 1 is gone, so all have ended; the same command resumes from checkpoint_1_20.h5 (epoch 1, batch 20)"
    )


def test_nothing_is_promised_of_a_job_that_was_refused(tmp_path, monkeypatch, capfd):
    made, _ = supervisor(tmp_path, monkeypatch, "print('refused', file=sys.stderr); sys.exit(2)", 0)
    assert made.run() == 2
    assert capfd.readouterr().err == "refused\n"


def test_options_of_the_first_start(tmp_path):
    given = ["--fresh", "--every", "5batches", "--from", "c1", "--from=c2", "--keep", "2"]
    assert _without(given, "--fresh", "--from") == ["--every", "5batches", "--keep", "2"]


@pytest.mark.full
def test_the_launcher_does_not_outlive_it(tmp_path):
    launcher_code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    code = (
        "import sys, pathlib; from detrain.launch import supervising; "
        f"supervising.launchers.command = lambda _: [sys.executable, '-c', {launcher_code!r}]; "
        "supervising.Supervisor([], [], 2, 0, pathlib.Path('.')).run()"
    )
    words = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        launcher = int(process.stdout.readline())
        process.kill()
    until_s = time.monotonic() + 10
    while Path(f"/proc/{launcher}").exists() and "Z" not in Path(f"/proc/{launcher}/stat").read_text().split()[2]:
        assert time.monotonic() < until_s
        time.sleep(0.05)


@pytest.mark.parametrize(("status", "expected"), [(0, []), (7, ["left"])])
def test_before_it_ends_with_a_job_that_has_not_something_may_be_waited_for(tmp_path, monkeypatch, status, expected):
    made, _ = supervisor(tmp_path, monkeypatch, f"sys.exit({status})", 0)
    left = []
    monkeypatch.setattr(made, "_on_leaving", lambda: left.append("left"))
    assert made.run() == status
    assert left == expected
