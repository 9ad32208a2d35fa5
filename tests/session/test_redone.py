"""No batch is done twice without need: killed anywhere, a run does again what came after its last checkpoint, and nothing before it."""

import itertools
import types

import pytest

from detrain.session import resume, saving, session
from tests.session.attempts import Killed, Run, outcome
from tests.session.test_attempts import SCRIPTS
from tests.state.roundtrip import as_a_new_process

#: With the length of the longest epoch, in batches.
NESTS = {name: (SCRIPTS[name], 5) for name in ("two loops", "in functions", "a loader of its own", "folds around epochs")} | {
    "epochs of growing length": ("""
import framework
weights, history = [0.0, 1.0], []
for epoch in range(5):
    for batch in range(2 ** epoch):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append(weights[0])
""", 16),
    "many short epochs": ("""
import framework
weights, history = [0.0, 1.0], []
for episode in range(12):
    state = framework.rng.random()
    step = 0
    while state < 0.9 and step < 3:
        framework.backward(weights[0] * state)
        framework.step(weights, step)
        history.append(weights[0])
        state, step = framework.rng.random(), step + 1
""", 3),
    "two loops in each epoch": ("""
import framework
weights, head, history = [0.0, 1.0], [1.0, 1.0], []
for epoch in range(4):
    for batch in range(4):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append(weights[0])
    for batch in range(5):
        framework.backward(head[0])
        framework.step(head, batch + weights[0])
        history.append(head[0])
""", 9),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _as_a_new_process():
    with as_a_new_process():
        yield


@pytest.mark.parametrize(
    "every", ["1batch", "3batches", "7batches", "epoch", "2epochs", "0.05s", "0.1s", "0.3s", "auto"]
)
@pytest.mark.parametrize("name", NESTS)
def test_a_resume_runs_no_batch_before_its_checkpoint_again(name, every, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # A clock that goes on by 10 ms at each look, and a disk that is waited for: the same checkpoints each time.
    ticks = itertools.count()
    monkeypatch.setattr(session, "monotonic", lambda: next(ticks) / 100)
    monkeypatch.setattr(resume, "time", types.SimpleNamespace(monotonic=lambda: next(ticks) / 100))
    monkeypatch.setattr(saving, "WAITS_FOR_DISK", True)
    source, longest = NESTS[name]
    whole = Run(source, tmp_path / "whole", every)
    whole.folder.mkdir()
    left_alone = whole.attempt()
    expected, num_steps = outcome(left_alone), left_alone.steps
    # The loops are not known before the second epoch of a first attempt.
    for kill_at in range(num_steps // 3, num_steps + 1, 4):
        run = Run(source, tmp_path / f"killed {kill_at}", every)
        run.folder.mkdir()
        assert isinstance(run.attempt(kill_at).by, Killed)
        for kill_again_at in (4, None) if kill_at % 2 else (None,):
            ended = run.attempt(kill_again_at)
            assert ended.session.resume.num_batches_again == 0, kill_at
        assert outcome(ended) == expected, kill_at
        if every.endswith("batches") and not kill_at % 2:
            # What came after the last checkpoint, and no more than the policy says: its batches, or those to the next epoch.
            assert 0 <= kill_at - (num_steps - ended.steps) <= int(every[0]) + longest, kill_at
