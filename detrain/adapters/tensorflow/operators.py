"""Logs every operator that runs, with digests of its inputs and outputs: to find the first one that differs between two runs.

Eager operators are reported as they run. A `tf.function` runs as it would without the log, so that the bits of the run stay as they are;
then its graph is run once more, operator by operator, on copies of its variables (`graph_replay`), and what comes out there is
reported: first the operators of the graph, then the call of the function as a whole.
"""

from __future__ import annotations

import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash
from tensorflow.python.eager import backprop, context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import op_callbacks
from tensorflow.python.ops import gen_resource_variable_ops

from detrain.adapters.protocol import OperatorCall
from detrain.adapters.script_lines import line_of
from detrain.adapters.tensorflow import graph_replay
from detrain.adapters.tensorflow.tensors import EagerTensor

#: Operators that read a variable and write to none.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp"})
#: What TensorFlow makes of the name of a function when it traces it; the numbers depend on what was traced before.
_TRACED = re.compile(r"__(?:inference|forward)_(?:__(backward)_)?(.+?)(?:_\d+)+")
_BACKWARD = re.compile(r"(?:^|/)(?:gradient_tape|gradients)/(.+)")
_UNREADABLE = frozenset({tf.resource, tf.variant})


class _Log:
    """Reports operators of one thread."""

    def __init__(self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]) -> None:
        self._is_user_file, self._on_call = is_user_file, on_call
        self._is_own = False  # what runs now is the log's own
        self._thread = threading.get_ident()
        self._calling: Any = None  # the `AtomicFunction` that is being called
        self._plain_flat = atomic_function.AtomicFunction.call_flat
        self._plain_call = context.Context.call_function

    def start(self) -> None:
        """Begin to report."""
        log, plain_flat, plain_call = self, self._plain_flat, self._plain_call

        @wraps(plain_flat)
        def call_flat(function: Any, *args: Any) -> Any:
            if threading.get_ident() != log._thread:
                return plain_flat(function, *args)
            before, log._calling = log._calling, function
            try:
                return plain_flat(function, *args)
            finally:
                log._calling = before

        @wraps(plain_call)
        def call_function(ctx: Any, name: bytes, tensor_inputs: list[Any], num_outputs: int) -> Any:
            function = log._calling
            is_other = log._is_own or threading.get_ident() != log._thread
            line = None if is_other else line_of(sys._getframe(1), log._is_user_file)
            if line is None or function is None or function.name != name:
                return plain_call(ctx, name, tensor_inputs, num_outputs)
            return log._call(function, line, tensor_inputs, lambda args: plain_call(ctx, name, args, num_outputs))

        atomic_function.AtomicFunction.call_flat = call_flat
        context.Context.call_function = call_function
        op_callbacks.add_op_callback(self._on_eager)

    def stop(self) -> None:
        """End it."""
        op_callbacks.remove_op_callback(self._on_eager)
        atomic_function.AtomicFunction.call_flat = self._plain_flat
        context.Context.call_function = self._plain_call

    @contextmanager
    def _own(self) -> Iterator[None]:
        """A context in which operators are not reported."""
        before, self._is_own = self._is_own, True
        try:
            yield
        finally:
            self._is_own = before

    def _on_eager(
        self, kind: str, inputs: Sequence[Any], attrs: Any, outputs: Any, op_name: str | None = None, graph: Any = None
    ) -> None:
        """TensorFlow's callback: an operator has run eagerly, a function has been called, or (with `graph`) an operator was made."""
        if self._is_own or graph is not None or context.context().has_function(kind):
            return
        line = line_of(sys._getframe(1), self._is_user_file)
        if line is not None:
            with self._own():
                self._report(kind, line, _backward_of(sys._getframe(1)), inputs, outputs)

    def _on_replayed(self, operation: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """An operator of a graph has been run again."""
        backward = _BACKWARD.search(operation.name)
        within = "" if backward is None else backward[1].rpartition("/")[0] or backward[1]
        if outputs or any(map(is_variable, inputs)):  # any other has nothing to compare
            self._report(operation.type, self._line_of(operation), within, inputs, outputs)

    def _line_of(self, operation: Any) -> str:
        """The innermost line of the script's that made an operator of a graph."""
        for frame in reversed(operation.traceback or ()):
            if self._is_user_file(frame.filename):
                return f"{Path(frame.filename).name}:{frame.lineno}"
        return ""

    def _report(self, kind: str, line: str, backward: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        variables = [_digest(_value_of(handle)) for handle in inputs if is_variable(handle)]
        given = [_digest(tensor) for tensor in inputs if not is_variable(tensor)]
        is_read = kind in _READS
        self._on_call(
            {
                "name": kind,
                "line": line,
                "backward": backward,
                "inputs": [*given, *variables] if is_read else given,
                "outputs": [*map(_digest, outputs), *([] if is_read else variables)],
                "shapes": [_shape_of(tensor) for tensor in outputs],
            }
        )

    def _call(self, function: Any, line: str, args: list[Any], call: Callable[[list[Any]], Any]) -> Any:
        """Call a function, run its graph again, and report both."""
        with self._own():
            given = graph_replay.Arguments(
                function.graph, args, {id(arg): _value_of(arg) for arg in args if is_variable(arg)}
            )
            inputs = [_digest(given.values.get(id(arg), arg)) for arg in args]
        backward = _backward_of(sys._getframe(2))
        outputs = call(given.for_call)
        with self._own():
            graph_replay.Replay(self._on_replayed).run(function.graph, given.for_replay)
            written = [_digest(_value_of(arg)) for arg in args if is_variable(arg)]
            self._on_call(
                {
                    "name": _name_of(function),
                    "line": line,
                    "backward": backward,
                    "inputs": inputs,
                    "outputs": [*map(_digest, outputs or ()), *written],
                    "shapes": [_shape_of(tensor) for tensor in outputs or ()],
                }
            )
        return outputs


def log_operators(is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]) -> Callable[[], None]:
    """Report every operator of this thread from now on. Returns what ends it."""
    log = _Log(is_user_file, on_call)
    log.start()
    return log.stop


def is_variable(tensor: Any) -> bool:
    """True for the handle of a variable."""
    data = getattr(tensor, "_handle_data", None)
    return tensor.dtype == tf.resource and data is not None and data.is_set and len(data.shape_and_type) == 1


def _value_of(handle: Any) -> Any:
    """A variable's value, in memory of its own, as a numpy array; None if it has not been initialised."""
    dtype = tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    if dtype in _UNREADABLE:
        return None
    try:
        return np.array(gen_resource_variable_ops.read_variable_op(handle, dtype).numpy())
    except tf.errors.FailedPreconditionError:
        return None


def _backward_of(frame: types.FrameType | None) -> str:
    """The operator whose gradient a tape computes in a frame or around it; "" if it does not."""
    while frame is not None:
        if frame.f_code is backprop._gradient_function.__code__:
            return str(frame.f_locals["op_name"])
        frame = frame.f_back
    return ""


def _name_of(function: Any) -> str:
    """What a function is called in any run: TensorFlow's name of a trace without its numbers."""
    name = function.name.decode()
    traced = _TRACED.fullmatch(name)
    if traced is None:
        return f"tf.function {name}"
    return f"{'backward pass of ' if traced[1] else ''}tf.function {traced[2]}"


def _shape_of(tensor: Any) -> tuple[str, list[int]]:
    return tensor.dtype.name, list(tensor.shape)


def _digest(tensor: Any) -> str:
    """xxh3-64 of an eager tensor's or an array's elements; "" for what has none that can be read (resources, variants)."""
    if isinstance(tensor, EagerTensor):
        if tensor.dtype in _UNREADABLE:
            return ""
        tensor = np.asarray(tensor.numpy())
    if not isinstance(tensor, np.ndarray):
        return ""
    if tensor.dtype != object:
        return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(tensor).tobytes())
    return xxhash.xxh3_64_hexdigest(repr(tensor.tolist()).encode())  # text: an array of bytes objects
