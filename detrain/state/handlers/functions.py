"""Handlers for what can be called: functions with their closures and attributes, bound methods, partials."""

from __future__ import annotations

import builtins
import functools
import itertools
import marshal
import os
import sys
import types
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from detrain.errors import RestoreError, ResumeRefused
from detrain.state import frames
from detrain.state.attributes import instance_dict
from detrain.state.classes import resolve
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.registry import handler_for, register
from detrain.state.tree import Node
from detrain.state.user_code import is_own, is_user_module, user_code


class FunctionHandler(Handler):
    """A function is made by its `def`; what may change is in its closure, its defaults and its attributes.

    Closures are followed for every function, because a decorator of a library may hold the user's function. Defaults and
    attributes belong to the user's functions only.
    """

    kind = "function"
    is_dropped_silently = True
    fields: ClassVar = {
        **plain_fields("name", "code", "module", "pickle"),
        "globals": Holds.NAMED,
        "cells": Holds.NAMED,
        "defaults": Holds.ONE,
        "kwdefaults": Holds.ONE,
        "attrs": Holds.NAMED,
        "dict": Holds.ONE,
    }
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        code = obj.__code__
        node["name"] = f"{obj.__module__}:{obj.__qualname__}"
        node["code"] = frames.place_of(code)
        if is_own(obj):
            mark_not_saved(node, "stands in the place of a library's function", warns=False)
            return  # its closure leads to the attempt that runs
        node["module"] = obj.__globals__.get("__name__")  # `__module__` may be another function's: `functools.wraps`
        if code.co_filename.startswith("<") and code.co_filename not in user_code:
            self._capture_code(obj, node, walk)
        if obj.__closure__:
            node["cells"] = [
                [name, walk.child(cell, f".<{name}>")]
                for name, cell in zip(code.co_freevars, obj.__closure__, strict=True)
            ]
        if is_user_module(obj.__module__) or "pickle" in node:
            node["defaults"] = walk.child(obj.__defaults__, ".<defaults>")
            node["kwdefaults"] = walk.child(obj.__kwdefaults__, ".<kwdefaults>")
        if obj.__dict__ and (is_user_module(obj.__module__) or "<locals>" in code.co_qualname):
            copied = _copied(obj)
            if copied:
                own = [pair for pair in obj.__dict__.items() if pair[0] not in copied]
                node["attrs"] = walk.attributes(own)
            else:
                node["dict"] = walk.child(obj.__dict__, "")

    def _capture_code(self, obj: Any, node: Node, walk: Capturing) -> None:
        """No source has its code: a text was compiled."""
        # Version 2 writes the same bytes each time: later ones note which constants somebody else holds as well.
        walk.array(node, np.frombuffer(marshal.dumps(obj.__code__, 2), dtype=np.uint8))
        node["pickle"] = True
        module = sys.modules.get(node["module"] or "")
        if module is None or vars(module) is not obj.__globals__:
            read = {name for code in nested_code(obj.__code__) for name in code.co_names}
            node["globals"] = walk.attributes(
                ((name, value) for name, value in obj.__globals__.items() if name in read), "globals"
            )

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if type(live) is not types.FunctionType:
            return False
        code = live.__code__
        if frames.place_of(code) != node["code"]:
            return False
        live_cells = dict(zip(code.co_freevars, live.__closure__ or (), strict=True))
        return all(
            restore.value(ref, live_cells.get(name, MISSING)) is live_cells.get(name)
            for name, ref in node.get("cells", ())
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        module, _, qualname = node["name"].partition(":")
        if "<locals>" not in qualname and "<lambda>" not in qualname:
            try:
                function = resolve(node["name"])
            except LookupError:
                function = None
            if isinstance(function, types.FunctionType) and frames.place_of(function.__code__) == node["code"]:
                return function  # also what a library's decorator has put in the place of the script's function
        cells = tuple(restore.value(ref) for _, ref in node.get("cells", ()))
        home = node.get("module") or module
        code = self._read_code(node, restore) if "pickle" in node else find_code(node["code"], home)
        if code is None:
            raise CannotBuild(f"the code of {qualname} ({node['code'][0]}:{node['code'][1]}) cannot be found")
        if "globals" in node:
            seen: dict[str, Any] = {name: restore.value(ref) for name, ref in node["globals"]}
            seen |= {"__name__": home, "__builtins__": builtins}
        else:
            seen = vars(resolve_module(home, node, restore))
        made = types.FunctionType(code, seen, qualname.rpartition(".")[2], None, cells)
        made.__module__, made.__qualname__ = module, qualname
        return made

    def _read_code(self, node: Node, restore: Restoring) -> types.CodeType:
        if not restore.allows_pickle:
            raise ResumeRefused(f"{restore.path_of(node)} is a function of compiled text, which --no-pickle refuses")
        code: types.CodeType = marshal.loads(
            restore.data(node).tobytes()
        )  # the environment's check knows the Python of it
        return code

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        for field in ("defaults", "kwdefaults"):
            if field in node:
                attribute = f"__{field}__"
                setattr(obj, attribute, restore.value(node[field], getattr(obj, attribute)))
        if "dict" in node:
            restore.value(node["dict"], obj.__dict__)
            obj.__dict__.update(restore.value(node["dict"]))
        elif "attrs" in node:
            restored = {name: restore.value(ref, obj.__dict__.get(name, MISSING)) for name, ref in node["attrs"]}
            for name in obj.__dict__.keys() - restored.keys() - _copied(obj):
                del obj.__dict__[name]
            obj.__dict__.update(restored)
        elif "defaults" in node:
            obj.__dict__.clear()


def _copied(function: types.FunctionType) -> set[str]:
    """Attributes that `functools.wraps` has copied from an object whose attributes that object's handler captures."""
    wrapped = function.__dict__.get("__wrapped__")
    if isinstance(wrapped, types.FunctionType) or handler_for(type(wrapped)).has_attributes:
        return set()
    return set(instance_dict(wrapped) or ())


def resolve_module(name: str, node: Node, restore: Restoring) -> types.ModuleType:
    """The loaded module whose globals a function sees."""
    if name not in sys.modules:
        raise RestoreError(f"{restore.path_of(node)}: module {name} is not loaded")
    return sys.modules[name]


def find_code(wanted: list[Any], module: str = "") -> types.CodeType | None:
    """Code by file, line and name: in the user's files, or inside the function of a library that it is nested in.

    `module`: the library's; the one of that file, if it is not known.
    """
    filename, _, qualname = wanted[:3]
    outer = user_code.get(filename)
    if outer is None and not module:
        files = {name: getattr(one, "__file__", None) for name, one in list(sys.modules.items())}
        module = next((name for name, file in files.items() if file and os.path.normpath(file) == filename), "")
    try:
        outers = [outer] if outer is not None else _codes(resolve(f"{module}:{qualname.partition('.<locals>')[0]}"))
    except LookupError:
        return None
    for code in itertools.chain.from_iterable(map(nested_code, outers)):
        if frames.place_of(code) == [os.path.normpath(code.co_filename), *wanted[1:]]:
            return code
    return None


def _codes(obj: Any) -> list[types.CodeType]:
    """The code of a function, of those that its decorators have wrapped, and of those of a property."""
    functions = [obj.fget, obj.fset, obj.fdel] if isinstance(obj, property) else [obj]
    codes = []
    for function in functions:
        while function is not None:
            if isinstance(code := getattr(function, "__code__", None), types.CodeType):
                codes.append(code)
            function = getattr(function, "__wrapped__", None)
    return codes


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object and all those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested_code(constant)


class CellHandler(Handler):
    """A variable that closures share."""

    kind = "cell"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("empty"), "v": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        try:
            node["v"] = walk.child(obj.cell_contents, "")
        except ValueError:
            node["empty"] = True

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return type(live) is types.CellType

    def build(self, node: Node, restore: Restoring) -> Any:
        return types.CellType()

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        try:
            live = obj.cell_contents
        except ValueError:
            live = MISSING
        if "empty" in node:
            if live is not MISSING:
                del obj.cell_contents
            return
        value = restore.value(node["v"], live)
        if value is not live:
            obj.cell_contents = value


class MethodHandler(Handler):
    """A bound method: object and function. `optimizer.step`, `losses.append` held under another name."""

    kind = "method"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("name", "module"), "function": Holds.ONE, "self": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        owner = obj.__self__
        if isinstance(obj, (types.BuiltinFunctionType, types.MethodWrapperType)):  # `losses.append`, `stream.__next__`
            node["name"] = obj.__name__
            if owner is None or isinstance(owner, types.ModuleType):
                node["module"] = getattr(obj, "__module__", None) or "builtins"
                return
            if _is_of_cpp(owner):
                if _is_found(obj):
                    node["module"] = obj.__module__
                else:
                    mark_not_saved(node, "a function written in C++, which no module has by its name", warns=False)
                return
        else:
            node["function"] = walk.child(obj.__func__, ".__func__")
        node["self"] = walk.child(owner, ".__self__")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        if "module" in node:
            return bool(live.__name__ == node["name"]) and (live.__module__ or "builtins") == node["module"]
        if restore.value(node["self"], live.__self__) is not live.__self__:
            return False
        if "name" in node:
            return bool(live.__name__ == node["name"])
        return restore.value(node["function"], live.__func__) is live.__func__

    def build(self, node: Node, restore: Restoring) -> Any:
        if "module" in node:
            return resolve(f"{node['module']}:{node['name']}")
        owner = restore.value(node["self"])
        if "name" in node:
            return getattr(owner, node["name"])
        return types.MethodType(restore.value(node["function"]), owner)


def _is_of_cpp(owner: Any) -> bool:
    """True for what a function that pybind11 has made is bound to: the description of its C++ function, which never changes."""
    return type(owner).__name__ == "PyCapsule" or type(owner).__module__ == "pybind11_builtins"


def _is_found(function: Any) -> bool:
    """True if its module has it by its name."""
    try:
        return resolve(f"{function.__module__}:{function.__name__}") is function
    except LookupError:
        return False


class PartialHandler(Handler):
    """`functools.partial`."""

    kind = "partial"
    is_dropped_silently = True
    fields: ClassVar = {"function": Holds.ONE, "args": Holds.ONE, "keywords": Holds.ONE}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["function"] = walk.child(obj.func, ".func")
        node["args"] = walk.child(obj.args, ".args")
        node["keywords"] = walk.child(obj.keywords, ".keywords")

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        return cls.__new__(cls, restore.value(node["function"]))

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        function = restore.value(node["function"], obj.func)
        args = restore.value(node["args"], obj.args)
        keywords = restore.value(node["keywords"], obj.keywords)
        if function is not obj.func or args is not obj.args or keywords is not obj.keywords:
            obj.__setstate__((function, args, keywords, obj.__dict__ or None))


register(FunctionHandler(), types.FunctionType)
register(CellHandler(), types.CellType)
register(MethodHandler(), types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)
register(PartialHandler(), functools.partial)
