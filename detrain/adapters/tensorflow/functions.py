"""Names the trace of a `tf.function` that a random operation belongs to, so that a later attempt finds the same name.

Every trace has kernels, and so generators of random numbers, of its own. TensorFlow's numbers of traces and operations do not identify
them: a resumed attempt traces in another order, and only once what made its variables before. So a trace is named by its function and
the signature that it was traced for. Functions from one line of code (methods, one for each object) are numbered, and the walk over the
script's objects takes the number of each to the same object of the resumed attempt.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar

import xxhash
from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.util import tf_decorator, traceback_utils

from detrain import package
from detrain.adapters import name_numbers
from detrain.adapters.tensorflow.function_traces import traces
from detrain.errors import RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.tree import Node

Function = polymorphic_function.Function

#: Longest signature in a trace's name, in characters; a longer one is replaced by its digest.
_LONGEST = 200
_EXPORTED = "exported "


@dataclass
class Trace:
    """A graph, and how many operations of each name it has."""

    label: str  # its name in TensorFlow
    signature: str = ""
    function: weakref.ref[Any] | None = None  # the `Function`, if it is one's
    #: Given with the first generator in it: a trace without any need not be found again.
    name: str = ""
    function_name: str = ""
    is_widened: bool = False  # TensorFlow may trace for wider shapes than those given, depending on earlier traces
    makes_variables: bool = False
    is_of_data: bool = False  # what a data set calls for each element
    is_exported: bool = False  # made for a SavedModel
    num_at: dict[str, int] = field(default_factory=dict)
    #: Puts numbers in names back to where they were before it. None for a graph that no `tf.function` has traced.
    put_back_numbers: Callable[[], None] | None = None


@dataclass
class Place:
    """An operation in a graph."""

    name: str
    trace: Trace
    graph: weakref.ref[Any]


class Functions:
    """Every `tf.function` that has been traced."""

    def __init__(self) -> None:
        self._by_cache: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._traces: weakref.WeakKeyDictionary[Any, Trace] = weakref.WeakKeyDictionary()
        self._graphs: dict[str, weakref.ref[Any]] = {}  # the latest of each trace, by name
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        #: Highest number so far, by place in code.
        self.num_of: dict[str, int] = {}
        #: Of a checkpoint: by place in code, the name of a function that no walk has met; and traces that have not been made yet.
        self._expected: dict[str, str] = {}
        self._awaited: dict[str, str] = {}  # to the names of their functions
        self._set_aside: Callable[[], str] = str
        self._lost: set[str] = set()  # made by the loop; they do not come back
        #: Names that several traces share.
        self.ambiguous: set[str] = set()
        self.is_exporting = False  # what is traced now is for a SavedModel

    # --- events ----------------------------------------------------------------------------------------------------------------

    def know(self, function: Any) -> None:
        """Record a `Function` that is about to be traced, by its cache: a trace gets the cache, which lives as long as the function."""
        self._by_cache[id(function._function_cache)] = function

    def begin(self, graph: Any, function_type: Any, options: Any) -> None:
        """A trace begins: record its function and its signature."""
        function = self._by_cache.get(id(options.function_cache)) if options.function_cache is not None else None
        trace = self._traces[graph] = Trace(options.name, f"({_signature(function_type)})")
        trace.put_back_numbers = name_numbers.remember()
        trace.is_of_data = "_tf_data_function" in (options.attributes or {})
        trace.is_exported = self.is_exporting
        if function is not None:
            trace.function = weakref.ref(function)
            trace.is_widened = options.reduce_retracing
            trace.makes_variables = options.scope_type is tracing_compilation.ScopeType.VARIABLE_CREATION

    def end(self, graph: Any) -> None:
        """A trace has ended. A trace that made variables is followed by a second one, which counts."""
        trace = self._traces[graph]
        function = trace.function() if trace.function is not None else None
        if function is None or (trace.makes_variables and function._created_variables):
            return
        if traces.end(function, graph, trace.signature) and trace.put_back_numbers is not None:
            trace.put_back_numbers()

    def name_of(self, function: Any) -> str:
        """The name of a function: where its code is, and a number. It keeps it as long as the process lives."""
        name = self._names.get(function)
        if name is None:
            where = _where(function)
            number = self.num_of.get(where, -1) + 1
            name = self._expected.pop(where, f"{where}#{number}")
            self.call(function, name)
        return name

    def known_name(self, function: Any) -> str | None:
        """The name of a function that has generators in it or was given a name; else None."""
        return self._names.get(function)

    def call(self, function: Any, name: str) -> None:
        """Give a function the name that it had at the checkpoint. Raises `RestoreError` if it already has another."""
        known = self._names.setdefault(function, name)
        if known != name:
            raise RestoreError(f"{known}: this function was {name} when the checkpoint was taken")
        where, number = _parts(name)
        self.num_of[where] = max(self.num_of.get(where, -1), number)

    def lose(self, name: str) -> None:
        """The function of this name was made by the loop, and does not come back."""
        self._lost.add(name)

    def expect(self, num_of: dict[str, int], traces: dict[str, str], set_aside: Callable[[], str]) -> None:
        """Set what a checkpoint knows: highest numbers by place in code, and traces with generators, with the names of their functions.

        `set_aside`: gives the end of an error message. Raises `RestoreError` if a function is missing.
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

    # --- questions -------------------------------------------------------------------------------------------------------------

    def is_of_data(self, graph: Any) -> bool:
        """True if a data set calls the graph for each element."""
        return graph in self._traces and self._traces[graph].is_of_data

    def place(self, kind: str) -> Place:
        """The place of an operation that is being made in the default graph. The same again in one trace gets the next number."""
        graph = ops.get_default_graph()
        scope, inner = graph.get_name_scope(), []
        while graph not in self._traces and isinstance(graph, func_graph.FuncGraph):
            inner.append(re.sub(r"\d+", "", graph.name))  # a branch or a loop body; operations are numbered
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
        """Record that a trace has a generator, so that a resumed attempt must find it again."""
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
    """True if the earlier trace only served to make the variables: a function that makes some is traced twice in a row."""
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
    text = re.sub(r"0x[0-9a-f]+", "", ", ".join(parts))  # an object is identified by its type
    return text if len(text) <= _LONGEST else xxhash.xxh3_128_hexdigest(text.encode())


functions = Functions()


class FunctionHandler(Handler):
    """A `tf.function`: compiled code, which the set-up makes again. It, and the methods bound to its objects, take their saved names.

    What it had been traced to, it must be traced to again.
    """

    kind = "tensorflow.Function"
    is_dropped_silently = True
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
    """Patch tracing."""
    # Frames of detrain's are left out of the script's tracebacks, as TensorFlow's own are.
    traceback_utils._EXCLUDED_PATHS = (*traceback_utils._EXCLUDED_PATHS, package.FOLDER + os.sep)
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
