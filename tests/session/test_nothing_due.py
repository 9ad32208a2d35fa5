"""Between the batches at which something falls due, a header only counts."""

import itertools
import operator
import os
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.session.policy import LONGEST_WAIT_S, Policy, parse
from detrain.store import checkpoint
from tests.session.attempts import Run, outcome
from tests.tiers import full_but

#: Asks for a checkpoint in one batch of many at which nothing else is due.
ASKING = """
import os, signal, torch

weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for epoch in range(2):
    for batch in range(300):
        optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()
        if (epoch, batch) == (0, 150):
            os.kill(os.getpid(), signal.SIGUSR2)
"""

#: Counts the calls of detrain's functions in ten batches at which nothing is due. {}: the header of the batch loop, and what ends a batch.
COUNTED = """
import sys, framework
from detrain.session import recorder
recorder.BUDGET = 0.0  # no record for every batch
weights, called = [0.0, 1.0], []
def note(frame, event, _):
    if event == "call": called.append(frame.f_code.co_name)
for epoch in range(3):
    batch = 0
    {}
        if (epoch, batch) == (2, 19): sys.setprofile(note)
        if (epoch, batch) == (2, 29): sys.setprofile(None)
        if batch < 9:
            framework.backward(weights[0] - batch)
            framework.step(weights, batch)
        {}
"""


@pytest.mark.parametrize(
    ("header", "end", "names"),
    [
        ("for batch in range(40):", "pass", ["_headers"]),
        ("while batch < 40:", "batch += 1", ["record_loop", "tick_while", "counts"]),
    ],
)
def test_a_header_at_which_nothing_is_due_costs_few_calls(tmp_path, header, end, names):
    ended = Run(COUNTED.format(header, end), tmp_path, "never").attempt()
    assert ended.by is None
    assert ended.variables["called"] == names * 10
    assert ended.session.context.position.batches == 120


#: A helper's loop, in a batch and outside of the training, before it is known and later.
HELPED = """
import sys, framework
weights, called = [0.0, 1.0], []
def note(frame, event, _):
    if event == "call": called.append(frame.f_code.co_name)
def total(numbers):
    found = 0
    for number in numbers:
        found += number
    return found
history = [total(range(3))]
for epoch in range(3):
    for batch in range(8):
        if (epoch, batch) == (2, 5): sys.setprofile(note)
        history.append(total(range(batch)))
        if (epoch, batch) == (2, 5): sys.setprofile(None)
        framework.backward(weights[0] - batch)
        framework.step(weights, batch)
    history.append(total(range(epoch)))
"""


def test_a_loop_inside_a_batch_is_passed_over_by_few_calls(tmp_path):
    ended = Run(HELPED, tmp_path, "never").attempt()
    assert ended.by is None
    assert ended.variables["called"] == [
        "total",
        "record_loop",
        "enter_for",
        "_enter",
        "enter",
        "_is_nothing",
        "is_inside",
    ]
    epochs = [[sum(range(batch)) for batch in range(8)] + [sum(range(epoch))] for epoch in range(3)]
    assert ended.variables["history"] == [3, *epochs[0], *epochs[1], *epochs[2]]
    assert ended.session.context.position.batches == 24


#: Loops in a batch, within each other, and in a generator that feeds the batch loop; what they give is theirs.
WITHIN = """
import framework
weights, history = [0.0, 1.0], []
def numbers():
    number = 0
    while number < 6:
        yield number
        number += 1
        for _ in (): pass
for epoch in range(3):
    for batch in numbers():
        framework.backward(weights[0] - batch)
        outer = 0
        while outer < 2:
            inner = 0
            while inner < 3:
                inner += 1
            history.append(inner)
            outer += 1
        history += [number for number in map(str, range(2))]
        framework.step(weights, batch)
"""


@pytest.mark.parametrize("kill_at", [3, 8, 17])
def test_loops_in_a_batch_go_on_as_if_nobody_asked(tmp_path, kill_at):
    whole = Run(WITHIN, tmp_path / "whole", "never")
    killed = Run(WITHIN, tmp_path / "killed", "2batches")
    for run in (whole, killed):
        run.folder.mkdir()
    expected = outcome(whole.attempt())
    killed.attempt(kill_at)
    assert outcome(killed.attempt()) == expected


@pytest.mark.parametrize("every", ["auto", "never", "epoch", "30s", "7batches"])
@pytest.mark.parametrize("is_near", [True, False])
def test_nothing_is_due_before_the_batch_and_the_moment_that_the_policy_names(every, is_near):
    policy = Policy(parse(every), 100.0)
    policy.on_resumed(2, 50, 110.0, 0.1)
    next_batch, next_s = policy.next_at_batch(is_near=is_near)
    moments = [(batch, 110.0 + eighths / 8) for batch in range(50, 70) for eighths in range(600)]
    is_before = [batch < next_batch and now_s < next_s for batch, now_s in moments]
    before = list(itertools.compress(moments, is_before))
    behind = list(itertools.compress(moments, map(operator.not_, is_before)))
    assert not any(policy.is_due_at_batch(*moment, is_near=is_near) for moment in before)
    assert all(policy.is_due_at_batch(*moment, is_near=is_near) for moment in behind)
    assert bool(behind) == (every in ("auto", "30s", "7batches"))
    policy.request(before[0][1])
    assert policy.is_due_at_batch(*before[0], is_near=is_near) == is_near
    assert policy.is_due_at_batch(before[0][0], before[0][1] + LONGEST_WAIT_S, is_near=is_near)


@pytest.mark.parametrize("budget", full_but(["0.008"], ["0", "0.008", "1"]))
def test_a_request_while_nothing_is_due_is_met_at_the_next_batch(tmp_path, budget):
    (tmp_path / "script.py").write_text(ASKING)
    words = ["-m", "detrain", "run", "--ckpt-dir", "run", "--every", "never", "script.py"]
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "DETRAIN_LEDGER_BUDGET": budget}
    subprocess.run([sys.executable, *words], cwd=tmp_path, env=variables, check=True, capture_output=True)
    (saved,) = (tmp_path / "run").glob("checkpoint_0_*.h5")
    assert checkpoint.read_header(saved).meta.batches == 151
