"""torch: tensors, loaders, generators, deterministic kernels, and where weights are updated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from detrain.adapters import Settings
from detrain.adapters.torch import distributed, kernels, loading, outlasting, process_wide, profiling, scripted, tensors
from detrain.adapters.torch.devices import make_ready, unseen, wait
from detrain.adapters.torch.flow import Flow
from detrain.adapters.torch.operators import log_operators
from detrain.adapters.torch.watching import (
    has_optimizer,
    is_trained,
    loader_of,
    losses,
    watch_in_place,
    watch_updates,
)
from detrain.state import registry, tree
from detrain.state.handlers import objects
from detrain.state.registry import register

register(tensors.TensorHandler(), torch.Tensor)
register(tensors.StorageHandler(), torch.UntypedStorage)
register(tensors.GeneratorHandler(), torch.Generator)
register(loading.WorkerIteratorHandler(), loading.WorkerIterator)
register(scripted.ScriptModuleHandler(), torch.jit.RecursiveScriptModule)
register(profiling.SpanHandler(), torch.autograd.profiler.record_function)
register(profiling.RecordingHandler(), torch.autograd.profiler.profile)
register(distributed.DistributedHandler(), *distributed.TYPES)
objects.register_value(torch.dtype, lambda v: (tensors.dtype_name(v),), lambda name: getattr(torch, name))
objects.register_value(torch.device, lambda v: (str(v),))
objects.register_value(torch.Size, tuple, lambda *dims: torch.Size(dims))
objects.register_value(torch.layout, lambda v: (str(v).removeprefix("torch."),), lambda name: getattr(torch, name))
objects.register_value(
    torch.memory_format, lambda v: (str(v).removeprefix("torch."),), lambda name: getattr(torch, name)
)
register(
    objects.KeptHandler(),
    torch.cuda.Stream, torch.cuda.Event, torch.finfo, torch.iinfo, torch._C.ScriptFunction, torch._C.ScriptMethod,
    torch._C.CompilationUnit,
)  # fmt: skip
#: What torch raises where a device has no memory left.
SHORTAGES = torch.cuda.OutOfMemoryError
__all__ = [
    "SHORTAGES", "Flow", "facts", "flags", "generators", "has_optimizer", "hold_loading", "is_trained", "log_operators", "loader_of",
    "losses", "make_ready", "prepare", "set_flags", "unseen", "wait", "watch_in_place", "watch_updates",
]  # fmt: skip

registry.process_roots.append(process_wide.roots)
registry.named_last.update({torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler})
tree.transparent_attributes.update({"_parameters", "_buffers", "_modules"})


def prepare(settings: Settings) -> None:
    """Seed torch's generators and choose deterministic kernels.

    `warn_only`: an operator without a deterministic kernel warns instead of ending the script; hardly any is left, see `kernels`.
    """
    loading.patch(settings.key_entropy)
    distributed.watch_groups(settings.on_group)
    outlasting.patch(settings.outlast)
    torch.manual_seed(settings.seed)
    if settings.is_deterministic:
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        # As use_deterministic_algorithms(True, warn_only=True), which would load all of dynamo; for compiled code the
        # environment variable that the launcher sets does the same.
        torch.set_deterministic_debug_mode("warn")
        kernels.replace()


_AUTOCAST = ("cpu", "cuda")


def generators() -> dict[str, Any]:
    """Torch's default generator of every device that the script has begun to use."""
    found: dict[str, Any] = {"torch": torch.default_generator}
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            found[f"torch.cuda:{number}"] = generator
    return found


def flags() -> dict[str, Any]:
    """Switches of torch that decide what comes out."""
    return {
        "default_dtype": tensors.dtype_name(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "num_threads": torch.get_num_threads(),
        "next_hook": RemovableHandle.next_id,
        "autocast_cache": torch.is_autocast_cache_enabled(),
        **{f"autocast_{name}": torch.is_autocast_enabled(name) for name in _AUTOCAST},
        **{f"autocast_dtype_{name}": tensors.dtype_name(torch.get_autocast_dtype(name)) for name in _AUTOCAST},
        "print": dict(vars(torch._tensor_str.PRINT_OPTS)),
    }


def set_flags(flags: dict[str, Any]) -> None:
    """The inverse of `flags`; touches only what differs."""
    now = globals()["flags"]()
    setters: dict[str, Callable[[Any], Any]] = {
        "default_dtype": lambda v: torch.set_default_dtype(getattr(torch, v)),
        "grad": torch.set_grad_enabled,
        "anomaly": torch.autograd.set_detect_anomaly,
        "matmul_precision": torch.set_float32_matmul_precision,
        "deterministic": torch.set_deterministic_debug_mode,
        "cudnn_benchmark": lambda v: setattr(torch.backends.cudnn, "benchmark", v),
        "cudnn_deterministic": lambda v: setattr(torch.backends.cudnn, "deterministic", v),
        "num_threads": torch.set_num_threads,
        "next_hook": lambda v: setattr(RemovableHandle, "next_id", v),
        "autocast_cache": torch.set_autocast_cache_enabled,
        "autocast_cpu": partial(torch.set_autocast_enabled, "cpu"),
        "autocast_cuda": partial(torch.set_autocast_enabled, "cuda"),
        "autocast_dtype_cpu": lambda v: torch.set_autocast_dtype("cpu", getattr(torch, v)),
        "autocast_dtype_cuda": lambda v: torch.set_autocast_dtype("cuda", getattr(torch, v)),
        "print": lambda v: vars(torch._tensor_str.PRINT_OPTS).update(v),
    }
    for name, value in flags.items():
        if now.get(name) != value and name in setters:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                setters[name](value)


def facts() -> dict[str, Any]:
    """What the bits depend on beside the script: version, instruction set, device."""
    found = {
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    if torch.cuda.is_initialized():
        found["cuda_devices"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def hold_loading(is_on: bool) -> None:
    """Hold back the tasks of loaders' workers while the run fast-forwards."""
    loading.holding.is_on = is_on
