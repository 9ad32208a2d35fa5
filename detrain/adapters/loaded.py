"""The adapters of the frameworks that a script has loaded, asked as one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from detrain.world.signal_deferral import handlers_deferred


@dataclass
class Frameworks:
    """The adapters of the frameworks that the script has loaded, and the stream of entropy; filled by the launcher."""

    loaded: dict[str, Any] = field(default_factory=dict)
    entropy: Any = None  # has entropy_state(), entropy_of_threads() and what sets them
    clocks: Any = None  # detrain.world.clocks.Clocks
    printing: Any = None  # detrain.world.printing.Printing

    @contextlib.contextmanager
    def aside(self) -> Iterator[tuple[int, int] | None]:
        """While detrain works for itself: what that takes from the stream of entropy is put back. Gives the stream's position.

        Libraries that are loaded for the first time draw from it, and are loaded in one attempt and not in the next. Nor are what they read
        from the clocks the script's readings. Its signal handlers are called behind it.
        """
        with handlers_deferred():
            state: tuple[int, int] | None = self.entropy.entropy_state() if self.entropy is not None else None
            try:
                with self.clocks_aside():
                    yield state
            finally:
                if state is not None:
                    self.entropy.set_entropy_state(state)

    def clocks_aside(self) -> contextlib.AbstractContextManager[None]:
        """While what is read from the clocks is not read by the script."""
        aside: contextlib.AbstractContextManager[None]
        aside = self.clocks.aside() if self.clocks is not None else contextlib.nullcontext()
        return aside

    def generators(self) -> dict[str, Any]:
        """Every process-wide generator of random numbers, by name."""
        import random

        found: dict[str, Any] = {"python": random._inst}
        for adapter in self.loaded.values():
            found.update(adapter.generators())
        return found

    def facts(self) -> dict[str, Any]:
        """What the bits depend on beside the script."""
        found: dict[str, Any] = {"python": sys.version.split()[0], "machine": os.uname().machine}
        for adapter in self.loaded.values():
            found.update(adapter.facts())
        return found

    def flags(self) -> dict[str, Any]:
        """Process-wide switches, by framework."""
        return {name: adapter.flags() for name, adapter in self.loaded.items()}

    def set_flags(self, flags: dict[str, Any]) -> None:
        """The inverse of `flags`."""
        for name, values in flags.items():
            if name in self.loaded:
                self.loaded[name].set_flags(values)

    def has_optimizer(self) -> bool:
        """True if there is something that will report the updates it makes."""
        return any(adapter.has_optimizer() for adapter in self.loaded.values() if hasattr(adapter, "has_optimizer"))

    def log_operators(self, is_user_file: Callable[[str], bool]) -> list[Any]:
        """Note every operator from now on; each of what is returned has `stop`, which returns what was noted."""
        adapters = [adapter for adapter in self.loaded.values() if hasattr(adapter, "log_operators")]
        return [adapter.log_operators(is_user_file) for adapter in adapters]

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """While detrain looks at the script's objects: no mode, and no subclass of a tensor, is told of the operations."""
        with contextlib.ExitStack() as stack:
            for adapter in self.loaded.values():
                if hasattr(adapter, "unseen"):
                    stack.enter_context(adapter.unseen())
            yield

    def is_shortage(self, error: BaseException | None) -> bool:
        """True if an error, or what caused it, says that memory is short, or that a file or a device cannot be used just now."""
        kinds = [adapter.SHORTAGES for adapter in self.loaded.values() if hasattr(adapter, "SHORTAGES")]
        while error is not None:
            if isinstance(error, (MemoryError, OSError, *kinds)) or "allocate memory" in str(error):
                return True
            error = error.__cause__
        return False

    def wait(self) -> None:
        """Until devices have done all that they were told to: what lies on them can be read, and the script can go on using it."""
        for adapter in self.loaded.values():
            if hasattr(adapter, "wait"):
                adapter.wait()

    def make_ready(self) -> None:
        """Before a script goes on in the middle: what it had made by its first steps, and no checkpoint holds."""
        for adapter in self.loaded.values():
            if hasattr(adapter, "make_ready"):
                adapter.make_ready()

    def hold_loading(self, is_on: bool) -> None:
        """Tell loaders that what they would load now will not be used."""
        for adapter in self.loaded.values():
            if hasattr(adapter, "hold_loading"):
                adapter.hold_loading(is_on)
