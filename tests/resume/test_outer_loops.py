"""Loops around the epoch loop: what they have done before the checkpoint is not run again."""

import pytest

from tests.tiers import full_but

from .harness import Moment, Place
from .programs import Program

SCRIPT = """\
import time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for rollout in range(8):
    print("rollout", rollout, flush=True)
    xs = torch.randn(12, 4)
    time.sleep(0.1)
    for epoch in range(4):
        for start in range(0, 12, 4):
            optimizer.zero_grad()
            model(xs[start : start + 4]).pow(2).mean().backward()
            optimizer.step()
"""


@pytest.mark.parametrize("every", full_but(["5batches"], ["epoch", "2epochs", "5batches"]))
def test_a_resume_runs_no_finished_iteration_of_an_outer_loop(tmp_path, every):
    place = Place(tmp_path, Program("rollouts", SCRIPT))
    assert place.attempt(every, Moment(text="rollout 6")).is_killed
    again = place.attempt(every)
    assert again.status == 0
    begun = [int(line.split()[1]) for line in again.stdout.splitlines()]
    assert begun[0] >= 5
    assert begun == list(range(begun[0], 8))
