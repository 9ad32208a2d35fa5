"""Runs the graph of a `tf.function` once more, operator by operator, without touching what the function works on.

Variables are copied as they were before the call, and what an iterator gives next is taken from it once and given to both. Whatever else
would act on the world, or whose result depends on more than its inputs (Python functions, generators in kernels, tables), is not run
again; neither is anything that depends on its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import func_graph, op_def_registry, ops, tensor_util
from tensorflow.python.ops import gen_dataset_ops, gen_resource_variable_ops

#: In place of a tensor whose value is not known.
UNKNOWN = object()
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_NEXT = "IteratorGetNext"


class Arguments:
    """The tensors that a function is called with: those for the call itself, and those to run its graph again."""

    def __init__(self, graph: func_graph.FuncGraph, args: Sequence[Any], values: dict[int, Any]) -> None:
        """`values`: of each variable among the arguments, by the id of its handle; None for one without a value."""
        self.values = values
        self.for_call: list[Any] = []
        self.for_replay: list[Any] = []
        copies = {id(arg): _variable(arg, values[id(arg)]) for arg in args if values.get(id(arg)) is not None}
        times = Counter(map(id, args))
        for placeholder, arg in zip(graph.inputs, args, strict=True):
            is_iterator = arg.dtype == tf.resource and times[id(arg)] == 1
            taker = _taker_of(graph, placeholder) if is_iterator else None
            if id(arg) in values:
                self.for_call.append(arg)
                self.for_replay.append(copies.get(id(arg), UNKNOWN))
            elif taker is not None and (dataset := _next_element(arg, taker)) is not None:
                self.for_call.append(_iterator_over(dataset, taker))
                self.for_replay.append(_iterator_over(dataset, taker))
            else:
                self.for_call.append(arg)
                self.for_replay.append(UNKNOWN if arg.dtype == tf.resource else arg)


def _variable(handle: Any, value: Any) -> Any:
    """The handle of a new variable of this value, on the same device; it is gone with its handle."""
    entry = handle._handle_data.shape_and_type[0]
    with tf.device(handle.device):
        copy = gen_resource_variable_ops.var_handle_op(
            dtype=tf.as_dtype(entry.dtype), shape=tf.TensorShape(entry.shape), shared_name=context.anonymous_name()
        )
        copy._handle_data = handle._handle_data
        gen_resource_variable_ops.assign_variable_op(copy, tf.constant(value, tf.as_dtype(entry.dtype)))
    return copy


def _taker_of(graph: func_graph.FuncGraph, placeholder: Any) -> Any:
    """The only operator of a graph, and of the functions that it calls, that takes elements from an iterator; None if there are others."""
    takers = list(_users_of(graph, placeholder))
    return takers[0] if len(takers) == 1 and takers[0].type == _NEXT else None


def _users_of(graph: func_graph.FuncGraph, tensor: Any) -> Iterator[Any]:
    for operation in tensor.consumers():
        called = _called_by(graph, operation)
        if called is None:
            yield operation
            continue
        for inner, outer in zip(called.inputs, operation.inputs, strict=True):
            if outer is tensor:
                yield from _users_of(called, inner)


def _next_element(iterator: Any, taker: Any) -> Any:
    """A data set of the next element of an iterator, which is taken from it; None at its end."""
    try:
        element = execute.quick_execute(_NEXT, len(taker.outputs), [iterator], _attributes(taker), context.context())
    except tf.errors.OutOfRangeError:
        return None
    return gen_dataset_ops.tensor_dataset(element, [tensor.shape for tensor in element])


def _iterator_over(dataset: Any, taker: Any) -> Any:
    """A new iterator, with the types and shapes that the operator wants."""
    kinds = taker.get_attr("output_types")
    iterator = gen_dataset_ops.anonymous_iterator_v3(kinds, taker.get_attr("output_shapes"))
    gen_dataset_ops.make_iterator(dataset, iterator)
    return iterator


class Replay:
    """Runs graphs on values; calls `on_operator` with each operator that has run, its inputs and its outputs."""

    def __init__(self, on_operator: Callable[[Any, Sequence[Any], Sequence[Any]], None]) -> None:
        self._on_operator = on_operator
        self._owned: dict[int, Any] = {}  # resources that may be changed, by id
        self._lost: set[int] = set()  # those of them whose content is not known any more

    def run(self, graph: func_graph.FuncGraph, args: Sequence[Any]) -> None:
        """Run a graph. `args`: a value for each of its inputs, or `UNKNOWN`; resources among them are used up."""
        self._owned = {id(arg): arg for arg in args if arg is not UNKNOWN and arg.dtype == tf.resource}
        self._run(graph, args)

    def _run(self, graph: func_graph.FuncGraph, args: Sequence[Any]) -> list[Any]:
        """Returns the graph's outputs."""
        values: dict[int, Any] = {id(tensor): arg for tensor, arg in zip(graph.inputs, args, strict=True)}
        operations = _reached(graph)
        uses = Counter(id(tensor) for operation in operations for tensor in operation.inputs)
        uses.update(id(tensor) for tensor in graph.outputs)
        for operation in operations:
            inputs = [self._known(values.get(id(tensor), UNKNOWN)) for tensor in operation.inputs]
            if operation.outputs and id(operation.outputs[0]) in values:
                continue  # stands for an argument
            outputs = self._outputs_of(graph, operation, inputs)
            values.update((id(tensor), value) for tensor, value in zip(operation.outputs, outputs, strict=True))
            for tensor in operation.inputs:
                uses[id(tensor)] -= 1
                if not uses[id(tensor)]:
                    values.pop(
                        id(tensor), None
                    )  # as soon as nobody needs it: else all of a step's tensors stay in memory
        return [self._known(values.get(id(tensor), UNKNOWN)) for tensor in graph.outputs]

    def _known(self, value: Any) -> Any:
        return UNKNOWN if id(value) in self._lost else value

    def _outputs_of(self, graph: func_graph.FuncGraph, operation: Any, inputs: list[Any]) -> list[Any]:
        called = _called_by(graph, operation)
        if called is not None:
            # A graph that has been called under a tape has further outputs, for the backward pass.
            return self._run(called, inputs)[: len(operation.outputs)]
        if operation.type == "Const":
            return [
                tf.constant(
                    tensor_util.MakeNdarray(operation.node_def.attr["value"].tensor), operation.outputs[0].dtype
                )
            ]
        if self._can_run(operation, inputs):
            try:
                with tf.device(operation.device or None):
                    outputs = execute.quick_execute(
                        operation.type, len(operation.outputs), inputs, _attributes(operation), context.context()
                    )
            except tf.errors.OpError:
                pass  # it exists in graphs only, or stands in a branch that the values do not fit
            else:
                self._on_operator(operation, inputs, outputs)
                return list(outputs)
        if operation.op_def.is_stateful:
            self._lost.update(id(value) for value in inputs if id(value) in self._owned)
        return [UNKNOWN] * len(operation.outputs)

    def _can_run(self, operation: Any, inputs: list[Any]) -> bool:
        """True if every input is known, and nothing is changed or drawn from but copies."""
        if any(value is UNKNOWN for value in inputs) or not all(
            map(_is_contained, _functions_in(operation.node_def.attr))
        ):
            return False
        if not operation.op_def.is_stateful or _functions_in(operation.node_def.attr):
            return True
        resources = [value for value in inputs if value.dtype == tf.resource]
        return bool(resources) and all(id(value) in self._owned for value in resources)


def _reached(graph: func_graph.FuncGraph) -> list[Any]:
    """The operators that a call runs, in an order in which they can run: as they were made."""
    pending = [*(tensor.op for tensor in graph.outputs), *graph.control_outputs]
    seen = set(pending)
    while pending:
        operation = pending.pop()
        for before in (*(tensor.op for tensor in operation.inputs), *operation.control_inputs):
            if before not in seen:
                seen.add(before)
                pending.append(before)
    return [operation for operation in graph.get_operations() if operation in seen]


def _called_by(graph: func_graph.FuncGraph, operation: Any) -> Any:
    """The graph of the function that an operator calls; None for any other operator."""
    if operation.type not in _CALLS:
        return None
    name = operation.node_def.attr["f"].func.name
    around: Any = graph
    while isinstance(around, ops.Graph):
        function = around._get_function(name)
        if function is not None:
            return function.graph
        around = getattr(around, "outer_graph", None)
    return None


def _functions_in(attributes: Any) -> list[str]:
    """Names of the functions among an operator's attributes: branches, bodies."""
    single = [value.func.name for value in attributes.values() if value.HasField("func")]
    return [*single, *(function.name for value in attributes.values() for function in value.list.func)]


def _is_contained(name: str) -> bool:
    """True for a function that changes nothing, and draws from nothing, but the resources that it is given."""
    for node in context.context().get_function_def(name).node_def:
        definition = op_def_registry.get(node.op)
        if definition is None or not all(map(_is_contained, _functions_in(node.attr))):
            return False
        takes = [argument.type for argument in definition.input_arg]
        if definition.is_stateful and not _functions_in(node.attr) and types_pb2.DT_RESOURCE not in takes:
            return False
    return True


def _attributes(operation: Any) -> tuple[Any, ...]:
    """An operator's attributes as `execute` takes them: names and values in turns."""
    attributes: list[Any] = []
    for declared in operation.op_def.attr:
        if declared.name in operation.node_def.attr:
            attributes += [declared.name, _attribute(operation.node_def.attr[declared.name])]
    return tuple(attributes)


def _attribute(attribute: Any) -> Any:
    kind = attribute.WhichOneof("value")
    if kind != "list":
        return _scalar(kind, getattr(attribute, kind))
    parts: Iterable[tuple[str, Any]] = (
        (field.name, part) for field, several in attribute.list.ListFields() for part in several
    )
    return [_scalar(name, part) for name, part in parts]


def _scalar(kind: str, value: Any) -> Any:
    if kind == "shape":
        return execute.make_shape(tf.TensorShape(value), kind)
    return value.name if kind == "func" else value
