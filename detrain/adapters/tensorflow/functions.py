"""Which trace of which `tf.function` an operation belongs to: by names that a later attempt finds again.

Every trace has kernels, and so generators of random numbers, of its own. Numbers of traces and of operations do not tell which is which:
an attempt that goes on in the middle traces what it comes to first, and traces only once what found no variables the first time. So a
trace is named by its function and by what it was traced for; and functions that come from one line of code (methods, one for each
object) by numbers, which the walk over the script's objects takes from each to its twin.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar

import xxhash
from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.util import tf_decorator

from detrain.adapters.tensorflow.function_traces import traces
from detrain.errors import RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.tree import Node

Function = polymorphic_function.Function

#: What a trace's name says of its arguments, at most; longer ones by their digest. Characters.
_LONGEST = 200
_EXPORTED = "exported "


@dataclass
class Trace:
    """A graph, and how often each place in it has been named."""

    label: str  # what TensorFlow calls it
    signature: str = ""
    function: weakref.ref[Any] | None = None  # the `Function`, if it is one's
    #: Given with the first generator in it: a trace without any needs none, and a resume need not make it again.
    name: str = ""
    function_name: str = ""
    is_widened: bool = False  # TensorFlow may trace for wider shapes than those given, by what it has traced before
    makes_variables: bool = False
    is_of_data: bool = False  # what a data set calls for each element
    is_exported: bool = False  # made for a SavedModel
    num_at: dict[str, int] = field(default_factory=dict)


@dataclass
class Place:
    """Of an operation in a graph."""

    name: str
    trace: Trace
    graph: weakref.ref[Any]


class Functions:
    """Those that have been traced."""

    def __init__(self) -> None:
        self._by_cache: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._traces: weakref.WeakKeyDictionary[Any, Trace] = weakref.WeakKeyDictionary()
        self._graphs: dict[str, weakref.ref[Any]] = {}  # last, by the names of their traces
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        #: Highest number so far, by where the code is.
        self.num_of: dict[str, int] = {}
        #: Of a checkpoint: the only function from some code, which no walk has met; and traces that are not there yet.
        self._expected: dict[str, str] = {}
        self._awaited: dict[str, str] = {}  # to the names of their functions
        self._set_aside: Callable[[], str] = str
        self._lost: set[str] = set()  # made by the loop, and not to be had any more
        #: Traces that cannot be told apart.
        self.ambiguous: set[str] = set()
        self.is_exporting = False  # what is traced now is for a SavedModel

    # --- what is told ----------------------------------------------------------------------------------------------------------

    def know(self, function: Any) -> None:
        """A `Function` is about to be traced. It is known by its cache, which a trace is told of, and which lives as long."""
        self._by_cache[id(function._function_cache)] = function

    def begin(self, graph: Any, function_type: Any, options: Any) -> None:
        """A trace begins."""
        function = self._by_cache.get(id(options.function_cache)) if options.function_cache is not None else None
        trace = self._traces[graph] = Trace(options.name, f"({_signature(function_type)})")
        trace.is_of_data = "_tf_data_function" in (options.attributes or {})
        trace.is_exported = self.is_exporting
        if function is not None:
            trace.function = weakref.ref(function)
            trace.is_widened = options.reduce_retracing
            trace.makes_variables = options.scope_type is tracing_compilation.ScopeType.VARIABLE_CREATION

    def end(self, graph: Any) -> None:
        """A trace has ended. One that only made the variables is followed by another."""
        trace = self._traces[graph]
        function = trace.function() if trace.function is not None else None
        if function is not None and not (trace.makes_variables and function._created_variables):
            traces.end(function, graph, trace.signature)

    def name_of(self, function: Any) -> str:
        """Where its code is, and a number; for as long as the process lives."""
        name = self._names.get(function)
        if name is None:
            where = _where(function)
            number = self.num_of.get(where, -1) + 1
            name = self._expected.pop(where, f"{where}#{number}")
            self.call(function, name)
        return name

    def known_name(self, function: Any) -> str | None:
        """The same, if there are generators in it or it has been called something."""
        return self._names.get(function)

    def call(self, function: Any, name: str) -> None:
        """Give it the name that its twin had. Raises `RestoreError` if it has been traced under another already."""
        known = self._names.setdefault(function, name)
        if known != name:
            raise RestoreError(f"{known}: this function was {name} when the checkpoint was taken")
        where, number = _parts(name)
        self.num_of[where] = max(self.num_of.get(where, -1), number)

    def lose(self, name: str) -> None:
        """The loop had made it."""
        self._lost.add(name)

    def expect(self, num_of: dict[str, int], traces: dict[str, str], set_aside: Callable[[], str]) -> None:
        """The attempt has been taken to a checkpoint where these traces, of functions of these names, had generators.

        Raises `RestoreError` if a function is not there.
        """
        known = set(self._names.values())
        missing = sorted({name for name in traces.values() if name} - known - self._lost)
        self._expected = {}  # a resume passes through several checkpoints
        for name in missing:
            where, _ = _parts(name)
            if where in self._expected or any(_parts(other)[0] == where for other in known):
                raise RestoreError(
                    f"{name}: a `tf.function` that holds random number generators cannot be found in this attempt"
                )
            self._expected[where] = name
        for where, number in num_of.items():
            self.num_of[where] = max(self.num_of.get(where, -1), number)
        self._awaited = {trace: name for trace, name in traces.items() if trace not in self._graphs}
        self._set_aside = set_aside

    # --- what is asked ---------------------------------------------------------------------------------------------------------

    def is_of_data(self, graph: Any) -> bool:
        """True if a data set calls it for each element."""
        return graph in self._traces and self._traces[graph].is_of_data

    def place(self, kind: str) -> Place:
        """Where an operation is being made: the default graph. The same again is another of that trace."""
        graph = ops.get_default_graph()
        scope, inner = graph.get_name_scope(), []
        while graph not in self._traces and isinstance(graph, func_graph.FuncGraph):
            inner.append(re.sub(r"\d+", "", graph.name))  # a branch or a body, with a number that counts all operations
            graph = graph.outer_graph
        trace = self._traces.setdefault(graph, Trace("graph"))
        if not trace.name:
            self._give_name(trace)
        self._use(graph, trace)
        name = "/".join([trace.name, *reversed(inner), f"{scope}:{kind}"])
        number = trace.num_at[name] = trace.num_at.get(name, -1) + 1
        return Place(f"{name}#{number}", trace, weakref.ref(graph))

    def _give_name(self, trace: Trace) -> None:
        function = trace.function() if trace.function is not None else None
        trace.function_name = self.name_of(function) if function is not None else ""
        trace.name = (_EXPORTED if trace.is_exported else "") + (trace.function_name or trace.label) + trace.signature

    def _use(self, graph: Any, trace: Trace) -> None:
        """Something of the trace has to be found again."""
        holder = self._graphs.get(trace.name)
        before = holder() if holder is not None else None
        if before is graph:
            return
        if before is not None and not trace.is_exported and not _is_superseded(self._traces[before], trace):
            self.ambiguous.add(trace.name)
        if trace.name not in self._awaited and trace.is_widened and trace.function_name in self._awaited.values():
            raise RestoreError(
                f"{trace.name} is traced before what the killed attempt had traced of this function, and with `reduce_retracing` its "
                f"shapes depend on the order, so this resume cannot be exact. {self._set_aside()}"
            )
        self._awaited.pop(trace.name, None)
        self._graphs[trace.name] = weakref.ref(graph)


def _is_superseded(before: Trace, trace: Trace) -> bool:
    """True if the trace before only served to make the variables: a function that makes some is traced twice at once."""
    owners = {one.function() if one.function is not None else None for one in (before, trace)}
    return before.makes_variables and len(owners) == 1 and all(one and one._created_variables for one in owners)


def _parts(name: str) -> tuple[str, int]:
    where, _, number = name.rpartition("#")
    return where, int(number)


def _where(function: Any) -> str:
    _, plain = tf_decorator.unwrap(function.python_function)
    code = getattr(plain, "__code__", None)
    return function.name if code is None else f"{function.name}@{code.co_name}:{code.co_firstlineno}"


def _signature(function_type: Any) -> str:
    parts = [f"{name}={one.type_constraint!r}" for name, one in function_type.parameters.items()]
    text = re.sub(r"0x[0-9a-f]+", "", ", ".join(parts))  # an object is told by its type
    return text if len(text) <= _LONGEST else xxhash.xxh3_128_hexdigest(text.encode())


functions = Functions()


class FunctionHandler(Handler):
    """A `tf.function`: compiled code, which the set-up makes again; its name is its twin's, and those of its objects' methods.

    What it had been traced to, it must be traced to again.
    """

    kind = "tensorflow.Function"
    fields: ClassVar = {**plain_fields("name", "graphs"), "bound": Holds.LISTS}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        name = functions.known_name(obj)
        if name is not None:
            node["name"] = name
        graphs = traces.of(obj)
        if graphs:
            node["graphs"] = graphs
        bound = [pair for pair in obj._descriptor_cache.items() if functions.known_name(pair[1]) or traces.of(pair[1])]
        if bound:
            node["bound"] = [walk.children(pair) for pair in bound]

    def build(self, node: Node, restore: Restoring) -> Any:
        if "name" in node:
            functions.lose(node["name"])
        raise CannotBuild("holds no state of the training")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "name" in node:
            functions.call(obj, node["name"])
        traces.expect(obj, node.get("graphs", {}), restore.set_aside)
        for owner, method in node.get("bound", ()):
            instance = restore.value(owner)
            restore.value(method, obj.__get__(instance, type(instance)))


def patch() -> None:
    """See from now on what is traced."""
    options = Function._generate_tracing_options
    create = tracing_compilation._create_concrete_function

    @wraps(options)
    def generate(function: Any, *args: Any, **kwargs: Any) -> Any:
        functions.know(function)
        return options(function, *args, **kwargs)

    @wraps(create)
    def create_concrete_function(function_type: Any, context: Any, graph: Any, options: Any) -> Any:
        functions.begin(graph, function_type, options)
        concrete = create(function_type, context, graph, options)
        functions.end(graph)
        return concrete

    Function._generate_tracing_options = generate
    tracing_compilation._create_concrete_function = create_concrete_function
