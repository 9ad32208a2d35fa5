"""What `detrain run` says and does when something is not as it should be. Nothing is ever lost."""

import json
import re
import subprocess
import sys
import textwrap

import pytest

from detrain.store.directory import RunDirectory

LOOP = """\
import torch{imports}
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
{setup}
for epoch in range(3):
    for x in torch.ones(3, 2, 2):
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()
        {body}
print("weight", model.weight.tolist())
"""


def script(imports="", setup="", body="pass"):
    return LOOP.format(imports=imports, setup=setup, body=body)


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("checkpoint_*.h5"))


def by_age(folder):
    return [found.path for found in RunDirectory(folder).read_checkpoints()[0]]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.glob("checkpoint_*.h5")}


def test_truncated_latest_checkpoint_is_passed_over_and_named(runs, killed):
    last, before = by_age(killed)[:2]
    last.write_bytes(last.read_bytes()[:2000])
    said = runs.detrain("run", "--ckpt-dir", killed, "train.py")
    assert said.status == 0, said.err
    assert f"detrain: warning: {last.name} is not a whole checkpoint" in said.err
    assert f"from {before.name}, " in said.err
    assert said.out == runs.whole.out
    assert runs.detrain("diff", killed, "A").status == 0


def test_latest_checkpoint_with_one_changed_byte_is_passed_over(runs, killed):
    last, before = by_age(killed)[:2]
    raw = bytearray(last.read_bytes())
    raw[raw.index(b'"nodes"') + 100] ^= 1
    last.write_bytes(raw)
    said = runs.detrain("run", "--ckpt-dir", killed, "train.py")
    assert said.status == 0, said.err
    assert f"{last.name} is damaged: its state tree does not have the digest that it was written with" in said.err
    assert f"from {before.name}, " in said.err
    assert said.out == runs.whole.out


def test_run_whose_every_checkpoint_is_damaged_is_refused_and_left_alone(runs, killed):
    for path in killed.glob("checkpoint_*.h5"):
        path.write_bytes(path.read_bytes()[:300])
    before = content(killed)
    said = runs.detrain("run", "--ckpt-dir", killed, "train.py")
    assert (said.status, said.out) == (2, "")
    assert f"detrain: error: no checkpoint in {killed} can be used: " in said.err
    assert "Nothing was changed; start over with --fresh, which keeps them" in said.err
    assert content(killed) == before


def test_run_that_another_attempt_holds_is_refused(runs, killed):
    holder = RunDirectory(killed)
    holder.lock()
    try:
        said = runs.detrain("run", "--ckpt-dir", killed, "train.py")
        assert runs.detrain("ls", killed).out.count("running: process ") == 1
    finally:
        holder.unlock()
    assert (said.status, said.out) == (2, "")
    assert re.search(rf"detrain: error: the run directory {killed} is held by process \d+ on .* since ", said.err)
    assert "Wait for it, stop it, or choose another with --ckpt-dir" in said.err


def test_other_arguments_are_refused_with_both_named(runs, killed):
    before = content(killed)
    said = runs.detrain("run", "--ckpt-dir", killed, "train.py", "--lr", "0.1")
    assert (said.status, said.out) == (2, "")
    assert "holds a run of another command: arguments was [], is ['--lr', '0.1']" in said.err
    assert "--fresh (the old run is kept)" in said.err
    assert "--trust-changes" in said.err
    assert content(killed) == before


@pytest.mark.full
def test_other_arguments_are_taken_when_they_are_trusted(runs, killed):
    said = runs.detrain("run", "--trust-changes", "--ckpt-dir", killed, "train.py", "--lr", "0.1")
    assert said.status == 0, said.err
    assert "detrain: resumed at " in said.err
    assert said.out == runs.whole.out


@pytest.fixture
def other_source(detrain, tmp_path):
    """A killed run in the test's own folder, whose script has changed since: also above its loops."""
    path = tmp_path / "train.py"
    path.write_text(script("\nimport os", body='epoch == int(os.environ.get("DIE", -1)) and os.kill(os.getpid(), 9)'))
    assert detrain("run", "--every", "epoch", "train.py", DIE="1").status == -9
    path.write_text("import sys  # more\n\n" + path.read_text() + 'print("changed", sys.argv)\n')
    return tmp_path / ".detrain" / "train"


def test_changed_source_is_refused_then_taken_when_trusted(detrain, other_source, tmp_path):
    before = content(other_source)
    said = detrain("run", "train.py")
    assert (said.status, said.out) == (2, "")
    assert re.search(
        rf"the source has changed since checkpoint_\d+_\d+.h5: {tmp_path}/train.py \(lines 1, 2, \d+\)\. Put it back as it was, start over",
        said.err,
    )
    assert content(other_source) == before
    said = detrain("run", "--every", "epoch", "--trust-changes", "train.py", DIE="2")
    assert said.status == -9, said.err
    assert "detrain: resumed at epoch 1, " in said.err
    said = detrain("run", "train.py")  # the latest checkpoint is of the source of now
    assert said.status == 0, said.err
    assert "detrain: resumed at epoch 2, " in said.err
    assert "in 3 attempts" in said.err  # a refusal is none
    assert "proves what was trained since the run was changed" in said.err
    assert said.out.endswith("changed ['train.py']\n")


def test_fresh_moves_the_old_run_aside_and_starts_over(detrain, other_source):
    before = content(other_source)
    said = detrain("run", "--fresh", "train.py")
    assert said.status == 0, said.err
    assert f"detrain: starting over; the earlier run is kept in {other_source}.old1 (--fresh)" in said.err
    assert "resumed" not in said.err
    assert content(other_source.with_name("train.old1")) == before


@pytest.mark.full
def test_other_thread_count_is_not_taken_unless_trusted(runs, killed):
    said = runs.detrain("run", "--ckpt-dir", killed, "train.py", OMP_NUM_THREADS="2")
    assert said.status == 0, said.err
    assert "detrain: restricted to what the run began with: OMP_NUM_THREADS=1\n" in said.err
    assert "detrain: resumed at " in said.err


@pytest.mark.full
def test_another_environment_is_refused_then_taken_when_trusted(runs, killed):
    record = json.loads((killed / "run.json").read_text(encoding="utf-8"))
    del record["machine"]  # nothing to hold the attempt to
    (killed / "run.json").write_text(json.dumps(record), encoding="utf-8")
    said = runs.detrain("run", "--ckpt-dir", killed, "train.py", ATEN_CPU_CAPABILITY="default")
    assert (said.status, said.out) == (2, "")
    assert "the environment differs from the checkpoint's: torch_cpu_capability is DEFAULT, was " in said.err
    assert "go back to the old environment, start over with --fresh, or resume with --trust-changes" in said.err
    said = runs.detrain("run", "--trust-changes", "--ckpt-dir", killed, "train.py", ATEN_CPU_CAPABILITY="default")
    assert said.status == 0, said.err
    assert "detrain: resumed at " in said.err


def test_resume_from_a_named_checkpoint_starts_there(runs, killed):
    wanted = by_age(killed)[1].name
    said = runs.detrain("run", "--from", wanted, "--ckpt-dir", killed, "train.py")
    assert said.status == 0, said.err
    assert f" from {wanted}, " in said.err
    assert said.out == runs.whole.out


def test_resume_from_a_checkpoint_that_is_not_there_is_refused(runs, killed):
    said = runs.detrain("run", "--from", "checkpoint_9_9.h5", "--ckpt-dir", killed, "train.py")
    assert (said.status, said.out) == (2, "")
    assert f"detrain: error: --from checkpoint_9_9.h5: no such checkpoint in {killed}" in said.err


def test_script_without_a_training_loop_runs_and_is_told_why_nothing_was_saved(detrain, tmp_path):
    (tmp_path / "plain.py").write_text("for n in range(3):\n    print(n)\n")
    said = detrain("run", "plain.py")
    assert (said.status, said.out) == (0, "0\n1\n2\n")
    assert said.err == (
        "detrain: no training loop was seen, so nothing was checkpointed: the script loaded no framework that trains\n"
    )


def test_file_in_place_of_the_run_directory_stops_before_anything_starts(detrain, tmp_path):
    (tmp_path / "train.py").write_text("print('started')\n")
    (tmp_path / "run").write_text("a file")
    said = detrain("run", "--ckpt-dir", "run", "train.py")
    assert (said.status, said.out) == (2, "")
    assert f"detrain: error: the run directory {tmp_path}/run cannot be written: " in said.err
    assert "Nothing was started; choose another with --ckpt-dir" in said.err


@pytest.mark.full
def test_full_disk_in_mid_run_is_said_and_the_training_goes_on(detrain, tmp_path):
    """A limit on the size of files stands for a full disk: `run.json` fits, no checkpoint does."""
    (tmp_path / "train.py").write_text(
        script("\nimport resource", "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))")
    )
    said = detrain(
        "run", "--every", "epoch", "train.py", PYTHONDONTWRITEBYTECODE="1"
    )  # half of it would be found by the next
    assert said.status == 0, said.err
    assert said.out.startswith("weight ")
    assert "detrain: warning: no checkpoint could be written to " in said.err
    assert "Training goes on without; the last good one is none [checkpoint-failed]" in said.err
    assert said.err.count("no checkpoint could be written") == 1
    assert re.search(
        r"warning: [34] checkpoints could not be written since [\d:]{8}, to the end of the script \[checkpoint-failed\]\n",
        said.err,
    )
    assert checkpoints(tmp_path / ".detrain" / "train") == []


def test_run_directory_that_vanishes_in_mid_run_is_said_and_the_training_goes_on(detrain, tmp_path):
    body = 'epoch == 1 and os.path.isdir("run") and os.rename("run", "moved")'
    (tmp_path / "train.py").write_text(script("\nimport os", body=body))
    said = detrain("run", "--ckpt-dir", "run", "--every", "epoch", "train.py")
    assert said.status == 0, said.err
    assert said.out.startswith("weight ")
    assert f"detrain: warning: no checkpoint could be written to {tmp_path}/run: " in said.err
    assert checkpoints(tmp_path / "moved")


@pytest.mark.parametrize(
    ("setup", "named"),
    [
        ("import socket\nthing = socket.socket()", r"train\.thing \(socket:socket\)"),
        ("import _thread\nimport _ssl\nthing = _ssl._SSLContext(2)", r"train\.thing \(_ssl:_SSLContext\)"),
    ],
    ids=["open socket", "type in C without pickling"],
)
def test_state_that_cannot_be_captured_is_named_and_its_resume_refused(detrain, tmp_path, setup, named):
    body = 'thing and epoch == 2 and os.environ.get("DIE") and os.kill(os.getpid(), 9)'
    (tmp_path / "train.py").write_text(script("\nimport os", textwrap.dedent(setup), body))
    said = detrain("run", "--every", "epoch", "train.py", DIE="1")
    assert said.status == -9
    assert re.search(
        rf"detrain: warning: {named}: .* If the loop changes it, a resume cannot be exact.*\[not-captured\]", said.err
    )
    assert len(re.findall(named, said.err)) == 1  # once, at the first checkpoint
    said = detrain("run", "train.py")
    assert (said.status, said.out) == (2, "")
    assert re.search(rf"this resume may not be exact, because these are not in the checkpoint: {named}: ", said.err)
    said = detrain("run", "--trust-changes", "train.py")
    assert said.status == 0, said.err
    assert "detrain: resumed at " in said.err


def test_fresh_is_the_way_out_of_a_record_that_cannot_be_read(tmp_path):
    (tmp_path / "script.py").write_text("print('ran')\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "run.json").write_text("{")
    words = [sys.executable, "-m", "detrain", "run", "--ckpt-dir", "d"]
    refused = subprocess.run([*words, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "Start over with --fresh" in refused.stderr
    fresh = subprocess.run([*words, "--fresh", "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (fresh.returncode, fresh.stdout) == (0, "ran\n"), fresh.stderr
    assert (tmp_path / "d.old1" / "run.json").read_text() == "{"


def test_model_name_tells_runs_of_one_script_apart(detrain, tmp_path):
    (tmp_path / "train.py").write_text("print('no loop')\n")
    assert detrain("run", "train.py", MODEL_NAME="small").status == 0
    assert [path.name for path in (tmp_path / ".detrain").iterdir()] == ["small"]


def test_iterator_with_a_thread_that_reads_ahead_is_named_and_its_resume_refused(detrain, tmp_path):
    # Also where the thread has read everything and ended long before the checkpoint.
    (tmp_path / "train.py").write_text(
        """\
import os, queue, threading, torch
class Ahead:
    def __init__(self, items):
        self.ready = queue.Queue()
        self.thread = threading.Thread(target=lambda: [self.ready.put(one) for one in items], daemon=True)
        self.thread.start()
        self.thread.join()
    def __iter__(self):
        return self
    def __next__(self):
        if self.ready.empty():
            raise StopIteration
        return self.ready.get()
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for number, x in enumerate(Ahead([torch.randn(4, 4) for _ in range(30)])):
    opt.zero_grad()
    model(x).pow(2).mean().backward()
    opt.step()
    if number == int(os.environ.get("DIE_AT", "-1")):
        os.kill(os.getpid(), 9)
"""
    )
    first = detrain("run", "--every", "2batches", "train.py", DIE_AT="9")
    assert first.status == -9
    assert "a thread of its own reads ahead for the loop" in first.err
    second = detrain("run", "--every", "2batches", "train.py")
    assert second.status == 2
    assert "a thread of its own reads ahead for the loop" in second.err


def test_a_process_of_the_script_that_makes_its_batches_is_named_and_the_resume_refused(detrain, tmp_path):
    (tmp_path / "train.py").write_text(
        """\
import multiprocessing, os, torch
def make(queue):
    for number in range(30):
        queue.put(float(number))
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.Queue(2)
    maker = context.Process(target=make, args=(queue,), daemon=True)
    maker.start()
    model = torch.nn.Linear(1, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    for number in range(25):
        opt.zero_grad()
        model(torch.full((1, 1), queue.get())).pow(2).mean().backward()
        opt.step()
        if number == int(os.environ.get("DIE_AT", "-1")):
            maker.kill()
            os.kill(os.getpid(), 9)
"""
    )
    first = detrain("run", "--every", "2batches", "train.py", DIE_AT="9")
    assert first.status == -9
    assert "a process of the script runs beside the loop" in first.err
    second = detrain("run", "--every", "2batches", "train.py")
    assert second.status == 2
    assert "train.maker" in second.err
    assert "a process of the script runs beside the loop" in second.err


def test_script_named_with_a_dot_is_resumed_under_that_name_and_without_it(detrain, tmp_path):
    (tmp_path / "train.py").write_text(
        """\
import os, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
def record_batch(loss):
    seen.append(loss)
def numbers():
    while True:
        yield from range(20)
for epoch in range(3):
    for batch in numbers():
        opt.zero_grad()
        loss = model(torch.randn(4, 4)).pow(2).mean()
        loss.backward()
        opt.step()
        record_batch(loss.item())
        if f"{epoch}.{batch}" == os.environ.get("DIE_AT"):
            os.kill(os.getpid(), 9)
        if batch == 19:
            break
print(sum(seen))
"""
    )
    whole = detrain("run", "--ckpt-dir", "A", "./train.py")
    assert whole.status == 0, whole.err
    assert detrain("run", "--ckpt-dir", "B", "--every", "3batches", "./train.py", DIE_AT="1.7").status == -9
    second = detrain("run", "--ckpt-dir", "B", "--every", "3batches", "./train.py", DIE_AT="2.7")
    assert "resumed at epoch 1, batch 6" in second.err
    third = detrain("run", "--ckpt-dir", "B", "--every", "3batches", "train.py")
    assert "resumed at epoch 2, batch 6" in third.err
    assert third.out == whole.out


def test_time_that_set_up_code_takes_is_not_taken_for_an_epochs(detrain, tmp_path):
    # Long epochs get a checkpoint at each beginning; these are short.
    (tmp_path / "train.py").write_text(
        """\
import time, torch
time.sleep(1.5)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(40):
    for batch in range(2):
        opt.zero_grad()
        model(torch.randn(4, 4)).pow(2).mean().backward()
        opt.step()
"""
    )
    said = detrain("run", "--ckpt-dir", "R", "--keep", "100", "--every", "2s", "train.py")
    assert said.status == 0, said.err
    assert len(list((tmp_path / "R").glob("checkpoint_*"))) < 20
