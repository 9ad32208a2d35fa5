"""torch behind the contract that every framework has, and the handlers of its objects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from detrain.adapters.protocol import (
    Adapter,
    DataFlow,
    Limit,
    MemoryBudget,
    ModelLog,
    OperatorCall,
    PipelineOrder,
    QuietBatches,
    ScriptPipeline,
    Settings,
    StepLog,
)
from detrain.adapters.torch import (
    buckets,
    compiled,
    devices,
    distributed,
    dtensors,
    flow,
    kernels,
    loading,
    operators,
    outlasting,
    pickles,
    process_wide,
    profiling,
    scripted,
    streams,
    switches,
    tensors,
    updates,
)
from detrain.adapters.torch.pipeline import live
from detrain.state import registry, tree
from detrain.state.handlers import objects
from detrain.state.registry import register

if TYPE_CHECKING:
    from detrain.pipeline.measured import WorkerSteps

register(tensors.TensorHandler(), torch.Tensor)
register(tensors.StorageHandler(), torch.UntypedStorage)
register(tensors.GeneratorHandler(), torch.Generator)
register(streams.StreamHandler(), torch.cuda.Stream)
register(streams.EventHandler(), torch.cuda.Event)
register(loading.WorkerIteratorHandler(), loading.WorkerIterator)
register(scripted.ScriptModuleHandler(), torch.jit.RecursiveScriptModule)
register(profiling.SpanHandler(), torch.autograd.profiler.record_function)
register(profiling.RecordingHandler(), torch.autograd.profiler.profile)
register(distributed.DistributedHandler(), *distributed.TYPES)
register(buckets.ReducerHandler(), *distributed.REDUCERS)
registry.register_name(dtensors.DTensorHandler(), dtensors.NAME)
registry.register_name(objects.KeptHandler(), dtensors.MESH)
pickles.register()
objects.register_value(torch.dtype, lambda v: (tensors.dtype_name(v),), lambda name: getattr(torch, name))
objects.register_value(torch.device, lambda v: (str(v),))
objects.register_value(torch.Size, tuple, lambda *dims: torch.Size(dims))
objects.register_value(torch.layout, lambda v: (str(v).removeprefix("torch."),), lambda name: getattr(torch, name))
objects.register_value(
    torch.memory_format, lambda v: (str(v).removeprefix("torch."),), lambda name: getattr(torch, name)
)
register(
    objects.KeptHandler(),
    torch.finfo, torch.iinfo, torch._C.ScriptFunction, torch._C.ScriptMethod,
    torch._C.CompilationUnit, torch.library.Library, torch._C._DispatchModule, torch._C._DispatchOperatorHandle,
)  # fmt: skip
objects.register_value(torch._ops.OpOverloadPacket, lambda v: (v._qualified_op_name,), operators.find_operator)
objects.register_value(
    torch._ops.OpOverload, lambda v: (v._schema.name, v._overloadname),
    lambda name, overload: getattr(operators.find_operator(name), overload),
)  # fmt: skip

registry.process_roots.append(process_wide.roots)
registry.compiler_globals.extend(["__compiled_fn_", "__resume_at_", "__builtins_dict__", "__import_"])  # torch.compile
registry.named_last.update({torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler})
tree.transparent_attributes.update({"_parameters", "_buffers", "_modules"})
tree.iterator_kinds.add(loading.WorkerIteratorHandler.kind)


class TorchAdapter(Adapter):
    """torch."""

    name = "torch"
    shortages = (torch.cuda.OutOfMemoryError,)

    def prepare(self, settings: Settings) -> None:
        """Seed torch's generators and choose deterministic kernels.

        `warn_only`: an operator without a deterministic kernel warns instead of ending the script; hardly any is left, see `kernels`.
        """
        loading.patch(settings.key_entropy)
        distributed.report_groups(settings.on_group)
        distributed.report_uneven(settings.on_uneven)
        buckets.patch()
        outlasting.patch(settings.outlast)
        if settings.has_memory_budget:
            compiled.refuse("under --memory-budget")
        torch.manual_seed(settings.seed)
        if settings.is_deterministic:
            torch.backends.cudnn.benchmark = False
            torch.backends.cudnn.deterministic = True
            # As use_deterministic_algorithms(True, warn_only=True), which would load all of dynamo; for compiled code the
            # environment variable that the launcher sets does the same.
            torch.set_deterministic_debug_mode("warn")
            kernels.replace()

    def generators(self) -> dict[str, Any]:
        """The default generator of every device that the script has begun to use."""
        generators: dict[str, Any] = {"torch": torch.default_generator}
        if torch.cuda.is_initialized():
            for number, generator in enumerate(torch.cuda.default_generators):
                generators[f"torch.cuda:{number}"] = generator
        return generators

    def flags(self) -> dict[str, Any]:
        return switches.flags()

    def set_flags(self, flags: dict[str, Any]) -> None:
        switches.set_flags(flags)

    def facts(self) -> dict[str, Any]:
        """Version, instruction set and devices."""
        facts = {
            "torch": torch.__version__,
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }
        if torch.cuda.is_initialized():
            facts["cuda_devices"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
            facts["cuda"] = torch.version.cuda
            facts["cudnn"] = torch.backends.cudnn.version()
        return {**facts, **distributed.facts()}

    def report_updates(
        self, on_update: Callable[[], None], on_gradient: Callable[[Any], None], quiet: QuietBatches | None = None
    ) -> None:
        updates.report_updates(on_update, on_gradient, quiet)

    losses = staticmethod(updates.losses)

    def trained(self) -> list[Any]:
        return updates.trained()

    def settle(self) -> None:
        buckets.settle()
        live.take_in()

    def measured_steps(self) -> WorkerSteps | None:
        return live.measured()

    def has_optimizer(self) -> bool:
        return updates.has_optimizer()

    def is_trained(self, value: Any) -> bool:
        return updates.is_trained(value)

    def loader_of(self, value: Any) -> type | None:
        return loading.loader_of(value)

    def hold_loading(self, is_on: bool) -> None:
        """Hold back the tasks of loaders' workers."""
        loading.holding.is_on = is_on

    def wait(self) -> None:
        devices.wait()

    def warm_up(self) -> None:
        devices.warm_up()

    def unseen(self) -> AbstractContextManager[Any]:
        return devices.unseen()

    def report_in_place_updates(self, on_update: Callable[[], None]) -> None:
        updates.report_in_place_updates(on_update)

    def data_flow(self) -> DataFlow:
        return flow.Flow()

    def log_operators(
        self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]
    ) -> Callable[[], None]:
        return operators.log_operators(is_user_file, on_call)

    def keep_to(self, limit: Limit) -> MemoryBudget:
        from detrain.adapters.torch.remat.budget import Budget

        budget = Budget(limit)
        budget.begin()
        return budget

    def pipeline(self, order: PipelineOrder, aside: Callable[[], AbstractContextManager[Any]]) -> ScriptPipeline:
        from detrain.adapters.torch.pipeline import script

        found = script.ScriptPipeline(order, aside)
        found.begin()
        return found

    def model_log(self) -> ModelLog:
        from detrain.adapters.torch.pipeline import profiling

        return profiling.CalledModels()

    def on_first_forward(self, call: Callable[[], None]) -> None:
        updates.on_first_forward(call)

    def record_steps(self) -> StepLog:
        from detrain.adapters.torch.remat import recording

        return recording.StepRecorder(recording.names_of_parameters(recording.modules_there()))


ADAPTER = TorchAdapter()
