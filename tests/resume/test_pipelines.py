"""Kill a script that is trained over a pipeline, or one of its workers, and run it again: every bit is that of one process."""

import os
import random
import subprocess
import sys

import pytest

from detrain.pipeline import graphtext, planfile
from detrain.pipeline.topologyfile import of_levels
from tests.pipeline.pipelined import plan_of

from .conftest import seed_of
from .harness import Moment, differences, environment, live, random_moment
from .programs import Program
from .test_budgets import TRAININGS

_LENGTHS = """
import random
import torch
from torch import nn
torch.manual_seed(0)
random.seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.drop, self.out = nn.Embedding(20, 24), nn.Dropout(0.1), nn.Linear(24, 20)
        self.layers = nn.ModuleList(nn.LSTM(24, 24, batch_first=True) for _ in range(3))
    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            y, _ = layer(self.drop(x))
            x = x + y
        return self.out(x)
net = Net()
optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
data = [torch.randint(0, 20, (30, random.choice([8, 12]))) for _ in range(10)]
for epoch in range(8):
    random.shuffle(data)
    for number, x in enumerate(data):
        loss = nn.functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
        print("batch", epoch, number, loss.item(), flush=True)
print("batch end", sum(p.double().sum().item() for p in net.state_dict().values()), torch.rand(()).item(), flush=True)
"""
SOAK_KILLS = int(os.environ.get("DETRAIN_SOAK_KILLS", "20"))
#: Of a program: devices of each stage, and micro-batches.
PLANS = {"normed": ((1, 1, 1), 4), "language": ((2, 1), 2), "lengths": ((1, 1), 3)}
PROGRAMS = {**TRAININGS, "lengths": Program("lengths", _LENGTHS)}


@pytest.fixture(scope="session")
def planned(tmp_path_factory):
    """Gives the options by which a program is trained over a plan by hand, of the profile that the command makes."""

    def give(name):
        place = tmp_path_factory.mktemp("planned")
        (place / "train.py").write_text(PROGRAMS[name].sources["train.py"], encoding="utf-8")
        words = [sys.executable, "-m", "detrain", "pipeline", "profile", "--rounds", "1", "-o", "graph.txt", "train.py"]
        done = subprocess.run(words, cwd=place, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        replicas, num_micro_batches = PLANS[name]
        profile = graphtext.read(place / "graph.txt")
        layers = [layer.name for layer in profile.layers if not layer.description.startswith("Input")]
        topology = of_levels((sum(replicas),), (1e9,))
        planfile.write(place / "plan.json", planfile.Planned(plan_of(layers, replicas), profile, topology))
        return ("--pipeline", str(place / "plan.json"), "--micro-batches", str(num_micro_batches))

    return give


def moments_of(rng, num_batches, num_workers):
    """At random, for the script's process or for a worker."""
    while True:
        worker = rng.randint(0, num_workers)
        yield (
            Moment(batches=rng.randint(1, num_batches // 8), delay_s=rng.uniform(0, 0.05), worker=worker)
            if worker
            else (random_moment(rng, num_batches))
        )


@pytest.mark.full
@pytest.mark.parametrize("name", PLANS)
def test_over_processes_and_behind_kills_a_script_has_the_bits_of_one_process(name, planned, killed, note):
    options, program = planned(name), PROGRAMS[name]
    expected = live(killed.new_place(program), "never", [], (*options, "--emulate"))
    assert expected.attempts[0].status == 0, expected.attempts[0].stderr
    life = live(killed.new_place(program), "1batches", [Moment(batches=9, worker=1), Moment(batches=5)], options)
    problems = differences(expected, life)
    note(f"{name} over a pipeline", [life], problems)
    assert not problems
    assert life.num_kills == 2
    assert "worker 1 of the pipeline has ended with status -9" in life.attempts[0].stderr


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANS)
def test_a_script_over_a_pipeline_survives_kills_of_any_of_its_processes(name, planned, killed, note):
    options, program = planned(name), PROGRAMS[name]
    expected = live(killed.new_place(program), "never", [], (*options, "--emulate"))
    rng, lives, num_kills = random.Random(seed_of(name)), [], 0
    moments = moments_of(rng, len(expected.attempts[0].batches), sum(PLANS[name][0]) - 1)
    while num_kills < SOAK_KILLS:
        lives.append(live(killed.new_place(program), "1batches", [next(moments) for _ in range(7)], options))
        num_kills += max(lives[-1].num_kills, 1)
    problems = [problem for life in lives for problem in differences(expected, life)]
    note(f"{name} over a pipeline", lives, problems)
    assert not problems
    assert sum(life.num_kills for life in lives) >= SOAK_KILLS
