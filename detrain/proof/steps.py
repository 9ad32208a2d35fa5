"""`detrain remat record`: the first training steps of a script as one graph of operators, from an attempt that changes nothing."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from detrain.errors import GraphError
from detrain.launch import environment
from detrain.launch.request import Request
from detrain.proof.worker import Order
from detrain.remat import graphfile
from detrain.remat.graph import Graph
from detrain.session.goal import Goal
from detrain.store.record import Command, RunRecord


def record(request: Request, num_steps: int) -> Graph:
    """Run the script, without network and with all that it writes discarded, until it has trained so many batches.

    The graph is that of the batch that most of these are like, with the median times of its operators. Raises `DetrainError` where the
    script trains nothing, fails before that, or uses what cannot be recorded.
    """
    command = Command(
        request.script, request.module, request.nondeterministic,
        interpreter=tuple(environment.interpreter_flags(sys.orig_argv[1:])),
    )  # fmt: skip
    name = os.path.abspath(request.script) if request.script else request.module
    run = RunRecord(name, request.name, command, request.arguments, os.getcwd(), request.seed)
    with tempfile.TemporaryDirectory(prefix="detrain-record-") as folder:
        found = Order(folder, run, Goal(num_steps=num_steps), None, None, []).carry_out()
    if "graph" in found:
        return graphfile.decode(found["graph"], name=Path(name).stem)
    if "no_graph" in found:
        raise GraphError(found["no_graph"])
    if found["status"]:
        raise GraphError(f"the script ended with status {found['status']} before it trained: {found['said'].strip()}")
    raise GraphError(
        f"{request.name}: no training loop was seen, so there is no step to record. {found['said'].strip()}".strip()
    )
