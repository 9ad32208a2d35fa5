"""Has a step planned in a process of its own, while the training goes on.

Nothing of it touches a disk, but for numba's cache, and it draws no random number of the training's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from detrain.errors import GraphError
from detrain.remat import graphfile, planfile
from detrain.remat.graph import Graph
from detrain.remat.schedule import Schedule
from detrain.world.preload import entropy_unmoved

#: A planner's best after so long is taken.
_LIMIT_S = 40.0
#: The training's own: what is preloaded there changes what a process draws from the system.
_OWN = "LD_PRELOAD"


@dataclass(frozen=True)
class Answer:
    """A plan."""

    schedule: Schedule
    peak_bytes: int
    #: Time of the operators with those that run again, over that of each run once.
    overhead: float


class PlanSource(Protocol):
    """One step that is being planned."""

    def answer(self) -> Answer | str | None:
        """The plan, or why there is none; None while it is being made."""

    def end(self) -> None:
        """It is not wanted any more."""


class Planning:
    """A step that is being planned by a process of its own."""

    def __init__(self, graph: Graph, budget_bytes: int, planner: str) -> None:
        self._graph = graph
        given, self._found = os.memfd_create("detrain-graph"), os.memfd_create("detrain-plan")
        try:
            with open(given, "wb", closefd=False) as file:
                file.write(json.dumps(graphfile.encode(graph)).encode())
            home = str(Path(__file__).parents[4])
            # By name and not by `-m`, as the script's folder is not to hide anything that the planner imports.
            code = f"import sys; sys.path.insert(0, {home!r}); from detrain.remat import worker; worker.main()"
            words = [str(given), str(self._found), str(budget_bytes), planner, str(_LIMIT_S)]
            with entropy_unmoved():  # the processes that the script starts are counted, and draw by their numbers
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code, *words],
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                    pass_fds=(given, self._found), env={name: value for name, value in os.environ.items() if name != _OWN},
                )  # fmt: skip
        except OSError:
            os.close(self._found)
            raise
        finally:
            os.close(given)

    def answer(self) -> Answer | str | None:
        """See `PlanSource`."""
        status = self._process.poll()
        if status is None:
            return None
        with open(self._found, "rb") as file:
            file.seek(0)
            content = file.read()
        self._found = -1
        try:
            found = json.loads(content)
        except ValueError:
            return f"the planner's process has ended with status {status}"
        if "why" in found:
            return str(found["why"])
        try:
            steps = planfile.steps_of(found["steps"], self._graph, "the plan")
        except GraphError as error:
            return str(error)
        schedule = Schedule(steps, found["planner"], found["budget_bytes"])
        return Answer(schedule, found["peak_bytes"], found["overhead"])

    def end(self) -> None:
        """See `PlanSource`."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._found >= 0:
            os.close(self._found)
            self._found = -1
