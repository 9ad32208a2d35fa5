"""Reports weight updates and gradient computations: in Python where they are eager, else where a graph that holds them is called."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop, context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph, ops

from detrain.adapters.protocol import LossReader, LossValue
from detrain.adapters.tensorflow.tensors import EagerTensor, Variable
from detrain.state.classes import derived_from

#: Graphs in which gradients are computed, and whether their variables are assigned to.
_trains: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
#: Handles of the variables that gradients were asked for, by id.
_trained: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

_ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


class Reporter:
    """Reports every weight update and every computation of gradients."""

    def __init__(self, on_update: Callable[[], None], on_gradient: Callable[[Any], None]) -> None:
        self._on_update, self._on_gradient = on_update, on_gradient
        self._wrap_gradient()
        self._wrap_calls()
        self._is_assigning = False
        for kind in derived_from(Variable):
            for name in _ASSIGNMENTS:
                if name in vars(kind):
                    self._wrap_assignment(kind, name)

    def _wrap_gradient(self) -> None:
        plain = backprop.GradientTape.gradient

        @wraps(plain)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            for source in tf.nest.flatten(sources):
                handle = getattr(source, "handle", None)
                if handle is not None:
                    _trained[id(handle)] = source
            if context.executing_eagerly():
                self._on_gradient(tf.nest.flatten(target))
            else:
                _mark(ops.get_default_graph())
            return plain(tape, target, sources, *args, **kwargs)

        backprop.GradientTape.gradient = gradient

    def _wrap_calls(self) -> None:
        plain = atomic_function.AtomicFunction.call_flat

        @wraps(plain)
        def call_flat(function: Any, *args: Any) -> Any:
            outputs = plain(function, *args)
            if context.executing_eagerly():
                updates = _trains.get(function.graph)
                if updates is not None:
                    self._on_gradient(outputs or ())  # None: the graph has no outputs
                if updates:
                    self._on_update()
            return outputs

        atomic_function.AtomicFunction.call_flat = call_flat

    def _wrap_assignment(self, kind: Any, name: str) -> None:
        plain = getattr(kind, name)

        @wraps(plain)
        def assign(variable: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_assigning:  # a derived class calls the method of its base
                return plain(variable, *args, **kwargs)
            self._is_assigning = True
            try:
                result = plain(variable, *args, **kwargs)
            finally:
                self._is_assigning = False
            if _trained.get(id(variable.handle)) is not None:
                if context.executing_eagerly():
                    self._on_update()
                else:
                    _mark(ops.get_default_graph(), updates=True)
            return result

        setattr(kind, name, assign)


def _mark(graph: Any, *, updates: bool = False) -> None:
    """Record of a graph that gradients are computed in it, and of those that call it; `updates`: that variables are assigned to."""
    while isinstance(graph, func_graph.FuncGraph):
        _trains[graph] = updates or _trains.get(graph, False)
        graph = graph.outer_graph


def report_updates(on_update: Callable[[], None], on_gradient: Callable[[Any], None]) -> None:
    """Report from now on.

    `on_gradient` is called with the targets of the gradients; where a graph computes them, with the graph's outputs, after its call.
    """
    Reporter(on_update, on_gradient)


def losses(outputs: Any) -> list[LossReader]:
    """What reads each loss among the outputs: the eager floating-point scalars. A tensor never changes, so it can be read later."""
    return [
        partial(_read, output)
        for output in outputs
        if isinstance(output, EagerTensor) and output.shape.rank == 0 and output.dtype.is_floating
    ]


def _read(loss: Any) -> LossValue:
    value = loss.numpy()
    return value.tobytes(), [float(value)]
