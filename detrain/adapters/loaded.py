"""The adapters of the frameworks that a script has loaded, asked as one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from detrain.adapters.protocol import Adapter, DataFlow, Limit, MemoryBudget, ModelLog, OperatorCall, StepLog
from detrain.errors import NotSupported
from detrain.world.signal_deferral import handlers_deferred

if TYPE_CHECKING:  # others have made these; nothing of them is needed here
    from detrain.pipeline.measured import WorkerSteps
    from detrain.world.clocks import Clocks
    from detrain.world.printing import Printing


class Entropy(Protocol):
    """The streams from which the preload library answers for the system (`detrain.world.preload`)."""

    def entropy_state(self) -> tuple[int, int] | None:
        """Position of the main thread's stream, and the number of children; None without the library."""

    def set_entropy_state(self, state: tuple[int, int]) -> None:
        """Set what `entropy_state` returned."""

    def entropy_of_threads(self) -> tuple[int, int]:
        """Positions of the other threads' streams."""

    def set_entropy_of_threads(self, state: tuple[int, int]) -> None:
        """Set what `entropy_of_threads` returned."""


class OperatorLog:
    """Collects the operators of all frameworks, in the order in which they run, until it is stopped."""

    def __init__(self) -> None:
        self.calls: list[OperatorCall] = []
        self._stops: list[Callable[[], None]] = []

    def start(self, adapters: Iterable[Adapter], is_user_file: Callable[[str], bool]) -> None:
        """Begin. Raises `NotSupported` if one of the frameworks cannot log its operators."""
        try:
            for adapter in adapters:
                self._stops.append(adapter.log_operators(is_user_file, self.calls.append))
        except NotSupported:
            self.stop()
            raise

    def stop(self) -> list[OperatorCall]:
        """End it. Returns one entry per call."""
        while self._stops:
            self._stops.pop()()
        return self.calls


@dataclass
class Frameworks:
    """The adapters of the frameworks that the script has loaded, and the stream of entropy; filled by the launcher."""

    loaded: dict[str, Adapter] = field(default_factory=dict)
    entropy: Entropy | None = None
    clocks: Clocks | None = None
    printing: Printing | None = None

    @contextlib.contextmanager
    def hidden_from_script(self) -> Iterator[tuple[int, int] | None]:
        """A context for detrain's own work. Yields the position of the stream of entropy, and puts the stream back there at its end.

        A library that is loaded for the first time draws from the stream, and one attempt may load it where another does not. Clock
        readings in here do not count as the script's, and the script's signal handlers are called after it.
        """
        with handlers_deferred():
            state = self.entropy.entropy_state() if self.entropy is not None else None
            try:
                with self.clocks_hidden():
                    yield state
            finally:
                if self.entropy is not None and state is not None:
                    self.entropy.set_entropy_state(state)

    def clocks_hidden(self) -> contextlib.AbstractContextManager[None]:
        """A context in which clock readings do not count as the script's."""
        return self.clocks.aside() if self.clocks is not None else contextlib.nullcontext()

    def generators(self) -> dict[str, Any]:
        """Every process-wide generator of random numbers, by name."""
        import random

        generators: dict[str, Any] = {"python": random._inst}
        for adapter in self.loaded.values():
            generators.update(adapter.generators())
        return generators

    def facts(self) -> dict[str, Any]:
        """What the bits depend on and a checkpoint cannot bring back, by name."""
        facts: dict[str, Any] = {"python": sys.version.split()[0], "machine": os.uname().machine}
        for adapter in self.loaded.values():
            facts.update(adapter.facts())
        return facts

    def flags(self) -> dict[str, Any]:
        """Process-wide switches, by framework."""
        return {name: adapter.flags() for name, adapter in self.loaded.items()}

    def set_flags(self, flags: dict[str, Any]) -> None:
        """Set what `flags` gave; switches of a framework that is not loaded are left out."""
        for name, values in flags.items():
            if name in self.loaded:
                self.loaded[name].set_flags(values)

    def can_train(self) -> bool:
        """True if the script has loaded a framework that trains models."""
        return any(adapter.can_train for adapter in self.loaded.values())

    def generator_types(self) -> frozenset[type]:
        """Types of generators of random numbers that anybody may make."""
        import random

        return frozenset(
            {random.Random, *(kind for adapter in self.loaded.values() for kind in adapter.generator_types)}
        )

    def trained(self) -> list[Any]:
        """The parameters that optimizers have stepped so far."""
        return [one for adapter in self.loaded.values() for one in adapter.trained()]

    def settle(self) -> None:
        """See `Adapter`."""
        for adapter in self.loaded.values():
            adapter.settle()

    def measured_steps(self) -> WorkerSteps | None:
        """See `Adapter`."""
        return next(filter(None, (adapter.measured_steps() for adapter in self.loaded.values())), None)

    def has_optimizer(self) -> bool:
        """True if the script has made an optimizer whose steps are reported."""
        return any(adapter.has_optimizer() for adapter in self.loaded.values())

    def is_trained(self, value: Any) -> bool:
        """True for a model, an optimizer or a scheduler of any framework."""
        return any(adapter.is_trained(value) for adapter in self.loaded.values())

    def loader_of(self, value: Any) -> type | None:
        """The class of a framework's data loader if `value` is one, or iterates over one."""
        loaders = (adapter.loader_of(value) for adapter in self.loaded.values())
        return next((loader for loader in loaders if loader is not None), None)

    def report_in_place_updates(self, on_update: Callable[[], None]) -> None:
        """Report also weight updates that the script makes by hand."""
        for adapter in self.loaded.values():
            adapter.report_in_place_updates(on_update)

    def start_data_flows(self) -> list[DataFlow]:
        """Begin to follow loaded tensors into gradients, in every framework that can."""
        flows = [flow for adapter in self.loaded.values() if (flow := adapter.data_flow()) is not None]
        for flow in flows:
            flow.start()
        return flows

    def log_operators(self, is_user_file: Callable[[str], bool]) -> OperatorLog:
        """Log every operator from now on. Raises `NotSupported` if a framework cannot."""
        log = OperatorLog()
        log.start(self.loaded.values(), is_user_file)
        return log

    def keep_to(self, limit: Limit) -> MemoryBudget:
        """Keep the program to a memory budget, in the framework that trains. Raises `NotSupported` where that is none that can."""
        refused = NotSupported("a script without a framework that trains", "be kept to a memory budget")
        for adapter in self.loaded.values():
            if adapter.can_train:
                try:
                    return adapter.keep_to(limit)
                except NotSupported as error:
                    refused = error
        raise refused

    def model_log(self) -> ModelLog:
        """See the models that are called, in the first framework that can. Raises `NotSupported` where none of those loaded can."""
        refused = NotSupported("a script without a framework that trains", "profile a script's model")
        for adapter in self.loaded.values():
            try:
                return adapter.model_log()
            except NotSupported as error:
                refused = error if adapter.can_train else refused
        raise refused

    def record_steps(self) -> StepLog:
        """Record steps of the first framework that can be recorded. Raises `NotSupported` where none of those loaded can."""
        refused = NotSupported(
            "a script without a framework that trains", "record a training step as a graph of operators"
        )
        for adapter in self.loaded.values():
            try:
                return adapter.record_steps()
            except NotSupported as error:  # a framework that a library has loaded beside the one that trains, it may be
                refused = error if adapter.can_train else refused
        raise refused

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """A context in which no mode of the script's, and no subclass of a tensor, sees the operations."""
        with contextlib.ExitStack() as stack:
            for adapter in self.loaded.values():
                stack.enter_context(adapter.unseen())
            yield

    def is_shortage(self, error: BaseException | None) -> bool:
        """True if an error, or a cause of it, says that memory is short, or that a file or a device cannot be used just now."""
        kinds = [kind for adapter in self.loaded.values() for kind in adapter.shortages]
        while error is not None:
            if isinstance(error, (MemoryError, OSError, *kinds)) or "allocate memory" in str(error):
                return True
            error = error.__cause__
        return False

    def wait(self) -> None:
        """Return once every device has done all that it was given: what lies on it can be read, and the script can go on using it."""
        for adapter in self.loaded.values():
            adapter.wait()

    def warm_up(self) -> None:
        """Before a script goes on in the middle: initialise what its first steps had initialised and no checkpoint holds."""
        for adapter in self.loaded.values():
            adapter.warm_up()

    def hold_loading(self, is_on: bool) -> None:
        """Hold back data loaders: what they would load now is not used."""
        for adapter in self.loaded.values():
            adapter.hold_loading(is_on)
