"""Kill a program that trains within a memory budget, run it again: every bit is that of a run without one."""

import itertools
import os
import re

import pytest

from .conftest import seed_of
from .harness import Moment, differences, live, live_at_random
from .programs import PROGRAMS, QUICK, Program
from .test_kills import REFUSED

SOAK_KILLS = int(os.environ.get("DETRAIN_SOAK_KILLS", "20"))
#: More than any of the kill programs needs.
_AMPLE = "1MB"
_END = """
print("batch end", sum(p.double().sum().item() for p in net.state_dict().values()), torch.rand(()).item(), flush=True)
"""
_NORMED = """
import torch
from torch import nn
torch.manual_seed(0)
layers = [part for _ in range(8) for part in (nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(inplace=True), nn.Dropout(0.2))]
net = nn.Sequential(*layers, nn.Linear(96, 3))
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
data = torch.randn(10, 256, 96)
for epoch in range(8):
    for number, x in enumerate(data):
        loss = nn.functional.cross_entropy(net(x), x[:, :3].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("batch", epoch, number, loss.item(), flush=True)
    net.eval()
    with torch.no_grad():
        right = sum((net(x).argmax(1) == x[:, :3].argmax(1)).float().mean().item() for x in data)
    net.train()
    print("epoch", epoch, right, flush=True)
"""
_LANGUAGE = """
import torch
from torch import nn
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(48, 4, 96, 0.1, batch_first=True) for _ in range(3)]
net = nn.Sequential(nn.Embedding(32, 48), *layers, nn.Linear(48, 32))
net[-1].weight = net[0].weight
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
text = torch.randint(0, 32, (4000,))
for step in range(60):
    begins = torch.randint(0, len(text) - 49, (16,))
    x, y = (torch.stack([text[i + j : i + j + 48] for i in begins]) for j in (0, 1))
    for half in range(2):
        part = slice(half * 8, half * 8 + 8)
        loss = nn.functional.cross_entropy(net(x[part]).flatten(0, 1), y[part].flatten()) / 2
        loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    print("batch", step, 0, loss.item(), flush=True)
"""
_RECURRENT = """
import random
import torch
from torch import nn
torch.manual_seed(0)
random.seed(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.cell, self.out, self.drop = nn.Embedding(20, 24), nn.LSTMCell(24, 24), nn.Linear(24, 20), nn.Dropout(0.1)
    def forward(self, tokens):
        h = c = torch.zeros(tokens.shape[1], 24)
        found = []
        for token in tokens:
            h, c = self.cell(self.embedding(token), (h, c))
            found.append(self.out(self.drop(h)))
        return torch.stack(found)
net = Net()
optimizer = torch.optim.RMSprop(net.parameters(), 1e-3)
data = [torch.randint(0, 20, (random.choice([8, 12]), 128)) for _ in range(10)]
for epoch in range(8):
    random.shuffle(data)
    for number, x in enumerate(data):
        loss = nn.functional.cross_entropy(net(x[:-1]).flatten(0, 1), x[1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("batch", epoch, number, loss.item(), flush=True)
"""
TRAININGS = {
    name: Program(name, text + _END)
    for name, text in {"normed": _NORMED, "language": _LANGUAGE, "recurrent": _RECURRENT}.items()
}


@pytest.mark.soak
@pytest.mark.parametrize("name", TRAININGS)
def test_training_within_a_budget_survives_kills_at_random_moments(name, killed, reference, note):
    program = TRAININGS[name]
    expected = reference(program)
    lives = live_at_random(
        lambda: killed.new_place(program), expected, SOAK_KILLS, seed_of(name), ("--memory-budget", "0.6")
    )
    problems = [problem for life in lives for problem in differences(expected, life)]
    note(f"{name}, 0.6", lives, problems)
    assert not problems
    assert sum(life.num_kills for life in lives) >= SOAK_KILLS
    said = [attempt.stderr for life in lives for attempt in life.attempts]
    assert any(re.search(r"[1-9][\d,]* operators were run again", one) for one in said)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "share"),
    [
        *itertools.product(TRAININGS, ["0.8", "0.5", "0.3"]),
        # Of these parameters and optimizer are almost all: every operator is seen, and nothing has to go.
        *itertools.product((name for name in QUICK if name not in REFUSED), [_AMPLE]),
    ],
)
def test_within_a_budget_each_program_has_the_same_bits_or_is_refused_by_name(name, share, killed, reference, note):
    program = TRAININGS.get(name) or PROGRAMS[name]
    expected = reference(program)
    moments = [Moment(batches=len(expected.attempts[0].batches) * 2 // 3)]
    life = live(killed.new_place(program), "1batches", moments, ("--memory-budget", share))
    said = life.attempts[-1].stderr
    if life.attempts[-1].status and share != _AMPLE:
        assert not life.num_kills  # where there was room before, there is behind a resume
        assert re.search(
            r"needs [\d,]+ bytes beside [\d,]+ that have to be there: .* the memory budget is [\d,]+\.", said
        ), said
        note(f"{name}, {share}", [life], ["no room"])
        return
    problems = differences(expected, life)
    note(f"{name}, {share}", [life], problems)
    assert not problems
    assert life.num_kills == 1
