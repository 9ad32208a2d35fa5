"""Puts a deterministic formulation in place of torch's kernel, with the kernel still within reach.

A formulation is registered for the dispatch key `BackendSelect`. Every call of an operator passes it below autograd and above
the kernels of the devices; ATen itself uses it for factory functions only. So

- autograd's formulas, double backward, vmap, tracing modes and tensor subclasses stay torch's: they are decided above;
- nothing is overridden: torch does not warn, and its kernel is one `redispatch` away, for every device and every kind of tensor;
- an operator that is not in the table is not affected: no mode is pushed and no function of torch is replaced.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

Function = Callable[..., Any]

_BACKEND_SELECT = torch._C.DispatchKey.BackendSelect
_BELOW = torch._C._dispatch_keyset_full_after(_BACKEND_SELECT)
_RESIZED = (
    "An output with one or more elements was resized, which torch deprecates: give `out` no elements or the right shape"
)
_PACKAGES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[3]), "torchvision", "<frozen")


@dataclass(frozen=True)
class Replacement:
    """A deterministic formulation of one operator.

    `function` takes what the operator takes, without `out=`, and returns what it returns. It returns None for calls that are left to
    torch's own kernel: those for which the kernel is deterministic, and invalid ones, so that torch raises its own error.
    """

    operator: str
    function: Function
    overload: str = ""
    #: Overloads with `out=`, and the names of what they fill.
    outs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The overload that changes its first argument, as `name.overload`.
    in_place: str = ""
    devices: frozenset[str] = frozenset({"cuda"})
    namespace: str = "aten"


def install(replacements: Iterable[Replacement]) -> list[torch.library.Library]:
    """Register formulations; they act while deterministic mode is on, and as long as the returned libraries live."""
    libraries: dict[str, torch.library.Library] = {}
    for one in replacements:
        if one.namespace not in libraries:
            libraries[one.namespace] = torch.library.Library(one.namespace, "IMPL")
        for name, kernel in _kernels(one):
            libraries[one.namespace].impl(name, kernel, "BackendSelect")
    return list(libraries.values())


def _kernels(one: Replacement) -> Iterator[tuple[str, Function]]:
    """Every overload of an operator, and the kernel for it."""
    name = f"{one.operator}.{one.overload}" if one.overload else one.operator
    yield name, _kernel(one, name, one.function)
    for overload, outs in one.outs.items():
        name = f"{one.operator}.{overload}"
        yield name, _kernel(one, name, filling(one.function, outs))
    if one.in_place:
        yield one.in_place, _kernel(one, one.in_place, changing(one.function))


def _kernel(one: Replacement, name: str, function: Function) -> Function:
    original = Original(one.namespace, name)
    devices = one.devices

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if torch.are_deterministic_algorithms_enabled() and args[0].device.type in devices and _is_plain(args[0]):
            result = function(*args, **kwargs)
            if result is not None:
                return result
        return original(*args, **kwargs)

    return kernel


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


class Original:
    """Torch's kernel for an operator, whatever the device."""

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name, _, overload = name.partition(".")
        self.overload = overload or "default"
        self._operator: Any = None  # found at the first call: finding all of them would cost milliseconds at the start

    @property
    def operator(self) -> Any:
        """The `OpOverload`."""
        if self._operator is None:
            self._operator = getattr(getattr(getattr(torch.ops, self.namespace), self.name), self.overload)
        return self._operator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        keys = torch._C._dispatch_keys(args[0])
        for value in (*args[1:], *kwargs.values()):
            if isinstance(value, torch.Tensor):
                keys = keys | torch._C._dispatch_keys(value)
        return self.operator.redispatch(keys & _BELOW, *args, **kwargs)


def filling(function: Function, names: tuple[str, ...]) -> Function:
    """The `out=` variant of a formulation: the same bits, written to the given tensors."""

    def fill(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in names]
        results = function(*args, **kwargs)
        if results is None:
            return results
        for out, result in zip(outs, results if isinstance(results, tuple) else (results,), strict=True):
            if out.shape != result.shape:
                if out.numel():
                    warnings.warn(_RESIZED, UserWarning, stacklevel=3)
                out.resize_(result.shape)
            out.copy_(result)
        return tuple(outs) if len(outs) > 1 else outs[0]

    return fill


def changing(function: Function) -> Function:
    """The in-place variant of a formulation: the same bits, written to the first argument."""

    def change(target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(target, *args, **kwargs)
        return result if result is None else target.copy_(result)

    return change


def strict(operator: str, namespace: str = "aten") -> Replacement:
    """An operator whose deterministic kernel torch takes only where deterministic mode is to raise, not where it is to warn."""
    original = Original(namespace, operator)

    def raising(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            return None
        # The switch is the process's. Another thread that meets it in this moment at an operator without any deterministic
        # kernel gets an error instead of a warning; only the threads of several devices' backward passes could.
        torch._C._set_deterministic_algorithms(True, warn_only=False)
        try:
            return original(*args, **kwargs)
        finally:
            torch._C._set_deterministic_algorithms(True, warn_only=True)

    return Replacement(operator, raising, namespace=namespace)


def lacking(operator: str, advice: str, namespace: str) -> Replacement:
    """An operator for which there is no formulation: warn once, naming the script's line and an alternative.

    `advice` names the alternative, as in "use torchvision.ops.roi_align".
    """
    original = Original(namespace, operator)
    said: set[str] = set()

    def warn(*args: Any, **kwargs: Any) -> Any:
        text = f"{namespace}::{operator} has no deterministic kernel; {script_line()} uses it: {advice}"
        if torch.is_deterministic_algorithms_warn_only_enabled():
            if text not in said:
                said.add(text)
                sys.stderr.write(f"detrain: warning: {text} [no-deterministic-kernel]\n")
            return None
        try:
            return original(*args, **kwargs)
        except RuntimeError as error:
            error.add_note(f"detrain: {text}")
            raise

    return Replacement(operator, warn, namespace=namespace)


def script_line() -> str:
    """The innermost line of the script, as "file:line": the first frame that is neither torch's nor detrain's.

    Backward passes on CUDA run in threads of torch's, which have no frame of the script; the main thread waits for them in one.
    """
    main = sys._current_frames().get(threading.main_thread().ident or 0)
    for start in (sys._getframe(1), main):
        frame: FrameType | None = start
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_PACKAGES) and "/torchvision/" not in frame.f_code.co_filename:
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
    return "code without a line"
