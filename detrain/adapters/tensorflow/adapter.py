"""TensorFlow behind the contract that every framework has, and the handlers of its objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config as autograph
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function, concrete_function
from tensorflow.python.framework import _pywrap_python_api_dispatcher as dispatcher
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.lib.io import file_io
from tensorflow.python.ops import lookup_ops

from detrain.adapters import names
from detrain.adapters.protocol import Adapter, LossReader, OperatorCall, QuietBatches, Settings
from detrain.adapters.tensorflow import (
    counters,
    data,
    dataset_passes,
    entropy,
    files,
    functions,
    kernel_skip,
    kernels,
    lifted_initial_values,
    operators,
    saved_models,
    scopes,
    seeds,
    stateless,
    tables,
    tensors,
    trackables,
    updates,
    variable_names,
    writers,
)
from detrain.state import tree
from detrain.state.handlers import objects
from detrain.state.registry import register

register(tensors.TensorHandler(), tensors.EagerTensor)
register(tensors.VariableHandler(), tensors.Variable)
register(trackables.WrapperHandler(), *trackables.WRAPPERS)
register(trackables.ResultHandler(), trackables.RESULT)
register(data.DatasetHandler(), dataset_passes.Dataset)
register(data.IteratorHandler(), data.OwnedIterator)
register(data.IteratorOfDevicesHandler(), data.IteratorOfDevices)
register(writers.SummaryWriterHandler(), writers.SummaryWriter)
register(writers.RecordWriterHandler(), tf.io.TFRecordWriter)
register(files.FileIOHandler(), file_io.FileIO)
register(tables.TableHandler(), *tables.TABLES)
register(objects.KeptHandler(), lookup_ops.InitializableLookupTableBase)
register(counters.UnreadableHandler(), counters.Unreadable)
register(counters.CountersHandler(), counters.Counters)
register(functions.FunctionHandler(), functions.Function)
register(entropy.GlobalGeneratorHandler(), entropy.GlobalGenerator)
objects.register_value(tf.DType, lambda v: (v.name,), tf.as_dtype)
objects.register_value(tf.TensorShape, lambda v: (None if v.rank is None else tuple(v.as_list()),), tf.TensorShape)
register(
    objects.KeptHandler(),
    concrete_function.ConcreteFunction, atomic_function.AtomicFunction, func_graph.FuncGraph, tf.Graph,
    tf.TypeSpec, ops.SymbolicTensor, dispatcher.PythonAPIDispatcher,
)  # fmt: skip

tree.iterator_kinds.add(data.IteratorHandler.kind)


def _has_looked_for_devices() -> bool:
    return context.context()._physical_devices is not None


#: Switch to its getter and its setter.
_SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "eager functions": (tf.config.functions_run_eagerly, tf.config.run_functions_eagerly),
    "XLA": (tf.config.optimizer.get_jit, lambda value: tf.config.optimizer.set_jit(value or False)),
    "graph optimizations": (
        tf.config.optimizer.get_experimental_options, tf.config.optimizer.set_experimental_options
    ),
    "TensorFloat-32": (
        tf.config.experimental.tensor_float_32_execution_enabled, tf.config.experimental.enable_tensor_float_32_execution
    ),
    "soft placement": (tf.config.get_soft_device_placement, tf.config.set_soft_device_placement),
}  # fmt: skip


class TensorFlowAdapter(Adapter):
    """TensorFlow."""

    name = "tensorflow"
    shortages = (tf.errors.ResourceExhaustedError,)

    def prepare(self, settings: Settings) -> None:
        """Seed the global generator and choose deterministic kernels."""
        autograph.CONVERSION_RULES = (autograph.DoNotConvert("detrain"), *autograph.CONVERSION_RULES)
        scopes.patch()
        variable_names.patch()
        names.seed_now()  # tracing writes temporary files
        functions.patch()
        counters.patch()
        lifted_initial_values.patch()
        saved_models.patch()
        stateless.replace()
        kernel_skip.replace()
        kernels.replace()
        entropy.replace()
        dataset_passes.patch()
        data.patch()
        writers.patch()
        tf.random.set_seed(settings.seed)
        if settings.is_deterministic:
            tf.config.experimental.enable_op_determinism()
            seeds.replace(settings.seed)
            kernels.keep_order_of_sums()

    def generators(self) -> dict[str, Any]:
        """The generator of seeds for eager operations, and how far the operations that have a generator of their own have drawn."""
        own = vars(context.context()).get("_rng")  # none in a context that was reset and has had no seed since
        return {
            **({"tensorflow": own} if own is not None else {}),
            "tensorflow.counters": counters.counters,
            "tensorflow.kernels": counters.unreadable,
            "tensorflow.global generator": entropy.global_generator,
        }

    def flags(self) -> dict[str, Any]:
        """Process-wide switches that decide what comes out."""
        step = tf.summary.experimental.get_step()
        return {
            "seed": context.context()._seed,
            "summary step": step if isinstance(step, int) else None,
            # To ask for them makes TensorFlow look for devices, and initialise CUDA, in a script that may only have imported it.
            **({name: get() for name, (get, _) in _SWITCHES.items()} if _has_looked_for_devices() else {}),
        }

    def set_flags(self, flags: dict[str, Any]) -> None:
        if context.context()._seed != flags["seed"]:
            context.context()._seed = flags["seed"]
        if flags.get("summary step") is not None:
            tf.summary.experimental.set_step(flags["summary step"])
        for name, (get, set_) in _SWITCHES.items():
            if name in flags and get() != flags[name]:
                set_(flags[name])

    def facts(self) -> dict[str, Any]:
        """The installed version."""
        return {"tensorflow": tf.__version__}

    def report_updates(
        self, on_update: Callable[[], None], on_gradient: Callable[[Any], None], quiet: QuietBatches | None = None
    ) -> None:
        updates.report_updates(on_update, on_gradient)

    def losses(self, outputs: Any) -> list[LossReader]:
        return updates.losses(outputs)

    def log_operators(
        self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]
    ) -> Callable[[], None]:
        return operators.log_operators(is_user_file, on_call)


ADAPTER = TensorFlowAdapter()
