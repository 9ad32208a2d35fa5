"""What is called inside the batch loop: seen for a few iterations, by a profile function that is in place for no longer."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from detrain.tracer.probes import Site

_GENERATOR = 0x20  # inspect.CO_GENERATOR


@dataclass
class Called:
    """Something that user code calls or iterates, at one place."""

    kind: str  # "next" of an iterator, "generator", "method", "function", "c" for a method written in C
    module: str
    qualname: str
    filename: str
    line: int
    owner: Any  # the object whose method it is; a function's own self
    caller: tuple[str, str]  # module and function that calls it
    is_in_loop: bool  # called by the very frame of the batch loop
    inside: Hashable = None  # the key of the call of which it is a part
    times: dict[int, int] = field(default_factory=dict)  # iteration to calls
    gives: bool = False  # it has returned something
    has_gradient: bool = False  # gradients were computed inside
    passes_on: bool = False  # what it gives is what something inside has given
    is_late: bool = False  # gradients had been computed before it in the same iteration
    arguments: dict[str, Any] = field(default_factory=dict)


class Calls:
    """Watches calls made by the user's functions and by the functions that hold the nest."""

    def __init__(
        self,
        batch: Site,
        is_near: Callable[[str], bool],
        on_value: Callable[[Any, Hashable], None],
        on_enough: Callable[[types.FrameType], None],
    ) -> None:
        """`on_value` is told what each call gives, `on_enough` that enough iterations have been watched."""
        self._batch = batch
        self._is_near = is_near
        self._on_value = on_value
        self._on_enough = on_enough
        self._near: dict[types.CodeType, bool] = {}
        self._active: dict[types.FrameType, tuple[Hashable, Called]] = {}
        self._gradient_at = -1
        self._last_given: dict[Hashable, Any] = {}  # by the call inside which it was given
        self._before: Any = None
        self.first_iteration = batch.ticks
        self.last_iteration: int | None = None
        self.found: dict[Hashable, Called] = {}

    def start(self) -> None:
        """Begin to watch this thread."""
        self._before = sys.getprofile()
        sys.setprofile(self._on_event)

    def stop(self) -> None:
        """Watch no more."""
        if self.last_iteration is None:
            self.last_iteration = self._batch.ticks
            sys.setprofile(self._before)
            self._active.clear()
            self._last_given.clear()

    @property
    def is_done(self) -> bool:
        """True once it has been stopped."""
        return self.last_iteration is not None

    def on_gradient(self) -> None:
        """Gradients are being computed, inside every call that is active."""
        if self.is_done:
            return
        self._gradient_at = self._batch.ticks
        for _, called in self._active.values():
            called.has_gradient = True

    @property
    def iterations(self) -> int:
        """Complete iterations that have been watched."""
        last = self._batch.ticks if self.last_iteration is None else self.last_iteration
        return max(last - self.first_iteration - 1, 0)

    def _on_event(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call":
            caller = frame.f_back
            if caller is not None and (self._is_from_near(caller) or self._passes_on(frame, caller)):
                self._called(frame, caller)
        elif event == "return":
            entry = self._active.pop(frame, None)
            if entry is not None and argument is not None:
                self._returned(*entry, argument)
        elif event == "c_call" and self._is_from_near(frame):
            owner = argument.__self__
            if owner is not None and not isinstance(owner, (types.ModuleType, type)):
                module, name = type(owner).__module__, f"{type(owner).__qualname__}.{argument.__name__}"
                self._record(frame, ("c", name), "c", module, name, owner).gives = True

    def _returned(self, key: Hashable, called: Called, value: Any) -> None:
        if not isinstance(value, (int, float, str)):
            called.gives = True
        self._on_value(value, key)
        inner = self._last_given.pop(key, None)
        called.passes_on = called.kind in ("next", "generator") and inner is value
        if called.inside is not None:
            self._last_given[called.inside] = value

    def _is_from_near(self, caller: types.FrameType) -> bool:
        code = caller.f_code
        near = self._near.get(code)
        if near is None:
            near = self._near[code] = self._is_near(code.co_filename)
        return near

    def _passes_on(self, frame: types.FrameType, caller: types.FrameType) -> bool:
        """True if one iterator asks another, as a progress bar does."""
        entry = self._active.get(caller)
        if entry is None or entry[1].kind not in ("next", "generator"):
            return False
        return frame.f_code.co_name == "__next__" or bool(frame.f_code.co_flags & _GENERATOR)

    def _called(self, frame: types.FrameType, caller: types.FrameType) -> None:
        code = frame.f_code
        if _is_comprehension(code):
            return
        module = frame.f_globals.get("__name__", "?")
        arguments = {name: frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]}
        first = next(iter(arguments.values()), None)
        is_method = _is_method_of(first, code)
        if code.co_flags & _GENERATOR:
            kind, owner = "generator", first if is_method else frame
        elif is_method:
            kind, owner = "next" if code.co_name == "__next__" else "method", first
        else:
            kind, owner = "function", None
        called = self._record(caller, code, kind, module, code.co_qualname, owner)
        if self.is_done:
            return
        if kind == "function":
            called.arguments = {**self._globals_of(frame), **arguments}
        self._active[frame] = (self._key(caller, code), called)

    @staticmethod
    def _globals_of(frame: types.FrameType) -> dict[str, Any]:
        """What a function reads beside its arguments."""
        code = frame.f_code
        names = [name for name in code.co_names if name in frame.f_globals]
        found = {name: frame.f_globals[name] for name in names}
        found.update((name, frame.f_locals[name]) for name in code.co_freevars if name in frame.f_locals)
        owner = frame.f_globals.get(code.co_qualname.partition(".")[0])  # of a static method
        classes = {name: value for name, value in {**found, "": owner}.items() if isinstance(value, type)}
        for name, cls in classes.items():
            found.update((f"{name}.{key}", value) for key, value in vars(cls).items() if not callable(value))
        unwanted = (types.ModuleType, types.FunctionType, type, types.BuiltinFunctionType)
        return {name: value for name, value in found.items() if not isinstance(value, unwanted)}

    @staticmethod
    def _key(caller: types.FrameType, callee: Hashable) -> Hashable:
        return caller.f_code, caller.f_lineno, callee

    def _record(
        self, caller: types.FrameType, callee: Hashable, kind: str, module: str, qualname: str, owner: Any
    ) -> Called:
        key = self._key(caller, callee)
        called = self.found.get(key)
        if called is None:
            while _is_comprehension(caller.f_code) and caller.f_back is not None:
                caller = caller.f_back
            code = caller.f_code
            called = self.found[key] = Called(
                kind, module, qualname, code.co_filename, caller.f_lineno or 0, owner,
                (caller.f_globals.get("__name__", "?"), code.co_qualname),
                code.co_filename == self._batch.filename and code.co_qualname == self._batch.function,
                self._active[caller][0] if caller in self._active else None,
            )  # fmt: skip
        # A `for` loop's iterator is asked before the iteration begins that it gives its element to.
        iteration = self._batch.ticks
        called.is_late = called.is_late or (self._gradient_at == iteration and caller.f_lineno != self._batch.line)
        called.times[iteration] = called.times.get(iteration, 0) + 1
        if self.iterations >= NUM_ITERATIONS:
            self._on_enough(caller)
        return called


def _is_method_of(first: Any, code: types.CodeType) -> bool:
    """True if the first argument is an instance of the class in whose body the code was written, or that class."""
    owner = code.co_qualname.rpartition(".")[0]
    classes = first.__mro__ if isinstance(first, type) else type(first).__mro__
    return any(cls.__qualname__ == owner for cls in classes)


def _is_comprehension(code: types.CodeType) -> bool:
    """True for code that is part of another function's expression."""
    return code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


#: Iterations that are watched from their beginning to their end.
NUM_ITERATIONS = 2
