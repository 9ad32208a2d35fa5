"""Handler for compiled modules (`torch.jit.script`, `torch.jit.trace`): their tensors and attributes live in C++."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import torch

from detrain.state.attributes import instance_dict
from detrain.state.fields import Holds
from detrain.state.handler import MISSING, CannotBuild, Capturing, Handler, Restoring
from detrain.state.tree import Node

#: Views of the C++ module; what they show is captured by name.
_VIEWS = frozenset({"_c", "_concrete_type", "_parameters", "_buffers", "_modules", "forward"})


class ScriptModuleHandler(Handler):
    """A scripted or traced module: parameters, buffers and attributes by name, submodules, and what Python adds (hooks).

    `getattr` of the C++ module gives the same tensor object each time, so tensors are restored in place; other attributes are copies,
    and are set.
    """

    kind = "torch.ScriptModule"
    is_dropped_silently = True
    fields: ClassVar = {"attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["attrs"] = walk.attributes({**_of_python(obj), **obj._modules._python_modules, **_inside(obj)}.items())

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a compiled module is made by its script")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        inside, modules, own = _inside(obj), obj._modules._python_modules, _of_python(obj)
        live = {**own, **modules, **inside}
        for name, ref in node["attrs"]:
            value = restore.value(ref, live.get(name, MISSING))
            if name in modules:
                continue
            if name not in inside:
                obj.__dict__[name] = value
            elif not isinstance(value, torch.Tensor) or value is not inside[name]:
                restore.afterwards(functools.partial(obj._c.setattr, name, value))


def _of_python(module: Any) -> dict[str, Any]:
    """What Python adds to the C++ module."""
    return {name: value for name, value in (instance_dict(module) or {}).items() if name not in _VIEWS}


def _inside(module: Any) -> dict[str, Any]:
    """Parameters, buffers and attributes of the C++ module."""
    inside = module._c
    found = {name: inside.getattr(name) for name in module._concrete_type.get_attributes() if inside.hasattr(name)}
    return {**found, **dict(torch._C.ParameterDict(inside).items()), **dict(torch._C.BufferDict(inside).items())}
