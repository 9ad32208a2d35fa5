"""What a model does is decided by: its modules and their attributes, what its `forward`s name, and how it is called.

A trace holds for what it was made of; where something of it is another, the model is traced again.
"""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, str, bytes, type(None), torch.dtype, torch.device)
#: Of `nn.Module` itself, or remade by it.
_OWN = frozenset(
    {"_parameters", "_buffers", "_modules", "_flat_weight_refs", "_flat_weights", *vars(nn.Module())} - {"training"}
)
#: An array of more bytes is told apart by which object it is.
_MOST_BYTES = 4096
_MOST_DEPTH = 4


@dataclass(frozen=True, eq=False)
class Same:
    """An object by which it is, and kept, so that no other comes to be where it was."""

    one: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.one is other.one

    def __hash__(self) -> int:
        return id(self.one)


def settings_of(model: nn.Module, leaves: Sequence[Any], has_samples: Sequence[bool]) -> Any:
    """Hashable; `leaves`: what the model is given, of which the number of samples does not count."""
    frozen = _Frozen()
    given = tuple(
        (str(one.dtype), tuple(one.shape[1:]) if has else tuple(one.shape))
        if isinstance(one, Tensor)
        else frozen.of(one)
        for one, has in zip(leaves, has_samples, strict=True)
    )
    modules = tuple(
        (name, type(module), tuple((key, frozen.of(value)) for key, value in vars(module).items() if key not in _OWN))
        for name, module in model.named_modules()
    )
    named = tuple((Same(function), name, frozen.of(value)) for function, name, value in _named(model))
    tensors = tuple(
        (Same(one), one.requires_grad, one.dtype, tuple(one.shape), one.stride())
        for one in (*model.parameters(), *model.buffers())
    )
    return given, modules, named, tensors, torch.get_default_dtype()


class _Frozen:
    """Makes values hashable, each object once."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def of(self, value: Any, depth: int = 0) -> Any:
        """Plain values and what holds them by content, all else by which object it is."""
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, float):
            return float, value.hex()
        if isinstance(value, (Tensor, nn.Module, type, types.ModuleType)) or callable(value) or depth > _MOST_DEPTH:
            return Same(value)
        if id(value) not in self._known:
            self._known[id(value)] = Same(value)  # where it holds itself
            self._known[id(value)] = self._content(value, depth + 1)
        return self._known[id(value)]

    def _content(self, value: Any, depth: int) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value), tuple(self.of(one, depth) for one in value)
        if isinstance(value, dict):
            return type(value), tuple((self.of(key, depth), self.of(one, depth)) for key, one in value.items())
        if isinstance(value, (set, frozenset)):
            return type(value), frozenset(self.of(one, depth) for one in value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return (value.shape, str(value.dtype), value.tobytes()) if value.nbytes <= _MOST_BYTES else Same(value)
        own = getattr(value, "__dict__", None)
        if isinstance(own, dict) and not isinstance(value, random.Random):
            return Same(value), tuple((key, self.of(one, depth)) for key, one in own.items())
        return Same(value)


def _named(model: nn.Module) -> Iterator[tuple[Callable[..., Any], str, Any]]:
    """What the `forward`s of a model's classes name outside of themselves, but for functions, classes and modules."""
    for kind in dict.fromkeys(type(module) for module in model.modules()):
        function = kind.forward
        if not isinstance(function, types.FunctionType) or kind.__module__.startswith("torch."):
            continue
        names, code = function.__globals__, function.__code__
        found = {name: names[name] for name in code.co_names if name in names}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":
                found[name] = cell.cell_contents
        for name, value in found.items():
            if not callable(value) and not isinstance(value, types.ModuleType):
                yield function, name, value


def generators_of(model: nn.Module) -> list[Any]:
    """Generators of random numbers that are a model's own, as attributes or named by its `forward`s."""
    values = [value for module in model.modules() for value in vars(module).values()]
    values += [value for _, _, value in _named(model)]
    numpy = sys.modules.get("numpy")
    kinds = (random.Random, *((numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()))
    return [value for value in values if isinstance(value, kinds)]


def state_of(generator: Any) -> str:
    """Of one of these."""
    if isinstance(generator, random.Random):
        return repr(generator.getstate())
    found = generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state(legacy=False)
    return repr(found)


class Attributes:
    """Those of all modules at one moment."""

    def __init__(self, model: nn.Module) -> None:
        self._all = [(name, module, dict(vars(module)), self._within(module)) for name, module in model.named_modules()]

    @staticmethod
    def _within(module: nn.Module) -> dict[str, list[Any]]:
        """What the containers among them hold."""
        own = {
            key: value
            for key, value in vars(module).items()
            if key not in ("_parameters", "_flat_weight_refs", "_flat_weights")
        }
        return {
            key: list(value.items()) if isinstance(value, dict) else list(value)
            for key, value in own.items()
            if isinstance(value, (dict, list, set))
        }

    def changed(self) -> str:
        """The first that is another now; "" if none is."""
        for name, module, before, within in self._all:
            now, now_within = vars(module), self._within(module)
            for key in [*before, *now]:
                if key in ("forward", "_flat_weights", "_flat_weight_refs"):
                    continue
                if (
                    key not in now
                    or key not in before
                    or now[key] is not before[key]
                    or not _alike(within.get(key), now_within.get(key))
                ):
                    return f"{name}.{key}" if name else key
        return ""

    def put_back(self) -> None:
        """Have each module's attributes be the same objects again."""
        for _, module, before, _ in self._all:
            own = vars(module)
            for key in [key for key in own if key not in before]:
                del own[key]
            own.update(before)


def _alike(before: list[Any] | None, now: list[Any] | None) -> bool:
    if before is None or now is None:
        return before is now
    return len(before) == len(now) and all(
        a is b
        or (
            isinstance(a, tuple)
            and isinstance(b, tuple)
            and len(a) == len(b)
            and all(x is y for x, y in zip(a, b, strict=True))
        )
        for a, b in zip(before, now, strict=True)
    )
