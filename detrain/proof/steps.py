"""The first training steps of a script, from an attempt that changes nothing: as one graph of operators, or how long they take."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detrain.errors import GraphError
from detrain.launch import environment
from detrain.launch.request import Request
from detrain.pipeline import graphtext
from detrain.pipeline.layers import Profile
from detrain.plans.errors import NoPlanError
from detrain.proof.worker import Order
from detrain.remat import graphfile
from detrain.remat.experiments.measuring import Timing, TimingOrder
from detrain.remat.graph import Graph
from detrain.session.goal import Goal
from detrain.store.record import Command, RunRecord


def record(request: Request, num_steps: int) -> Graph:
    """Run the script, without network and with all that it writes discarded, until it has trained so many batches.

    The graph is that of the batch that most of these are like, with the median times of its operators. Raises `DetrainError` where the
    script trains nothing, fails before that, or uses what cannot be recorded.
    """
    found = _carried_out(request, os.getcwd(), Goal(num_steps=num_steps))
    if "graph" in found:
        return graphfile.decode(found["graph"], name=Path(request.script).stem if request.script else request.module)
    if "no_graph" in found:
        raise GraphError(found["no_graph"])
    if found["status"]:
        raise GraphError(f"the script ended with status {found['status']} before it trained: {found['said'].strip()}")
    raise GraphError(
        f"{request.name}: no training loop was seen, so there is no step to record. {found['said'].strip()}".strip()
    )


@dataclass(frozen=True)
class ModelProfile:
    """Of the model that a script's first batch calls."""

    profile: Profile
    num_samples: int
    #: All that the model returns has samples in it.
    is_splittable: bool


def profile(request: Request, num_rounds: int, model: str) -> ModelProfile:
    """Run the script in the same way until its first batch has called its models, and time the layers of the largest, or of `model`.

    Raises `DetrainError`.
    """
    found = _carried_out(request, os.getcwd(), Goal(num_rounds=num_rounds, model=model))
    if "profile" in found:
        return ModelProfile(graphtext.parse(found["profile"]), found["num_samples"], found["is_splittable"])
    said = found["said"].strip()
    if found["status"]:
        raise GraphError(
            said.removeprefix("detrain: error: ") or f"the script ended with status {found['status']} before it trained"
        )
    raise GraphError(f"{request.name}: no training loop was seen, so there is no model to profile. {said}".strip())


def measure(request: Request, order: TimingOrder) -> Timing:
    """Run the script in the same way until enough batches were timed.

    Raises `NoPlanError` where the budget leaves no room, and `DetrainError` where the script trains nothing, or too little.
    """
    goal = Goal(num_timed=order.num_batches, num_before=order.num_before, most_planning_s=order.most_planning_s)
    found = _carried_out(request, str(order.folder), goal, order.memory_budget, order.planner)
    if "batches_s" in found:
        memory = found["memory"] or {}
        return Timing(
            tuple(found["batches_s"]), memory.get("peak_bytes", 0), memory.get("budget_bytes", 0),
            memory.get("num_again", 0), memory.get("num_evictions", 0), memory.get("why", ""),
        )  # fmt: skip
    said = found["said"].strip()
    if over := re.search(r"OverBudget: (.*)", said):
        raise NoPlanError(over[1])
    if found["status"]:
        raise GraphError(f"the script ended with status {found['status']} before that: {said}")
    raise GraphError(
        f"{request.name} ended before {order.num_before} and {order.num_batches} batches were trained on. {said}".strip()
    )


def _carried_out(
    request: Request, folder: str, goal: Goal, memory_budget: str = "", remat_planner: str = "auto"
) -> dict[str, Any]:
    command = Command(
        request.script, request.module, request.nondeterministic,
        interpreter=tuple(environment.interpreter_flags(sys.orig_argv[1:])),
    )  # fmt: skip
    name = os.path.join(folder, request.script) if request.script else request.module
    run = RunRecord(name, request.name, command, request.arguments, folder, request.seed)
    with tempfile.TemporaryDirectory(prefix="detrain-record-") as place:
        order = Order(place, run, goal, None, None, [], memory_budget=memory_budget, remat_planner=remat_planner)
        return order.carry_out()
