"""A resumed attempt is checked against what the killed one had written into the ledger."""

from __future__ import annotations

import json

import pytest

from detrain.store import ledger
from tests.tiers import full_but

#: Killed at batch 14 of the second epoch; where MEDDLE is set, a later attempt does something else at its batch 11.
TRAINING = """
import os, random, time
import numpy as np
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
data = torch.randn(20, 4, 6)
for epoch in range(3):
    for batch in range(20):
        time.sleep(0.01)
        optimizer.zero_grad()
        loss = model(data[batch]).square().mean()
        loss.backward()
        optimizer.step()
        if epoch == 1 and batch == 11:
            exec(os.environ.get("MEDDLE", ""))
        if epoch == 1 and batch == 14 and os.environ.get("DIE"):
            os.kill(os.getpid(), 9)
print("the end", model[0].weight.sum().item())
"""

MEDDLINGS = {
    "one bit of one weight": ("model[0].weight.data.view(-1).view(torch.int32)[5] ^= 1", "script.model['0'].weight"),
    "one bit of an optimizer's moment": (
        "next(iter(optimizer.state.values()))['exp_avg'].view(-1).view(torch.int32)[0] ^= 1",
        "script.optimizer.state[script.model['0'].weight].exp_avg",
    ),
    "a number drawn from torch": ("torch.rand(())", "a generator of random numbers"),
    "a number drawn from numpy": ("np.random.rand()", "a generator of random numbers"),
    "a number drawn from Python": ("random.random()", "a generator of random numbers"),
}


@pytest.mark.parametrize("name", full_but(["one bit of one weight"], MEDDLINGS))
def test_a_resumed_attempt_that_does_something_else_is_stopped_and_told_where(script, name: str) -> None:
    code, leaf = MEDDLINGS[name]
    one = script(TRAINING)
    one.attempt("run", "--every", "9batches", status=-9, DIE="1")
    assert one.attempt("run", "--every", "9batches", status=1, MEDDLE=code) == ""
    assert (
        f"after batch 32 of the run (epoch 1, batch 12), {leaf} differs from what the killed attempt had there"
        in one.said
    )
    # Trusted, it goes on; and what it then does is what counts.
    assert "the end" in one.attempt("run", "--every", "9batches", "--trust-changes", MEDDLE=code)
    assert f"{leaf} differs" in one.said


def test_an_exact_resume_passes_and_the_ledger_tells_of_all_batches(script) -> None:
    one = script(TRAINING)
    whole = one.attempt("whole", "--every", "9batches")
    one.attempt("run", "--every", "9batches", status=-9, DIE="1")
    assert one.attempt("run", "--every", "9batches") == whole
    a, b = (ledger.read(one.folder / name / "ledger") for name in ("whole", "run"))
    assert [attempt["attempt"] for attempt in b.attempts] == [1, 2]
    assert {number for number, _ in a.batches} == {number for number, _ in b.batches} >= set(range(2, 61))
    assert all(a.batches[key].generators == b.batches[key].generators for key in a.batches)
    assert {path for path, _ in b.lists[max(b.lists)]} >= {"script.model['0'].weight", "script.model['2'].bias"}


#: A resume that takes long, as that of a large model does.
SLOW = """
import time
from detrain.session.resume import Resume
def at_header(self, *arguments, at_header=Resume.at_header):
    at_header(self, *arguments)
    if not self.is_pending:
        time.sleep(0.3)
Resume.at_header = at_header
"""


@pytest.mark.full
def test_a_resumed_attempt_goes_on_recording_between_checkpoints(script) -> None:
    """The time that a resume takes is not the ledger's: it would wait five times as long for its next record."""
    one = script(SLOW + TRAINING.replace("0.01", "0.03"))
    one.attempt("run", "--every", "9batches", status=-9, DIE="1", DETRAIN_LEDGER_BUDGET="0.2")
    one.attempt("run", "--every", "never", DETRAIN_LEDGER_BUDGET="0.2")
    assert {number for number, _ in ledger.read(one.folder / "run" / "ledger").batches} & set(range(36, 59))


def test_a_ledger_that_cannot_be_written_is_said_and_the_training_goes_on(script) -> None:
    one = script(TRAINING)
    one.attempt("run", "--every", "never", status=-9, DIE="1")
    (one.folder / "run" / "ledger").unlink()
    (one.folder / "run" / "ledger").mkdir()
    assert "the end" in one.attempt("run")
    assert "the ledger cannot be written" in one.said


#: A line of TRAINING to another; where the runs then part: epoch, batch of it, leaf.
PLANTS = {
    "one bit of one weight": (
        "        optimizer.step()\n",
        "        optimizer.step()\n"
        "        if epoch == 1 and batch == 11: model[2].weight.data.view(-1).view(torch.int32)[3] ^= 1\n",
        (1, 12, "model['2'].weight"),
    ),
    "a generator advanced once": (
        "        optimizer.step()\n",
        "        optimizer.step()\n        if epoch == 1 and batch == 11: np.random.rand()\n",
        (1, 12, "a generator of random numbers"),
    ),
}


@pytest.mark.parametrize("name", full_but(["one bit of one weight"], PLANTS))
def test_diff_of_two_runs_names_the_batch_and_the_leaf_at_which_they_part(script, name: str) -> None:
    line, planted, where = PLANTS[name]
    one = script(TRAINING)
    one.attempt("a", "--every", "9batches")
    script(TRAINING.replace(line, planted)).attempt("b", "--every", "9batches")
    said = one.command("diff", "a", "b", "--json", status=1)
    parting = json.loads(said)["parting"]
    assert (parting["epoch"], parting["leaf"]) == (where[0], where[2])
    assert (parting["batch"], parting["last_same"]) == (where[1], 31)
    assert f"{where[2]} differs first" in one.command("diff", "a", "b", status=1)


def test_diff_of_a_run_and_its_killed_and_resumed_twin_is_the_same(script) -> None:
    one = script(TRAINING)
    one.attempt("a", "--every", "9batches")
    one.attempt("b", "--every", "9batches", status=-9, DIE="1")
    one.attempt("b", "--every", "9batches")
    found = json.loads(one.command("diff", "a", "b", "--json"))
    assert (found["same"], found["parting"]) == (True, None)


#: The second phase accumulates: its loop is known only after its fourth batch, and those before have gone by uncounted.
PHASES = """
import os, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in range(10):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
for number in range(40):
    model(torch.randn(2, 4)).square().mean().backward()
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
    if number == 30 and os.environ.get("DIE"):
        os.kill(os.getpid(), 9)
print("the end", model.weight.sum().item())
"""


def test_a_loop_that_is_found_late_leaves_no_gap_in_the_ledger(script) -> None:
    one = script(PHASES)
    whole = one.attempt("whole", "--every", "1000batches")
    one.attempt("run", "--every", "1000batches", status=-9, DIE="1")
    assert one.attempt("run", "--every", "1000batches") == whole


def test_a_damaged_ledger_is_said_and_the_training_goes_on(script) -> None:
    one = script(PHASES)
    one.attempt("run", "--every", "5batches", status=-9, DIE="1")
    path = one.folder / "run" / "ledger"
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    assert "the end" in one.attempt("run", "--every", "5batches")
    assert "the ledger cannot be read: ledger is damaged at byte 0" in one.said


@pytest.mark.full
def test_the_last_batch_of_a_loop_counts_once_though_two_headers_lie_behind_it(script) -> None:
    """With no time for records but the one at the loop's end, which a killed attempt has left without a checkpoint."""
    one = script(
        PHASES.replace("DIE", "NO").replace(
            'print("the end"', 'os.environ.get("DIE") and os.kill(os.getpid(), 9)\nprint("the end"'
        )
    )
    variables = {"DETRAIN_LEDGER_BUDGET": "0"}
    one.attempt("run", "--every", "never", status=-9, DIE="1", **variables)
    assert ledger.read(one.folder / "run" / "ledger").batches
    assert "the end" in one.attempt("run", "--every", "never", **variables)


def test_the_run_directory_is_detrains_own_however_it_is_written(script) -> None:
    """Else the ledger is taken for a log of the script's, and cut back by a resume."""
    one = script(TRAINING)
    (one.folder / "link").symlink_to(one.folder, target_is_directory=True)
    for run in (f"../{one.folder.name}/run", "link/other"):
        one.attempt(run, "--every", "9batches", status=-9, DIE="1")
        assert one.attempt(run, "--every", "9batches", status=1, MEDDLE="torch.rand(())") == ""
        assert "a generator of random numbers differs" in one.said


@pytest.mark.full
def test_any_number_of_gradients_in_a_batch_is_no_more_than_a_long_batch(script) -> None:
    one = script("""
import torch
weight = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for batch in range(3):
    for _ in range(66_000 if batch == 1 else 1):
        (weight[0] * 2).backward()
    optimizer.step()
print("the end")
""")
    assert one.attempt("run") == "the end\n"


def test_losses_that_were_kept_with_their_graphs_make_no_difference_after_a_resume(script) -> None:
    """Their graphs are in no checkpoint, neither of the one run nor of the other."""
    one = script(
        TRAINING.replace("for epoch", "history = []\nfor epoch").replace(
            "loss.backward()", "history.append(loss); loss.backward()"
        )
    )
    one.attempt("a", "--every", "9batches")
    one.attempt("b", "--every", "9batches", status=-9, DIE="1")
    one.attempt("b", "--every", "9batches")
    assert json.loads(one.command("diff", "a", "b", "--json"))["differences"] == []


#: Each fold's model has the name of the one before, which something keeps alive.
FOLDS = """
import os
import torch
torch.manual_seed(0)
data = torch.randn(10, 4, 6)
old = []
for fold in range(4):
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.Adam(model.parameters())
    if os.environ.get("KEEP"):
        old.append(model)
    for epoch in range(2):
        for batch in range(10):
            optimizer.zero_grad()
            model(data[batch]).square().mean().backward()
            optimizer.step()
            if (fold, epoch, batch) == (2, 1, 5) and os.environ.get("DIE"):
                os.kill(os.getpid(), 9)
print("the end")
"""


def test_another_object_under_the_name_of_an_earlier_one_is_not_taken_for_it(script) -> None:
    """Whether the earlier one lives still may hang on when garbage is collected: here, on whether it is kept."""
    one = script(FOLDS.replace("old = []", "import builtins; old = builtins.__dict__.setdefault('old', [])"))
    one.attempt("run", "--every", "13batches", status=-9, DIE="1", KEEP="1")
    assert one.attempt("run", "--every", "13batches") == "the end\n"
