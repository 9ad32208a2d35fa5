"""Leaving a training that is to go on later."""

import math
import signal
import sys
import time

import click
import pytest

from detrain.cli.requests import DURATION
from detrain.launch import supervising
from detrain.launch.departing import STATUS, job_of, requeue
from detrain.launch.supervising import Supervisor


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3h", 10800), ("1h30m", 5400), ("90s", 90), ("0.5h", 1800), ("2-12:00:00", 216_000), ("01:00:00", 3600), ("10:30", 630), (5, 5)],
)  # fmt: skip
def test_times(text, seconds):
    assert DURATION.convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["3", "h", "3 h", "0s", "1:2:3:4", "-5s", "3h5"])
def test_other_times_are_refused(text):
    with pytest.raises(click.BadParameter, match=text):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("variables", "job"),
    [
        ({}, ""),
        ({"SLURM_JOB_ID": "77"}, "77"),
        ({"SLURM_JOB_ID": "79", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "2"}, "77_2"),
    ],
)
def test_the_job_as_scontrol_names_it(variables, job):
    assert job_of(variables) == job


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import sys; open('asked', 'w').write(' '.join(sys.argv[1:]))", "job 77 is requeued"),
        ("import sys; sys.exit('Requested operation is presently disabled')", "has failed: Requested operation is presently disabled"),
        ("import sys; sys.exit(3)", "has failed: status 3"),
    ],
)  # fmt: skip
def test_the_scheduler_is_asked_to_start_the_job_again(tmp_path, monkeypatch, capfd, code, says):
    command = tmp_path / "scontrol"
    command.write_text(f"#!{sys.executable}\n{code}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    requeue({"SLURM_JOB_ID": "77"})
    assert says in capfd.readouterr().err
    assert "sys.argv" not in code or (tmp_path / "asked").read_text() == "requeue 77"


def test_where_there_is_no_scheduler_nobody_is_asked(monkeypatch, capfd):
    monkeypatch.setenv("PATH", "")
    requeue({})
    assert capfd.readouterr().err == ""
    requeue({"SLURM_JOB_ID": "77"})
    assert "[not-requeued]" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("limit_s", "told", "is_requeued", "status"),
    [(-1.0, 0, False, STATUS), (math.inf, 0, False, 9), (math.inf, signal.SIGUSR1, True, STATUS), (math.inf, 0, True, 9)],
)  # fmt: skip
def test_a_job_whose_ranks_were_to_end_is_not_started_again(tmp_path, monkeypatch, limit_s, told, is_requeued, status):
    counter = tmp_path / "starts"
    program = f"import sys; open({str(counter)!r}, 'a').write('x'); sys.exit(9)"
    monkeypatch.setattr(supervising.launchers, "command", lambda _: [sys.executable, "-c", program])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    made = Supervisor([], [], 2, 1, tmp_path, time.monotonic() + limit_s, is_requeued=is_requeued)
    if told:
        started = made._start
        monkeypatch.setattr(made, "_start", lambda words: made._on_signal(told, None) or started(words))
    assert made.run() == status
    num_starts = (
        len(counter.read_text()) if counter.exists() else 0
    )  # one that is told at once may not come to its first statement
    assert num_starts <= 1 if status == STATUS else num_starts == 2
