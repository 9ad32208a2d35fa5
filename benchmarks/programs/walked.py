"""`python walked.py OBJECTS WALKS`: look at a model and its Adam of about so many objects, again and again while they train.

Prints one JSON object: how many objects a walk meets, and of each walk the seconds, from anew, along the route of the one before, and
those of `state_dict` of both beside it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import detrain.adapters.torch
import detrain.state.handlers.standard  # noqa: F401
from detrain.state.census import Census
from detrain.state.collector import collector_paused
from detrain.state.retrace import Retracer
from detrain.state.walk import Walk

OBJECTS, WALKS = int(sys.argv[1]), int(sys.argv[2])
#: Of a linear layer with its weight, its bias, and what Adam has of both; as a walk counts them.
_OF_A_LAYER = 34

model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(OBJECTS // _OF_A_LAYER))
optimizer = torch.optim.Adam(model.parameters(), 1e-3)


def step() -> None:
    """Changes every parameter and every moment."""
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.step()
    optimizer.zero_grad()


def from_anew() -> Any:
    walk = Walk(census)
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run()


def seconds(look: Callable[[], Any]) -> float:
    """Of one look, as a session takes it: without a collection in it."""
    with torch._C.DisableTorchFunction(), collector_paused():
        began_s = time.perf_counter()
        found = look()
        took_s = time.perf_counter() - began_s
        del found
    return took_s


step()
roots = {"model": model, "optimizer": optimizer}
census = None
census = Census(from_anew())
retracer = Retracer()
retracer.walk(roots, {}, census)
looks = {
    "from anew": from_anew,
    "along the route": lambda: retracer.walk(roots, {}, census),
    "state_dict": lambda: (model.state_dict(), optimizer.state_dict()),
}
taken: dict[str, list[float]] = {name: [] for name in looks}
for _ in range(WALKS):
    step()
    for name, look in looks.items():
        taken[name].append(seconds(look))
print(json.dumps({"objects": len(from_anew().tree.nodes), **taken}))
