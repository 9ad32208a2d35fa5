"""The process that plans a step of a training that goes on meanwhile: graph in, plan out, each in a file that is open already."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

from detrain.errors import DetrainError
from detrain.plans.errors import NoPlanError
from detrain.remat import graphfile, planfile
from detrain.remat.planners.registry import plan

#: The training goes first.
_NICE = 10
_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def main() -> None:
    """`worker GRAPH PLAN BUDGET PLANNER SECONDS`: descriptors, bytes, a name and the most that it may take."""
    given, found, budget_bytes, planner, limit_s = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody wants the plan of a training that was killed
    os.nice(_NICE)
    with open(int(given), "rb") as file:
        file.seek(0)
        graph = graphfile.decode(json.load(file))
    document: dict[str, object]
    try:
        planned = plan(graph, int(budget_bytes), planner, float(limit_s))
    except (NoPlanError, DetrainError) as error:
        document = {"why": f"{planner}: {error}"}
    else:
        document = {**planfile.summary(graph, planned), "steps": planfile.encode_steps(planned.schedule)}
    with open(int(found), "w", encoding="utf-8") as file:
        json.dump(document, file)
