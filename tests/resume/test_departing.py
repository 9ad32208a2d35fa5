"""A training that ends because its time is up, or because a scheduler takes the machine away, goes on later with the same bits."""

import itertools
import json
import signal
import subprocess
import sys
import time

import pytest

from .harness import environment

SCRIPT = """\
import os, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    for number, x in enumerate(torch.randn(20, 4, 8)):
        opt.zero_grad()
        model(x).square().mean().backward()
        opt.step()
        print("batch", epoch, number, flush=True)
        if (epoch, number) == (1, 7) and not os.path.exists("once"):
            open("once", "x").close()
            time.sleep(float(os.environ.get("SLEEP_S", "0")))
            print("slept", flush=True)
print([value.hex() for value in model.weight[0].tolist()])
"""


@pytest.fixture
def start(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "scontrol").write_text(
        f"#!{sys.executable}\nimport sys\nprint(*sys.argv[1:], file=open('asked', 'a'))\n"
    )
    (tmp_path / "scontrol").chmod(0o755)

    def run(*words, **more):
        found = environment()
        command = [sys.executable, "-m", "detrain", "run", *words, "train.py"]
        more["PATH"] = f"{tmp_path}:{found['PATH']}"
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            return subprocess.Popen(command, cwd=tmp_path, env={**found, **more}, stdout=out, stderr=err)

    return run


@pytest.mark.parametrize("why", ["limit", pytest.param("signal", marks=pytest.mark.full)])
def test_it_goes_on_with_the_same_bits(start, tmp_path, why):
    plain = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    (tmp_path / "once").unlink()
    limit = (
        ["--time-limit", "1s"] if why == "limit" else []
    )  # it is over before the script has loaded torch, or while it sleeps
    log = ["--log-json", "log"]
    process = start("--requeue", *limit, *log, SLURM_JOB_ID="77", SLEEP_S="3")
    if why == "signal":
        while "batch 1 7" not in (tmp_path / "out").read_text():
            assert process.poll() is None, (tmp_path / "err").read_text()
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=60) == 75
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert "on disk; the same command resumes from it" in err
    assert ("the time limit is reached" in err) == (why == "limit")
    assert (tmp_path / "asked").read_text() == "requeue 77\n"
    first = out
    assert start("--quiet", *log).wait(timeout=60) == 0
    out, err = ((tmp_path / name).read_text() for name in ("out", "err"))
    assert err == ""
    assert 0 < first.count("batch ") < 60
    events = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    told = [one["event"] for one in events if one["event"] not in ("said", "progress")]
    assert [kind for kind, _ in itertools.groupby(told)] == [
        "began",
        "saved",
        "ended",
        "began",
        "resumed",
        "saved",
        "ended",
    ]
    assert [(one["status"], one["is_finished"]) for one in events if one["event"] == "ended"] == [
        (75, False),
        (0, True),
    ]
    assert {one["batches"] for one in events if one["event"] == "progress"} <= set(range(61))
    assert first + out == plain.stdout.replace("slept\n", "" if "slept" not in first + out else "slept\n")
