"""Round by round: follows a script until its nest is known, watches a few iterations, and says what was seen."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from detrain.loops.nest import NestFinder
from detrain.tracer import loaders
from detrain.tracer.calls import Calls
from detrain.tracer.probes import Probes, Site
from detrain.tracer.sizes import Sizes, measure
from detrain.tracer.stack import Stack

#: Without an optimizer, updates are looked for among the operations on tensors; so many batches are waited for one.
_PATIENCE = 5


@dataclass
class Report:
    """What one run of a script has shown; plain data, on its way to the inference."""

    nests: list[list[dict[str, Any]]] = field(default_factory=list)
    update: tuple[str, int] | None = None  # file and line
    candidates: list[dict[str, Any]] = field(default_factory=list)
    sizes: Sizes = field(default_factory=dict)
    seconds: float = 0.0
    batches: int = 0
    updates_seen: int = 0
    gradients_seen: int = 0
    loops_seen: list[tuple[str, int, int]] = field(default_factory=list)  # file, line, iterations; the busiest first


class Flow(Protocol):
    """Follows what is loaded into gradients, in one framework."""

    labelled: set[Hashable]
    arrived: set[Hashable]

    def label(self, value: Any, key: Hashable) -> None:
        """Mark a loaded value with a key."""

    def stop(self) -> None:
        """End it."""


@dataclass
class World:
    """What the observer asks of those who know files, frameworks and state."""

    is_user_file: Callable[[str], bool]
    is_below: Callable[[str], bool]  # a file that runs the script and is no part of it
    function_in: Callable[
        [str], str | None
    ]  # the one of a library's file in which alone training loops stand, if that is known
    modules: Callable[[], dict[str, types.ModuleType]]  # the user's, by name
    name_of: Callable[[str], str]  # of a module: the script's is not `__main__`
    has_optimizer: Callable[[], bool]
    report_in_place_updates: Callable[[], None]  # those made by hand, from now on
    start_data_flows: Callable[[], Sequence[Flow]]  # begin to follow what is loaded
    is_trained: Callable[[Any], bool]  # a model or an optimizer
    loader_of: Callable[
        [Any], type | None
    ]  # a framework's loader (its class), if an object is one or iterates over one
    is_capturable: Callable[[Any], bool]
    on_done: Callable[[Report], None]  # does not return


class Observer:
    """One round."""

    def __init__(self, probes: Probes, world: World) -> None:
        self._world = world
        self._stack = Stack(probes.sites, world.is_below, world.function_in)
        self._sites = probes.sites
        self._finder = NestFinder(self._must_see_update)
        self._began_s = time.monotonic()
        self._calls: Calls | None = None
        self._flows: Sequence[Flow] = []
        self._nests: list[Sequence[Site]] = []
        self._is_reporting_in_place = False
        self._is_describing = False
        self.report = Report()

    def _must_see_update(self) -> bool:
        return self._world.has_optimizer() or self._finder.gradients_seen < _PATIENCE

    # --- what frameworks tell ----------------------------------------------------------------------------------------------

    def on_gradient(self, frame: types.FrameType) -> None:
        """Gradients are being computed."""
        if self._is_describing:
            return
        if self._calls is not None:
            self._calls.on_gradient()
        nest = self._finder.on_gradient(self._stack.path(frame, may_watch=True))
        if nest is not None:
            self._found(nest, frame)
        if self._finder.gradients_seen > 1 and not self._is_reporting_in_place:
            self._is_reporting_in_place = True
            self._world.report_in_place_updates()

    def on_update(self, frame: types.FrameType) -> None:
        """Weights have been updated."""
        if self._is_describing:
            return
        nest = self._finder.on_update(self._stack.path(frame))
        if nest is not None:
            self._found(nest, frame)
        if self._calls is not None and self._calls.is_done and self._is_settled():
            self.finish(frame)

    def _is_settled(self) -> bool:
        return all(self._finder.is_settled(*reversed(nest)) for nest in self._nests)

    # --- what is concluded -------------------------------------------------------------------------------------------------

    def _found(self, nest: Sequence[Site], frame: types.FrameType) -> None:
        self._nests = [old for old in self._nests if not any(site.is_demoted for site in old) and set(old) != set(nest)]
        self._nests.append(list(nest))
        if len(self._nests) == 1:  # of several, the first one is described
            self._record_update(frame)
            self._patch_calls()

    def _record_update(self, frame: types.FrameType) -> None:
        """The innermost line of the user's, or of a file that holds a loop of the nest."""
        for one in self._stack.frames(frame):
            if self._is_near(one.f_code.co_filename):
                self.report.update = one.f_code.co_filename, one.f_lineno or 0
                return

    def _is_near(self, filename: str) -> bool:
        """True for the user's files and for those that hold a loop of a nest."""
        return self._world.is_user_file(filename) or any(
            site.filename == filename for nest in self._nests for site in nest
        )

    def _patch_calls(self) -> None:
        """Watch what the batch loop calls, from now on; of several nests, the first one's."""
        self._stop_watching()
        self._flows = self._world.start_data_flows()
        self._calls = Calls(self._nests[0][-1], self._is_near, self._label, self._enough)
        self._calls.start()

    def _stop_watching(self) -> None:
        if self._calls is not None:
            self._calls.stop()
        for flow in self._flows:
            flow.stop()

    def _enough(self, frame: types.FrameType) -> None:
        self._stop_watching()
        self._describe_calls(self._stack.frames(frame))
        if self._is_settled():
            self.finish(frame)

    def _describe_calls(self, around: Sequence[types.FrameType]) -> None:
        """While the frames are there: a generator that has ended holds nothing."""
        assert self._calls is not None
        nest = self._nests[0]
        trainers = loaders.selves_of(around, nest)
        self._is_describing = True  # looking at tensors is no training
        self.report.candidates = loaders.describe(self._calls, nest[-1], self._world, self._feeds, trainers)
        self._is_describing = False

    def _label(self, value: Any, key: Hashable) -> None:
        for flow in self._flows:
            flow.label(value, key)

    def _feeds(self, key: Hashable) -> bool | None:
        """Whether what a call gives flows into gradients; None if it gives nothing that can be followed."""
        followed = [flow for flow in self._flows if key in flow.labelled]
        return any(key in flow.arrived for flow in followed) if followed else None

    def finish(self, frame: types.FrameType | None) -> None:
        """Enough has been seen, or the script has ended (then without a frame)."""
        report = self.report
        self._stop_watching()
        report.seconds = time.monotonic() - self._began_s
        report.updates_seen, report.gradients_seen = self._finder.updates_seen, self._finder.gradients_seen
        busiest = sorted(self._sites.values(), key=lambda site: -site.ticks)[:3]
        report.loops_seen = [(site.filename, site.line, site.ticks) for site in busiest if site.ticks]
        report.nests = [[_describe(site) for site in nest] for nest in self._nests]
        if self._nests:
            report.batches = self._nests[0][-1].ticks
            around = self._stack.frames(frame)
            if not report.candidates:
                self._describe_calls(around)
            report.sizes = measure(self._roots(around))
        self._world.on_done(report)

    def _roots(self, frames: Sequence[types.FrameType]) -> dict[str, Any]:
        roots: dict[str, Any] = {}
        for name, module in self._world.modules().items():
            roots.update({f"{name}.{key}": value for key, value in vars(module).items() if not key.startswith("__")})
        for one in frames:
            if self._is_near(one.f_code.co_filename) and one.f_code.co_name != "<module>":
                name = f"{self._world.name_of(one.f_globals.get('__name__', '?'))}.{one.f_code.co_qualname}"
                roots.update({f"{name}.{key}": value for key, value in one.f_locals.items()})
        return roots


def _describe(site: Site) -> dict[str, Any]:
    return {
        "file_name": site.filename, "line_no": site.line, "part": site.part, "function": site.function,
    }  # fmt: skip
