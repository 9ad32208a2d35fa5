"""Counts how much each seeded random operation of the script has drawn.

The generator of such an operation has the first seed as its key and the second as the upper half of its counter; each call advances the
lower half. TensorFlow keeps the generator in the kernel, where it can be neither read nor set, so `stateless` and `kernel_skip` count
what is drawn: in a variable of the graph for an operation in a graph, else in a number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from detrain.adapters.tensorflow import variable_names
from detrain.adapters.tensorflow.functions import Place, functions
from detrain.adapters.tensorflow.scopes import is_in_data_function
from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring
from detrain.state.tree import Node


class Counter:
    """How much the calls of one operation have drawn.

    For an operation whose generator stays in the kernel, `values` also says how much the kernel has still to draw to get to the position
    of a checkpoint.
    """

    def __init__(self, name: str, drawn: int, place: Place | None, *, is_kernels: bool) -> None:
        """`place`: of the operation in its graph; None for an eager one."""
        self.name, self.place, self.is_kernels = name, place, is_kernels
        #: () or (2,) int64; a variable where the operation is in a graph
        self.values: Any = np.array([drawn, drawn] if is_kernels else drawn, dtype=np.int64)
        if place is not None:
            # Not `tf.Variable`: functions intercept that.
            with ops.init_scope(), tf.device("/cpu:0"), variable_names.count.paused():
                self.values = resource_variable_ops.ResourceVariable(self.values, trainable=False, name="counter")

    @property
    def is_gone(self) -> bool:
        """True once the graph is gone, and with it whoever could run the operation."""
        return self.place is not None and self.place.graph() is None

    @property
    def is_exported(self) -> bool:
        """True if it was traced for a SavedModel: it stays at 0, and no later attempt needs it."""
        return self.place is not None and self.place.trace.is_exported

    @property
    def drawn(self) -> int:
        """How much has been drawn in the run."""
        return int(np.asarray(self.values).flat[0])

    def go_to(self, drawn: int) -> None:
        """Set the position of a checkpoint. Raises `RestoreError` if a kernel has already drawn more."""
        if not self.is_kernels:
            self.set(drawn)
            return
        values = np.asarray(self.values)
        missing = drawn - int(values[0] - values[1])
        if missing < 0:
            raise RestoreError(
                f"{self.name}: the generator is in TensorFlow's kernel, and has already drawn more than at the checkpoint"
            )
        self.set([drawn, missing])

    def set(self, values: Any) -> None:
        """Set the values, outside of any graph."""
        with ops.init_scope():
            if isinstance(self.values, np.ndarray):
                self.values[...] = values
            else:
                self.values.assign(values)


class Counters:
    """Every counter of the process, by a name that later attempts give to the same operation."""

    def __init__(self) -> None:
        self.made: dict[str, Counter] = {}
        self._saved: dict[str, int] = {}  # of a checkpoint, for those that are still to be made
        self._saved_traces: dict[str, str] = {}
        self._num_at: dict[str, int] = {}
        self._by_handle: dict[int, Counter] = {}
        self._eager: dict[tuple[Any, ...], Counter] = {}
        self._recorded: dict[tuple[int, bytes], Any] = {}

    def in_graph(self, kind: str, seeds: tuple[int, int], *, is_kernels: bool = False) -> Any:
        """The variable that counts for an operation that is being made in a graph."""
        place = functions.place(f"{kind}:{seeds[0]}:{seeds[1]}")
        return self._in_graph(place.name, place, is_kernels=is_kernels)

    def eager(
        self, kind: str, seeds: tuple[int, int], types: tuple[tf.DType, ...], *, is_kernels: bool = False
    ) -> Counter:
        """The counter of an eager operation: TensorFlow keeps one kernel for all eager calls with the same attributes."""
        attributes = kind, seeds, types, ops.context.context().device_name
        found = self._eager.get(attributes)
        if found is None:
            names = ",".join(one.name for one in types)
            name = self._numbered(f"{kind}:{names}:{seeds[0]}:{seeds[1]}")
            found = self._eager[attributes] = self._new(name, None, is_kernels=is_kernels)
        return found

    def _in_graph(self, name: str, place: Place, *, is_kernels: bool) -> Any:
        counter = self._new(name, place, is_kernels=is_kernels)
        # The handle lives as long as the variable, which is never given up.
        self._by_handle[id(counter.values.handle)] = counter
        return counter.values

    def _new(self, name: str, place: Place | None, *, is_kernels: bool) -> Counter:
        """A counter at the position of the checkpoint, or at 0. Replaces one of a trace that only made variables."""
        counter = self.made[name] = Counter(name, self._saved.get(name, 0), place, is_kernels=is_kernels)
        return counter

    def _numbered(self, name: str) -> str:
        number = self._num_at[name] = self._num_at.get(name, -1) + 1
        return f"{name}#{number}"

    def reset(self) -> None:
        """Set all to 0: TensorFlow has dropped its kernels."""
        for counter in self.made.values():
            counter.set(np.zeros_like(np.asarray(counter.values)))

    def of_call(self, handle: Any, function: Any) -> Any:
        """The counter handle to pass to a function that is called, given the handle that it was traced with.

        A function called from a graph has kernels of its own for each call, and so has one that is called under a tape.
        """
        traced = self._by_handle.get(id(handle))
        if traced is None:
            return handle
        assert traced.place is not None
        if not context.executing_eagerly():
            place = functions.place(traced.name)
            return self._in_graph(place.name, place, is_kernels=traced.is_kernels).handle
        key = id(handle), function.name
        if key not in self._recorded:
            name = self._numbered(f"{traced.name}:recorded")
            self._recorded[key] = self._in_graph(name, traced.place, is_kernels=traced.is_kernels).handle
        return self._recorded[key]

    def has(self, handle: Any) -> bool:
        """True if a handle is that of a counter in a graph."""
        return id(handle) in self._by_handle

    def variable(self, handle: Any) -> Any:
        """The variable that a handle belongs to."""
        return self._by_handle[id(handle)].values

    def exported_and_used(self) -> list[str]:
        """Traces that were made for a SavedModel and then drew numbers in training: a resumed attempt makes other traces."""
        used = (one for one in self.made.values() if one.is_exported and one.drawn and not one.is_gone)
        return sorted({one.place.trace.name for one in used if one.place is not None})

    def state(self) -> dict[str, Any]:
        """How much each has drawn, and which traces they belong to; JSON."""
        self.made = {name: counter for name, counter in self.made.items() if not counter.is_gone}
        kept = {name: counter for name, counter in self.made.items() if not counter.is_exported}
        places = [one.place for one in kept.values() if one.place is not None]
        return {
            "drawn": {**self._saved, **{name: counter.drawn for name, counter in kept.items()}},
            "traces": {**self._saved_traces, **{one.trace.name: one.trace.function_name for one in places}},
            "functions": dict(functions.num_of),
            "variables": variable_names.count.last,
        }

    def set_state(self, state: dict[str, Any], set_aside: Callable[[], str]) -> None:
        """Set what `state` gave. `set_aside`: what a later error says is to be done with the checkpoint."""
        self._saved, self._saved_traces = state["drawn"], state["traces"]
        for name, counter in self.made.items():
            counter.go_to(self._saved.get(name, 0))
        functions.expect(state["functions"], self._saved_traces, set_aside)
        variable_names.count.last = state.get("variables", variable_names.count.last)


class CountersHandler(Handler):
    """How far every counter has come."""

    kind = "tensorflow.counters"
    fields: ClassVar = plain_fields("counters")
    has_attributes = False
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if functions.ambiguous:
            raise CaptureError(
                f"{', '.join(sorted(functions.ambiguous))}: traced several times with arguments that look alike, and the generators of "
                "random numbers of each cannot be told apart"
            )
        if used := obj.exported_and_used():
            raise CaptureError(f"{', '.join(used)}: traced for a SavedModel, and called since by the script")
        node["counters"] = obj.state()

    def build(self, node: Node, restore: Restoring) -> Any:
        return counters

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        obj.set_state(node["counters"], restore.set_aside)

    def fingerprint(self, obj: Any) -> bytes:
        return repr(sorted(obj.state()["drawn"].items())).encode()


class Unreadable:
    """Operations whose position can be neither counted nor set."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._run: set[tuple[Any, ...]] = set()

    def record(self, name: str, seed: int, seed2: int) -> None:
        """Record that one is made or run.

        An eager one with seeds of its own has a new generator each time, so it only counts when it is run again with the same seeds.
        """
        attributes = name, seed, seed2
        if not context.executing_eagerly() or attributes in self._run:
            self.names.add(name)
        self._run.add(attributes)


class UnreadableHandler(Handler):
    """What is lost of them is named."""

    kind = "tensorflow.unreadable"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj.names:
            raise CaptureError(
                f"{', '.join(sorted(obj.names))}: the generator is in TensorFlow's kernel and cannot be read"
            )

    def fingerprint(self, obj: Any) -> bytes:
        return b""


unreadable = Unreadable()
counters = Counters()


def patch() -> None:
    """Patch calls of functions, and what makes TensorFlow drop its kernels."""
    _wrap_calls()
    for name in ("_set_global_seed", "_clear_caches", "clear_kernel_cache"):
        _wrap_forgetting(name)


def is_left(seed: int, seed2: int) -> bool:
    """True for operations left as they are: seeded by chance, or in a function of a data set, where they belong to its iterator."""
    return (not seed and not seed2) or is_in_data_function() or not ops.executing_eagerly_outside_functions()


def _wrap_calls() -> None:
    plain = atomic_function.AtomicFunction.call_flat

    @wraps(plain)
    def call_flat(function: Any, *args: Any) -> Any:
        if context.executing_eagerly() and not function.name.startswith(b"__forward"):
            return plain(function, *args)  # with the counters that it was traced with
        return plain(function, *(counters.of_call(one, function) for one in args))

    atomic_function.AtomicFunction.call_flat = call_flat


def _wrap_forgetting(name: str) -> None:
    plain = getattr(context.Context, name)

    @wraps(plain)
    def forget(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        counters.reset()

    setattr(context.Context, name, forget)
