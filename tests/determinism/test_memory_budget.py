"""`--memory-budget`: killed and resumed, with other budgets or none, a run ends with the bits of plain python."""

import pytest

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
