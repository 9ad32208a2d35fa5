"""How far the generator of each random operation has come, where a script gives the operation a seed.

The key of such a generator is the first seed, the upper half of its counter the second, and each call moves the lower half on. One that
TensorFlow keeps in a kernel can neither be read nor set, so `stateless.py` and `skipping.py` count what is drawn: with an operation in a
graph in a variable of the graph's, else in a number.
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

from detrain.adapters.tensorflow.functions import Place, functions
from detrain.adapters.tensorflow.scopes import is_in_data_function
from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring
from detrain.state.tree import Node


class Counter:
    """What the calls of one operation have drawn.

    Of a generator that lies in a kernel, `values` holds as well how much of that the kernel has still to draw, in a process that has
    been taken to a checkpoint.
    """

    def __init__(self, name: str, drawn: int, place: Place | None, *, is_kernels: bool) -> None:
        """`place`: in a graph; None for one that is run by itself."""
        self.name, self.place, self.is_kernels = name, place, is_kernels
        #: () or (2,) int64, a variable in a graph
        self.values: Any = np.array([drawn, drawn] if is_kernels else drawn, dtype=np.int64)
        if place is not None:
            with ops.init_scope(), tf.device("/cpu:0"):  # not `tf.Variable`: functions have a say in that
                self.values = resource_variable_ops.ResourceVariable(self.values, trainable=False, name="counter")

    @property
    def is_gone(self) -> bool:
        """True once nobody can run the operation any more."""
        return self.place is not None and self.place.graph() is None

    @property
    def is_exported(self) -> bool:
        """True if it was traced for a SavedModel: it stays at 0, and no later attempt needs it."""
        return self.place is not None and self.place.trace.is_exported

    @property
    def drawn(self) -> int:
        """In all."""
        return int(np.asarray(self.values).flat[0])

    def go_to(self, drawn: int) -> None:
        """So much has been drawn, at a checkpoint. Raises `RestoreError` if a kernel has come further."""
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
        """Write them down, outside of any graph."""
        with ops.init_scope():
            if isinstance(self.values, np.ndarray):
                self.values[...] = values
            else:
                self.values.assign(values)


class Counters:
    """Every counter of the process, by the place where its operation was made."""

    def __init__(self) -> None:
        self.made: dict[str, Counter] = {}
        self._saved: dict[str, int] = {}  # of a checkpoint, for those that are still to be made
        self._saved_traces: dict[str, str] = {}
        self._num_at: dict[str, int] = {}
        self._by_handle: dict[int, Counter] = {}
        self._one_by_one: dict[tuple[Any, ...], Counter] = {}
        self._recorded: dict[tuple[int, bytes], Any] = {}

    def in_graph(self, kind: str, seeds: tuple[int, int], *, is_kernels: bool = False) -> Any:
        """The variable of an operation that is being made in a graph."""
        place = functions.place(f"{kind}:{seeds[0]}:{seeds[1]}")
        return self._in_graph(place.name, place, is_kernels=is_kernels)

    def one_by_one(
        self, kind: str, seeds: tuple[int, int], types: tuple[tf.DType, ...], *, is_kernels: bool = False
    ) -> Counter:
        """That of an operation that is run by itself: TensorFlow keeps a kernel for all calls with the same attributes."""
        attributes = kind, seeds, types, ops.context.context().device_name
        found = self._one_by_one.get(attributes)
        if found is None:
            names = ",".join(one.name for one in types)
            name = self._numbered(f"{kind}:{names}:{seeds[0]}:{seeds[1]}")
            found = self._one_by_one[attributes] = self._new(name, None, is_kernels=is_kernels)
        return found

    def _in_graph(self, name: str, place: Place, *, is_kernels: bool) -> Any:
        counter = self._new(name, place, is_kernels=is_kernels)
        # The handle lives as long as the variable, which is never given up.
        self._by_handle[id(counter.values.handle)] = counter
        return counter.values

    def _new(self, name: str, place: Place | None, *, is_kernels: bool) -> Counter:
        """At what a checkpoint says or at 0. It takes the place of one in a trace that was for making variables."""
        counter = self.made[name] = Counter(name, self._saved.get(name, 0), place, is_kernels=is_kernels)
        return counter

    def _numbered(self, name: str) -> str:
        number = self._num_at[name] = self._num_at.get(name, -1) + 1
        return f"{name}#{number}"

    def reset(self) -> None:
        """TensorFlow forgets its kernels, and begins with new ones."""
        for counter in self.made.values():
            counter.set(np.zeros_like(np.asarray(counter.values)))

    def of_call(self, handle: Any, function: Any) -> Any:
        """The counter of an operation in a function that is about to be called, by that of the function as it was traced.

        Called from a graph, it has a kernel of its own for each call; and so has one that is called while gradients are recorded.
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
        """True if it is that of a counter in a graph."""
        return id(handle) in self._by_handle

    def variable(self, handle: Any) -> Any:
        """Whose handle it is."""
        return self._by_handle[id(handle)].values

    def exported_and_used(self) -> list[str]:
        """Traces that were made for a SavedModel and drew numbers later: a resumed attempt makes others in their place."""
        used = (one for one in self.made.values() if one.is_exported and one.drawn and not one.is_gone)
        return sorted({one.place.trace.name for one in used if one.place is not None})

    def state(self) -> dict[str, Any]:
        """How far each has come, and of what traces they are."""
        self.made = {name: counter for name, counter in self.made.items() if not counter.is_gone}
        kept = {name: counter for name, counter in self.made.items() if not counter.is_exported}
        places = [one.place for one in kept.values() if one.place is not None]
        return {
            "drawn": {**self._saved, **{name: counter.drawn for name, counter in kept.items()}},
            "traces": {**self._saved_traces, **{one.trace.name: one.trace.function_name for one in places}},
            "functions": dict(functions.num_of),
        }

    def set_state(self, state: dict[str, Any], set_aside: Callable[[], str]) -> None:
        """The inverse of `state`. `set_aside`: for who finds out later that it is not enough."""
        self._saved, self._saved_traces = state["drawn"], state["traces"]
        for name, counter in self.made.items():
            counter.go_to(self._saved.get(name, 0))
        functions.expect(state["functions"], self._saved_traces, set_aside)


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
    """Operations whose kernels cannot be taken to a place either."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._run: set[tuple[Any, ...]] = set()

    def note(self, name: str, seed: int, seed2: int) -> None:
        """One is made. By itself, with seeds of its own, it is new each time; only the same again goes on where the last has ended."""
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
    """See from now on calls of functions, and what makes TensorFlow forget its kernels."""
    _wrap_calls()
    for name in ("_set_global_seed", "_clear_caches", "clear_kernel_cache"):
        _wrap_forgetting(name)


def is_left(seed: int, seed2: int) -> bool:
    """True where TensorFlow seeds an operation by chance, and in the functions of data sets: those belong to the iterator."""
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
