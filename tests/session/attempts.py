"""A training in this very process: one attempt after another on one run directory, with a framework of a few lines, in milliseconds.

A script is instrumented, run, broken off where a test says, and run again as the next process would do it. All that these tests know of
the session stands in this file.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import json
import logging
import os
import random
import struct
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from detrain import hooks
from detrain.adapters.loaded import Frameworks
from detrain.adapters.protocol import Adapter
from detrain.loops import instfile
from detrain.loops.position import Position
from detrain.loops.stack import LoopStack
from detrain.outputs.following import OutputFiles
from detrain.proof.comparison import Comparison, Side
from detrain.rewrite.importer import Instrumenter
from detrain.session import recorder
from detrain.session.context import Context, Settings
from detrain.session.goal import Goal
from detrain.session.libraries import Libraries
from detrain.session.policy import Policy, parse
from detrain.session.replay import Replay, digest_of
from detrain.session.rerun import REPORT, Rerun
from detrain.session.resume import Resume, plan
from detrain.session.session import Session
from detrain.session.trusting import Trusting
from detrain.state import user_code
from detrain.store import checkpoint
from detrain.store.directory import RunDirectory
from detrain.store.record import Change, Invocation
from tests.state.describing import describe

_HOOKS = ("record_loop", "record_epoch", "record_batch", "enter_loop")


class Killed(BaseException):
    """The attempt ends here; no code of the script hears of it."""


class Left(BaseException):
    """The session has ended the process, with this status."""


class Again(BaseException):
    """Stands for the start of the script anew, in the same process."""


class Framework(Adapter, types.ModuleType):
    """What a script trains with: weights are lists of floats. It is its own adapter."""

    name = "framework"

    def __init__(self, kill_at: int | None = None) -> None:
        super().__init__("framework")
        self.rng = random.Random(5)
        self.mode, self.version = "train", "1.0"
        self.kill_at, self.steps = kill_at, 0
        self.shortage: BaseException | None = None
        self.stepped: dict[int, list[float]] = {}

    def backward(self, loss: float) -> None:
        """Gradients are computed."""
        self._on_gradient([loss])

    def step(self, weights: list[float], by: float) -> None:
        """Weights are updated, after which the attempt may be over."""
        weights[0] += by * self.rng.random()
        weights[1] *= 1.01
        self.stepped[id(weights)] = weights
        self._on_update()
        self.steps += 1
        if self.steps == self.kill_at:
            raise Killed

    # --- as an adapter -----------------------------------------------------------------------------------------------------

    shortages = (ZeroDivisionError,)

    def report_updates(self, on_update: Any, on_gradient: Any, quiet: Any = None) -> None:
        self._on_update, self._on_gradient = on_update, on_gradient

    def losses(self, outputs: list[float]) -> Any:
        return [lambda value=value: (struct.pack("<d", value), [value]) for value in outputs]

    def trained(self) -> list[Any]:
        return list(self.stepped.values())

    def has_optimizer(self) -> bool:
        return True

    def generators(self) -> dict[str, Any]:
        return {"framework": self.rng}

    def flags(self) -> dict[str, Any]:
        return {"mode": self.mode}

    def set_flags(self, flags: dict[str, Any]) -> None:
        self.mode = flags["mode"]

    def facts(self) -> dict[str, Any]:
        return {"framework": self.version}


@dataclass
class Ended:
    """How an attempt has ended: the script's variables, what it was ended by, and the session."""

    variables: dict[str, Any]
    by: BaseException | None
    session: Session
    steps: int
    next_draw: float


@dataclass
class Run:
    """One run: a script and its directory."""

    source: str
    folder: Path
    every: str = "3batches"
    arguments: list[str] = field(default_factory=list)
    attempts: int = 0
    #: What a trace has found beyond the loops.
    extra: dict[str, Any] = field(default_factory=dict)
    #: Decisions to go on with other arguments, and by checkpoint what the old ones made.
    changes: list[Change] = field(default_factory=list)
    olds: dict[str, Any] = field(default_factory=dict)
    #: Of an attempt that does a part of a run again.
    goal: Goal | None = None

    @property
    def directory(self) -> RunDirectory:
        """Where its checkpoints are."""
        return RunDirectory(self.folder / "run")

    def attempt(
        self,
        kill_at: int | None = None,
        *,
        start: str | None = None,
        is_trusting: bool = False,
        framework: Framework | None = None,
        starts_again: bool = False,
    ) -> Ended:
        """Run the script, up to a number of weight updates if one is given, from the latest checkpoint or the one named `start`.

        `starts_again`: an attempt that cannot restore a checkpoint ends with `Again`, instead of with an error.
        """
        self.attempts += 1
        framework = framework or Framework(kill_at)
        framework.kill_at = kill_at
        script = self.folder / "train.py"
        script.write_text(self.source, encoding="utf-8")
        directory = self.directory
        targets, _ = plan(directory, start)
        directory.lock()
        info_path = directory.path / "inst.info"
        info = instfile.read(info_path, self.folder) if info_path.exists() else instfile.InstInfo()
        info.extra.update(self.extra)
        frameworks = Frameworks(loaded={"framework": framework})
        stack, invocation = LoopStack(info.parts(), info.nums_in_nest()), Invocation(tuple(self.arguments))
        context = Context(
            Settings(script, "train", 100, invocation, self.attempts), directory, Policy(parse(self.every), time.monotonic()), info,
            frameworks, OutputFiles(directory.path), Replay(info.extra, lambda: digest_of(frameworks.generators())), Position(),
            stack.is_user_file, _begin_anew if starts_again else None, libraries=Libraries(frameworks.loaded),
        )  # fmt: skip
        rerun = Rerun(context, self.goal) if self.goal is not None else None
        trusting = Trusting(invocation, self.changes, self.olds)
        resume = Resume(context, targets, is_trusting=is_trusting, trusting=trusting, rerun=rerun)
        session = Session(context, stack, resume, rerun)
        try:
            return self._run(script, session, framework)
        finally:
            session.stop()
            directory.unlock()
            gc.collect()  # or what this attempt has left is finalised in the middle of the next
            gc.freeze()

    def _run(self, script: Path, session: Session, framework: Framework) -> Ended:
        info = session.context.info
        instrumenter = Instrumenter(info.parts(), None, lambda name, code: user_code.user_code.update({name: code}))
        code = instrumenter.compile(script.read_bytes(), str(script))
        session.stack.add_file(str(script), instrumenter.loops[str(script)])
        info.sources[str(script)] = instrumenter.digests[str(script)]
        session.watch(framework)
        module, by = types.ModuleType("__main__"), None
        with _process(session, framework, module):
            try:
                exec(code, vars(module))
                session.end()
            except (Killed, Left, Again, Exception) as error:  # noqa: BLE001 - the script's own, of which a test asks
                by = error
                if not isinstance(error, (Left, Again)):
                    session.finish_write()
        hidden = (*user_code.PYTHONS_OWN, "framework")
        variables = {name: value for name, value in vars(module).items() if name not in hidden and not callable(value)}
        return Ended(variables, by, session, framework.steps, framework.rng.random())

    def probe(self) -> None:
        """Find out what the present arguments make of the set-up, at each checkpoint on the way to the latest."""
        self.goal = Goal(reports_arrivals=True)
        assert isinstance(self.attempt().by, Left)
        self.goal = None
        self.olds = json.loads((self.directory.path / REPORT).read_text())["arrivals"]

    def checkpoints(self) -> list[Path]:
        """The committed ones."""
        return self.directory.checkpoint_paths()


@contextlib.contextmanager
def _process(session: Session, framework: Framework, module: types.ModuleType) -> Iterator[None]:
    """What a process of its own would have: a `__main__`, hooks, a framework, standard streams and loggers that nobody has touched."""
    root = logging.RootLogger(logging.WARNING)
    with contextlib.ExitStack() as stack:
        for name in _HOOKS:
            stack.enter_context(_set(vars(builtins), f"__detrain_{name}__", getattr(hooks, name)))
        stack.enter_context(_set(vars(hooks), "session", session))
        stack.enter_context(_set(sys.modules, "__main__", module))
        stack.enter_context(_set(sys.modules, "framework", framework))
        stack.enter_context(mock.patch.object(logging, "root", root))
        stack.enter_context(mock.patch.multiple(logging.Logger, root=root, manager=logging.Manager(root)))
        for stream in ("stdout", "stderr"):
            stack.enter_context(_set(vars(sys), stream, getattr(sys, f"__{stream}__")))
        stack.enter_context(_set(vars(os), "_exit", _leave))
        stack.enter_context(_set(vars(os), "fsync", lambda _: None))  # nobody is killed that way here
        stack.enter_context(_set(vars(recorder), "BUDGET", 1.0))  # a record in the ledger for every batch
        random.seed(0)
        folder = os.getcwd()
        stack.callback(os.chdir, folder)
        stack.callback(user_code.user_code.pop, str(session.context.settings.script), None)
        yield


@contextlib.contextmanager
def _set(namespace: Any, name: str, value: Any) -> Iterator[None]:
    missing = object()
    before = namespace.get(name, missing)
    namespace[name] = value
    try:
        yield
    finally:
        if before is missing:
            namespace.pop(name, None)
        else:
            namespace[name] = before


def _leave(status: int) -> None:
    raise Left(status)


def _begin_anew() -> NoReturn:
    raise Again


def outcome(ended: Ended) -> Any:
    """Everything that a script has come to, to be compared with that of another run."""
    assert ended.by is None, ended.by
    return describe(ended.variables), ended.next_draw


def differences(one: Run, other: Run) -> list[Any]:
    """What the comparison finds between the checkpoints of one name of two runs."""
    found = []
    for path in one.checkpoints():
        mate = other.directory.path / path.name
        if mate.exists():
            comparison = Comparison(Side(*checkpoint.load(path)), Side(*checkpoint.load(mate)))
            comparison.run()
            found += [(path.name, difference) for difference in comparison.differences]
    return found
