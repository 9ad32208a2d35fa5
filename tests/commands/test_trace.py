"""What `detrain trace` says when there is nothing to find, or when it is given something else."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from detrain.cli.trace import vary_arguments

from .conftest import call

SCRIPT = """\
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=64)
parser.add_argument("--mode", default="train")
args = parser.parse_args()
print("mode", args.mode)


class Rows:
    def __init__(self, n):
        self.rows = torch.randn(n, 4)
        self.notes = [0] * (n // 2)

    def grab(self, batch):
        return self.rows[torch.arange(4) + batch]


rows = Rows(args.n)
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for batch in range(20):
        loss = model(rows.grab(batch)).pow(2).mean()
        opt.zero_grad()
        if args.mode == "fail":
            raise RuntimeError("no such luck")
        if args.mode == "exit":
            raise SystemExit(7)
        if args.mode != "look":
            loss.backward()
            opt.step()
"""


@pytest.fixture
def trace(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return lambda *words, **env: call("trace", "--ckpt-dir", "R", *words, folder=tmp_path, **env)


def test_script_that_updates_nothing_is_told_what_was_seen(trace, tmp_path):
    said = trace("train.py", "--mode", "look")
    assert said.status == 1
    assert "no weight update was seen inside a loop: the script was watched for" in said.err
    assert "0 computations of gradients, 0 updates" in said.err
    assert "train.py:22 (60 iterations)" in said.err
    assert not (tmp_path / "R" / "inst.info").exists()


def test_script_that_fails_shows_its_traceback_and_its_status(trace):
    said = trace("train.py", "--mode", "fail")
    assert said.status == 1
    assert 'train.py", line 26, in <module>' in said.err
    assert "RuntimeError: no such luck" in said.err
    assert "detrain/" not in said.err.partition("detrain: error")[0]
    assert "the script failed in round 1" in said.err


def test_script_that_exits_gives_its_status(trace):
    assert trace("train.py", "--mode", "exit").status == 7


def test_output_of_the_script_goes_to_a_log(trace, tmp_path):
    said = trace("train.py")
    assert said.status == 0
    assert said.out == ""
    assert (tmp_path / "R" / "trace-1.log").read_text() == "mode train\n"


@pytest.mark.full
def test_second_round_with_the_same_data_says_that_nothing_changed(trace):
    said = trace("--vary", "--n 64", "train.py", "--n", "64")
    assert said.status == 1
    assert "nothing that is reachable from the loops has changed its size" in said.err


@pytest.mark.full
def test_difference_that_matches_nothing_lists_what_did_change(trace):
    said = trace("--vary", "--n 96", "--diff-size", "5", "train.py", "--n", "64")
    assert said.status == 1
    assert "nothing differs by 5; what differs:" in said.err
    assert "train.rows.rows +32" in said.err
    assert "train.rows.notes +16" in said.err


def test_second_round_without_a_first_is_refused(trace):
    said = trace("--diff-size", "32", "train.py", "--n", "96")
    assert said.status == 2
    assert "has no result of round one" in said.err


def test_rounds_one_by_one_as_the_prototype_had_them(tmp_path):
    run = Path(__file__).parents[2] / "run"
    if shutil.which("detrain") is None:
        pytest.skip("./run takes the active environment, and none with detrain is active")
    (tmp_path / "train.py").write_text(SCRIPT)
    env = {**os.environ, "CKPT_DIR": "R", "ENABLE_TRACE": "1"}
    first = subprocess.run([run, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    assert "training loop found: train.py:21 (epoch) > train.py:22 (batch)" in first.stderr
    again = subprocess.run(
        [run, "train.py", "--n", "96"], cwd=tmp_path, env={**env, "DIFF_SIZE": "32"}, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert "data loader: train.Rows, asked by Rows.grab at train.py:23; its state is in checkpoints" in again.stderr


INFO = {
    "code_info": {
        "loop_file_name": "train.py",
        "loop_line_no": "22",
        "epoch_file_name": "train.py",
        "epoch_line_no": "21",
    }
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'code_info':\n open('x')}", "/R/inst.info, line 2: open('x') is no plain value"),
        (repr({"code_info": {**INFO["code_info"], "loop_line_no": "23"}}), "no loop begins on that line; loops of that file begin on"),
        (repr({"code_info": {**INFO["code_info"], "loop_file_name": "gone.py"}}), "which cannot be read"),
        (repr({"version": 99, **INFO}), "has version 99; this detrain reads up to 1"),
    ],
)  # fmt: skip
def test_inst_info_that_cannot_be_used_is_refused(tmp_path, text, expected):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "R").mkdir()
    (tmp_path / "R" / "inst.info").write_text(text)
    said = call("run", "--ckpt-dir", "R", "train.py", folder=tmp_path)
    assert said.status == 2, said.err
    assert expected in said.err
    assert said.out == ""


def test_inst_info_written_by_hand_is_honoured(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "R").mkdir()
    # The user says that the outer loop alone is the batch loop.
    (tmp_path / "R" / "inst.info").write_text(repr({"code_info": {"loop_file_name": "train.py", "loop_line_no": "21"}}))
    said = call("run", "--ckpt-dir", "R", "--every", "1batches", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    names = sorted(path.name for path in (tmp_path / "R").glob("checkpoint_*"))
    assert names == ["checkpoint_0_1.h5", "checkpoint_0_2.h5", "checkpoint_0_3.h5"]


@pytest.mark.full
def test_inst_info_is_made_anew_when_the_script_has_changed(trace, tmp_path):
    assert trace("train.py").status == 0
    (tmp_path / "train.py").write_text("# one more line\n" + SCRIPT)
    said = call("run", "--ckpt-dir", "R", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    assert "the source has changed" in said.err
    assert "training loop found: train.py:22 (epoch) > train.py:23 (batch)" in said.err


@pytest.mark.parametrize(
    ("arguments", "varied", "expected"),
    [
        ("--n 64", "--n 96", "--n 96"),
        ("--n=64 --quick", "--n=96", "--n=96 --quick"),
        ("--n 64 --lr 0.1", "--lr 0.5 --n 96", "--n 96 --lr 0.5"),
        ("--lr 0.1", "--n 96", "--lr 0.1 --n 96"),
        ("--lr 0.1", "--n=96", "--lr 0.1 --n=96"),
        ("--sizes 1 2 3 --quick", "--sizes 4 5", "--sizes 4 5 --quick"),
        ("--x -5", "--x -7", "--x -7"),
        ("piano --lr 0.1", "piano1", "piano1 --lr 0.1"),
        ("--lr 0.1 piano out", "piano1", "--lr 0.1 piano1 out"),
        ("", "piano1", "piano1"),
    ],
)
def test_arguments_of_round_two(arguments, varied, expected):
    assert vary_arguments(arguments.split(), varied.split()) == expected.split()


@pytest.mark.full
def test_training_that_ends_before_it_is_settled_is_described_all_the_same(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT.replace("range(3)", "range(1)").replace("range(20)", "range(5)"))
    said = call("trace", "--ckpt-dir", "R", "--vary", "--n 96", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    assert "training loop found: train.py:21 (epoch) > train.py:22 (batch)" in said.err
    assert "data loader: train.Rows, asked by Rows.grab" in said.err


@pytest.mark.full
def test_two_loops_that_train_are_both_named_with_how_to_choose(tmp_path):
    lines = (
        SCRIPT.partition("for epoch")[0]
        + """\
for epoch in range(3):
    for batch in range(4):
        opt.zero_grad()
        model(rows.grab(batch)).pow(2).mean().backward()
        opt.step()
    for batch in range(4):
        opt.zero_grad()
        model(rows.grab(batch)).abs().mean().backward()
        opt.step()
"""
    )
    (tmp_path / "train.py").write_text(lines)
    said = call("trace", "--ckpt-dir", "R", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    assert "2 training loops are candidates" in said.err
    assert "train.py:21 (epoch) > train.py:22 (batch); train.py:21 (epoch) > train.py:26 (batch)" in said.err
    assert "To keep one, take the others out of `nests`" in said.err
    info = (tmp_path / "R" / "inst.info").read_text()
    assert "'update_call_line_no': '25'" in info


CRITICS = """\
import torch
critic, maker = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
critic_opt, maker_opt = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (critic, maker))
for step in range(8):
    for _ in range(3):
        critic_opt.zero_grad()
        critic(maker(torch.randn(2, 4)).detach()).mean().backward()
        critic_opt.step()
    maker_opt.zero_grad()
    critic(maker(torch.randn(2, 4))).mean().backward()
    maker_opt.step()
"""


def test_nest_written_by_hand_stays_though_another_would_be_found(tmp_path):
    (tmp_path / "train.py").write_text(CRITICS)
    (tmp_path / "R").mkdir()
    code = {"loop_file_name": "train.py", "loop_line_no": "5", "epoch_file_name": "train.py", "epoch_line_no": "4"}
    (tmp_path / "R" / "inst.info").write_text(repr({"code_info": code}))
    said = call("run", "--ckpt-dir", "R", "--every", "2batches", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    assert "training loop found" not in said.err
    assert (tmp_path / "R" / "checkpoint_7_2.h5").exists()


@pytest.mark.full
def test_run_that_starts_over_keeps_what_was_traced(trace, tmp_path):
    assert trace("--vary", "--n 96", "train.py").status == 0
    traced = (tmp_path / "R" / "inst.info").read_text()
    said = call("run", "--ckpt-dir", "R", "--fresh", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    assert "training loop found" not in said.err
    kept = (tmp_path / "R" / "inst.info").read_text()
    assert kept.replace("'complete': True", "'complete': False") == traced


@pytest.mark.full
def test_script_with_sparse_gradients_is_traced(tmp_path):
    (tmp_path / "train.py").write_text(
        """\
import torch
table = torch.nn.Embedding(16, 4, sparse=True)
opt = torch.optim.SGD(table.parameters(), lr=0.1)
for epoch in range(2):
    for batch in range(20):
        opt.zero_grad(set_to_none=False)
        table(torch.randint(16, (4,))).pow(2).sum().backward()
        opt.step()
"""
    )
    said = call("trace", "--ckpt-dir", "R", "train.py", folder=tmp_path)
    assert said.status == 0, said.err
    assert "train.py:4 (epoch) > train.py:5 (batch)" in said.err


@pytest.mark.full
def test_second_round_of_a_changed_script_is_refused(trace, tmp_path):
    assert trace("train.py").status == 0
    (tmp_path / "train.py").write_text(SCRIPT + "# one more line\n")
    said = trace("--diff-size", "32", "train.py", "--n", "96")
    assert said.status == 2
    assert "the source has changed between round one and round two" in said.err


@pytest.mark.full
def test_module_is_traced_and_then_run_from_what_was_found(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text(SCRIPT)
    said = call("trace", "--ckpt-dir", "R", "--vary", "--n 96", "-m", "pkg.train", folder=tmp_path)
    assert said.status == 0, said.err
    assert "data loader: pkg.train.Rows" in said.err
    ran = call("run", "--ckpt-dir", "R", "-m", "pkg.train", folder=tmp_path)
    assert ran.status == 0, ran.err
    assert "the source has changed" not in ran.err
    assert "training loop found" not in ran.err


@pytest.mark.full
def test_what_was_traced_is_known_to_every_run_of_the_script_and_traced_again_to_those_that_come_to_know(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert call("trace", "train.py", folder=tmp_path).status == 0
    arguments = ("run", "--every", "never", "train.py", "--n", "68")
    said = call(*arguments, "--mode", "exit", folder=tmp_path)
    assert said.status == 7
    assert "training loop found" not in said.err
    (tmp_path / "train.py").write_text("\n" + SCRIPT)
    assert call("trace", "train.py", folder=tmp_path).status == 0
    said = call(*arguments, "--mode", "exit", folder=tmp_path)
    assert said.status == 7
    assert "no checkpoint yet: starting again from the beginning (attempt 2)" in said.err
    assert "searching for the training loop again" not in said.err
