"""`--memory-budget`: killed and resumed, with other budgets or none, a run ends with the bits of plain python."""

import re

import pytest

from detrain.store import ledger
from tests.tiers import full_but

TRAINING = """
import os
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
layers = [part for _ in range(6) for part in (nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(inplace=True), nn.Dropout(0.2))]
model = nn.Sequential(*layers, nn.Linear(48, 3))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
data = torch.randn(8, 256, 48)
outputs = None
for epoch in range(4):
    total = 0.0
    for number, x in enumerate(data):
        before = 0.0 if outputs is None else outputs.mean().item()  # of the last batch
        outputs = model(x)
        loss = nn.functional.cross_entropy(outputs, x[:, :3].argmax(1)) + 1e-3 * before
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if os.environ.get("DIE") == f"{epoch} {number}":
            os.kill(os.getpid(), 9)
    print(epoch, total, flush=True)
print(sum(p.double().sum().item() for p in model.state_dict().values()), torch.rand(()).item())
"""

#: Budgets of the three attempts; "" for none.
LIVES = {
    "with and without": ("0.6", "", "0.5"),
    "none at first": ("", "0.6", "2MB"),
    "less and less": ("0.9", "0.7", "0.5"),
}


@pytest.mark.parametrize("life", full_but(["with and without"], LIVES))
def test_killed_and_resumed_under_other_budgets_it_ends_with_the_same_bits(script, life) -> None:
    one = script(TRAINING)
    whole = one.plainly()
    for budget, status, moment in zip(LIVES[life], (-9, -9, 0), ("1 5", "2 3", ""), strict=True):
        options = ("--memory-budget", budget) if budget else ()
        printed = one.attempt("run", "--every", "3batches", *options, status=status, DIE=moment)
        assert ("resumed at" in one.said) == (moment != "1 5")
    assert printed.splitlines()[-1] == whole.splitlines()[-1]
    assert "operators were run again" in one.said


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("3", "expected bytes (6GiB, 500MB, 1000000), or a share"),
        ("1.5", "expected bytes (6GiB, 500MB, 1000000), or a share"),
        ("much", "expected bytes (6GiB, 500MB, 1000000), or a share"),
        ("0.01", "the memory budget is"),
    ],
)
def test_a_budget_that_cannot_be(script, budget, said) -> None:
    one = script(TRAINING)
    one.attempt("run", "--memory-budget", budget, status=1 if budget == "0.01" else 2)
    assert said in one.errors


def test_what_cannot_be_followed_is_refused(script) -> None:
    one = script(TRAINING.replace("optimizer =", "model = torch.compile(model)\noptimizer ="))
    one.attempt("run", "--memory-budget", "0.5", status=1)
    assert "torch.compile cannot be used under --memory-budget" in one.errors


@pytest.mark.full
def test_killed_while_it_follows_a_plan_it_goes_on_with_the_same_bits(script) -> None:
    slow = TRAINING.replace("range(4)", "range(12)").replace(
        "    total = 0.0", "    import time; time.sleep(1.5)\n    total = 0.0"
    )
    one = script(slow)
    whole = one.plainly()
    options = ("--memory-budget", "0.6", "--remat-planner", "dtr")
    one.attempt("run", "--every", "3batches", *options, status=-9, DIE="10 3")
    printed = one.attempt("run", "--every", "3batches", *options)
    assert "resumed at" in one.said
    assert printed.splitlines()[-1] == whole.splitlines()[-1]
    uses = [record["memory"] for record in ledger.read(one.folder / "run" / "ledger").saved]
    assert [use["planner"] for use in uses if use["num_planned"]]
    assert len({use["budget_bytes"] for use in uses if use["budget_bytes"]}) == 1


WITHOUT_AN_OPTIMIZER = """
import random
import sys
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(48, 48), nn.Tanh())))
model(torch.randn(2, 48)).mean()
before = "sympy" in sys.modules
for number in range(20):
    loss = model(torch.randn(512, 48)).square().mean()
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
print(before, loss.item(), random.Random().random())
"""


@pytest.mark.full
@pytest.mark.whole
def test_what_the_budget_loads_draws_no_entropy_of_the_script(script) -> None:
    one = script(WITHOUT_AN_OPTIMIZER)
    expected = one.attempt("whole")
    assert expected.startswith("False ")
    assert one.attempt("run", "--memory-budget", "0.7") == expected
    assert re.search(r"[1-9][\d,]* operators were run again", one.said)


LARGE = """
import hashlib, os, resource
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(part for _ in range(20) for part in (nn.Linear(256, 256), nn.Tanh(), nn.Dropout(0.1))))
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
if os.environ.get("LIMITED"):
    with open("/proc/self/status") as file:
        (used_kb,) = (int(line.split()[1]) for line in file if line.startswith("VmData"))
    limit = used_kb * 1024 + 250_000_000
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
for step in range(3):
    loss = model(torch.randn(8192, 256)).square().mean()  # 8 MB for each of 60 activations
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(), loss.item())
"""


@pytest.mark.full
@pytest.mark.whole
def test_what_dies_for_want_of_memory_ends_within_a_budget_with_the_same_bits(script) -> None:
    one = script(LARGE)
    whole = one.plainly()
    # Else the C library's heap keeps the holes that evicted tensors leave.
    variables = {"LIMITED": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
    with pytest.raises(AssertionError, match="can't allocate memory"):
        one.plainly(**variables)
    assert one.attempt("run", "--memory-budget", "160MB", "--remat-planner", "online", **variables) == whole
