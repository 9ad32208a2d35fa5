"""`detrain verify`: a run is done again where it can touch nothing, and proved."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import environment

pytestmark = pytest.mark.usefixtures("sandbox")

TRAINING = """
import os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(10, 4, 6)
log = open("log.txt", "a")
for epoch in range(4):
    for batch in range(10):
        optimizer.zero_grad()
        loss = model(data[batch]).square().mean()
        loss.backward()
        optimizer.step()
        log.write(f"{epoch} {batch} {loss.item()}\\n")
        if epoch == 2 and batch == 6:
            exec(os.environ.get("MEDDLE", ""))
torch.save(model.state_dict(), "model.pt")
print("the end", model[0].weight.sum().item())
"""
PLANTS = {
    "one bit of one weight": (
        "model[0].weight.data.view(-1).view(torch.int32)[5] ^= 1", {"leaf": "script.model['0'].weight", "batches": 27}
    ),
    "a generator advanced once": ("torch.rand(())", {"leaf": "a generator of random numbers", "batches": 27}),
}  # fmt: skip


def everything_in(folder: Path) -> dict[str, tuple[str, int]]:
    """Bytes and time of every file."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in files
    }


def result_of(one) -> dict:
    """What the last `verify` has left beside the run."""
    return json.loads((one.folder / "run" / "verified.json").read_text(encoding="utf-8"))


def test_a_finished_run_is_proved_and_nothing_of_the_users_is_touched(script) -> None:
    one = script(TRAINING)
    one.attempt("run", "--every", "25batches")
    before = everything_in(one.folder)
    assert "proved: the run was repeated to its end" in one.command("verify", "run")
    after, found = everything_in(one.folder), result_of(one)
    assert {name: what for name, what in after.items() if name != "run/verified.json"} == before
    assert found["same"]
    assert [row["result"] for row in found["segments"]] == ["same"] * len(found["segments"])
    assert found["segments"][0]["start"] == "the beginning"
    assert found["segments"][-1]["until"] == "the end"
    # The script's own file, written again to its end, has its bytes too.
    assert {Path(path).name for path in found["segments"][-1]["files"]["same"]} == {"log.txt", "model.pt"}
    # Each batch's record was compared: together at least as many as there are batches.
    assert sum(row["num_compared"] for row in found["segments"]) >= 40


@pytest.mark.full
def test_a_run_that_was_killed_and_resumed_is_proved(script) -> None:
    one = script(TRAINING)
    one.attempt("run", "--every", "24batches", status=-9, MEDDLE="os.kill(os.getpid(), 9)")
    broken = json.loads(one.command("verify", "run", "--json"))
    assert (broken["same"], broken["is_finished"]) == (True, False)
    assert broken["segments"][-1]["until"] == "the last record"
    one.attempt("run", "--every", "24batches")
    assert json.loads(one.command("verify", "run", "--json"))["same"]


@pytest.mark.full
@pytest.mark.parametrize("name", PLANTS)
def test_a_run_in_which_something_else_was_done_is_found_out(script, name: str) -> None:
    code, where = PLANTS[name]
    one = script(TRAINING)
    one.attempt("run", "--every", "20batches", MEDDLE=code)
    said = one.command("verify", "run", status=1)
    found = result_of(one)
    assert not found["same"]
    first = next(row for row in found["segments"] if row["result"] != "same")
    assert {key: first["difference"][key] for key in where} == where
    told = f"segment {first['number']}: after batch 27 of the run (epoch 2, batch 7), {where['leaf']} is not what the run had there"
    assert told in said


@pytest.mark.full
def test_a_damaged_checkpoint_is_no_proof(script) -> None:
    one = script(TRAINING)
    one.attempt("run", "--every", "16batches")
    path = sorted((one.folder / "run").glob("checkpoint_*.h5"))[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = one.command("verify", "run", status=1)
    assert path.name in said
    assert "not proved" in said


def test_what_cannot_be_done_again_is_said(script) -> None:
    one = script(TRAINING)
    one.attempt("run", "--every", "6batches")
    script(TRAINING.replace("0.5", "0.4"))
    one.command("verify", "run", status=2)
    assert f"the source has changed since the run: {one.path}" in one.said
    one.command("verify", ".", status=2)
    assert "is no run directory" in one.said


def test_a_run_that_goes_on_is_left_alone(script) -> None:
    one = script("import time\nfor _ in range(600): time.sleep(0.1)")
    words = [sys.executable, "-m", "detrain", "run", "--ckpt-dir", "run", str(one.path)]
    running = subprocess.Popen(words, cwd=one.folder, env=environment({}))
    try:
        deadline_s = time.monotonic() + 60
        while not (one.folder / "run" / "run.json").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        one.command("verify", "run", status=2)
        assert "is going on; it is held by process" in one.said
    finally:
        running.kill()
        running.wait()


#: Says what it can reach of the world.
REACHING = """
import os, socket, sys
import torch
def can(do):
    try:
        do()
    except OSError as error:
        return type(error).__name__
    return "yes"
reach = can(lambda: socket.create_connection(("127.0.0.1", int(os.environ["PORT"])), timeout=5).close())
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
os.makedirs("results", exist_ok=True)
open("results/reach.txt", "w").write(reach)
os.unlink("mine.txt")
"""


@pytest.mark.full
def test_a_script_done_again_reaches_no_network_and_deletes_nothing(script, monkeypatch) -> None:
    one = script(REACHING)
    (one.folder / "mine.txt").write_text("mine", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PORT", str(server.getsockname()[1]))
        one.attempt("run", "--every", "2batches")
        (one.folder / "mine.txt").write_text("mine", encoding="utf-8")
        assert (one.folder / "results" / "reach.txt").read_text(encoding="utf-8") == "yes"
        found = json.loads(one.command("verify", "run", "--json", status=1))
    assert (one.folder / "mine.txt").read_text(encoding="utf-8") == "mine"
    # The run had reached a server, and what came of it is in its state: without a network it cannot be proved.
    assert "reach" in str([row.get("difference") for row in found["segments"]])


#: As CUDA's driver does; and what nobody may do there.
ENTERED = """
import os, pathlib, tempfile, torch
from detrain.proof import sandbox

sandbox.enter([], [], pathlib.Path(tempfile.mkdtemp()))
pathlib.Path("/proc/self/comm").write_text("trainer")
assert pathlib.Path("/proc/self/comm").read_text() == "trainer\\n"
for name in ("/proc/sys/kernel/hostname", "/etc/new", "mine.txt"):
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        print(name, error.strerror)
"""


def test_names_of_threads_may_be_written_but_neither_settings_nor_files(tmp_path) -> None:
    (tmp_path / "mine.txt").touch()
    done = subprocess.run(
        [sys.executable, "-c", ENTERED], cwd=tmp_path, env=environment({}), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f"{name} Read-only file system" for name in ("/proc/sys/kernel/hostname", "/etc/new", "mine.txt")
    ]


#: The first update comes late, so the loops are found late, and batches are counted from then on.
WARMING_UP = """
import os
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
replay = []
for episode in range(5):
    for step in range(int(os.environ.get("STEPS", "8"))):
        replay.append(torch.randn(4))
        if len(replay) > 20:
            optimizer.zero_grad()
            (model(torch.stack(replay[-8:])).square().mean() * float(os.environ.get("SCALE", "1"))).backward()
            optimizer.step()
"""


@pytest.mark.full
def test_a_run_whose_loops_were_found_late_is_proved_record_by_record(script, monkeypatch) -> None:
    one = script(WARMING_UP)
    one.attempt("run", "--every", "never")
    (row,) = json.loads(one.command("verify", "run", "--json"))["segments"]
    assert row["num_compared"] >= row["num_records"] > 15
    monkeypatch.setenv("SCALE", "3")
    assert "is not what the run had there" in one.command("verify", "run", status=1)
    monkeypatch.setenv("SCALE", "1")
    monkeypatch.setenv("STEPS", "7")
    found = json.loads(one.command("verify", "run", "--json", status=1))
    assert not found["same"]


@pytest.mark.full
def test_without_a_ledger_and_checkpoints_nothing_is_proved(script) -> None:
    one = script(WARMING_UP)
    one.attempt("run", "--every", "never")
    (one.folder / "run" / "ledger").unlink()
    one.command("verify", "run", status=1)
