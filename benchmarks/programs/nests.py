"""Trainings whose loops stand in each other in five ways: `nests.py KIND`. Each batch writes one byte to the file descriptor in BATCHES.

The bytes go past everything that detrain puts back or replays, so they count what was really run. A batch takes ten milliseconds.
"""

import os
import sys
import time

import torch

torch.manual_seed(0)
torch.set_num_threads(1)


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(64, 64)
    return model, torch.optim.Adam(model.parameters(), 0.01)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    os.write(int(os.environ["BATCHES"]), b".")
    time.sleep(0.01)


def long_epochs() -> None:
    model, optimizer = network()
    for _epoch in range(3):
        for _batch in range(300):
            step(model, optimizer)


def short_epochs() -> None:
    model, optimizer = network()
    for _epoch in range(150):
        for _batch in range(6):
            step(model, optimizer)


def growing_epochs() -> None:
    model, optimizer = network()
    for epoch in range(9):
        for _batch in range(2 + 3 * epoch * epoch):
            step(model, optimizer)


def folds() -> None:
    for _fold in range(6):
        model, optimizer = network()
        for _epoch in range(10):
            for _batch in range(14):
                step(model, optimizer)


def two_loops() -> None:
    (model, optimizer), (critic, critics) = network(), network()
    for _epoch in range(6):
        for _batch in range(80):
            step(critic, critics)
        for _batch in range(60):
            step(model, optimizer)


KINDS = {
    "long epochs": long_epochs,
    "short epochs": short_epochs,
    "growing epochs": growing_epochs,
    "folds": folds,
    "two loops": two_loops,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
