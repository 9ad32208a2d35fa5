"""keras: what it keeps beside its models, whichever backend computes. Variables and graphs are the backend's, in its adapter."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras.src.backend.common import global_state
from keras.src.ops import function
from keras.src.utils import traceback_utils, tracking

from detrain import package
from detrain.adapters import name_numbers
from detrain.adapters.protocol import Adapter, OperatorCall, Settings
from detrain.errors import NotSupported
from detrain.state.attributes import instance_dict
from detrain.state.fields import Holds
from detrain.state.handler import MISSING, Capturing, Handler, Restoring
from detrain.state.registry import register
from detrain.state.tree import Node
from detrain.state.user_code import is_user_module


class _DerivingHandler(Handler):
    """An object some of whose attributes follow from the others."""

    fields: ClassVar = {"attrs": Holds.NAMED}
    has_attributes = False
    derived: ClassVar[tuple[str, ...]]
    #: Those of them that stay as they are, or are None where they have not been made yet.
    made_again: ClassVar[tuple[str, ...]] = ()

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["attrs"] = walk.attributes(self._own(obj).items())
        if is_user_module(type(obj).__module__):
            node["class"] = walk.child(type(obj), ".__class__")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = self._own(obj)
        restored = {name: restore.value(ref, live.get(name, MISSING)) for name, ref in node["attrs"]}
        attributes = instance_dict(obj)
        assert attributes is not None
        restored.update({name: attributes.get(name) for name in self.made_again})
        attributes.clear()  # not by setattr, in which keras looks for parts of a model
        attributes.update(restored)
        restore.afterwards(lambda: attributes.update(self.derive(obj)))

    def derive(self, obj: Any) -> dict[str, Any]:
        """The attributes' values, from the others."""
        raise NotImplementedError

    def _own(self, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in (instance_dict(obj) or {}).items() if name not in self.derived}


class TrackerHandler(_DerivingHandler):
    """What knows the parts of a layer by their addresses."""

    kind, derived = "keras.Tracker", ("stored_ids",)

    def derive(self, obj: Any) -> dict[str, Any]:
        return {"stored_ids": {name: {id(part) for part in parts} for name, (_, parts) in obj.config.items()}}


class ModelHandler(_DerivingHandler):
    """A model, or a graph of layers: that knows its nodes by the addresses of their layers.

    What `fit` iterates over for validation and the graphs that it calls are made again where they are not there.
    """

    kind = "keras.Model"
    is_dropped_silently = True
    fields: ClassVar = {"attrs": Holds.NAMED, "made": Holds.NAMED}
    made_again = ("train_function", "test_function", "predict_function")
    derived = ("_nodes", "_eval_epoch_iterator", *made_again)

    def _own(self, obj: Any) -> dict[str, Any]:
        found = super()._own(obj)
        validation = (instance_dict(obj) or {}).get("_eval_epoch_iterator")
        if validation is not None and validation.steps_per_epoch is not None:
            found["_eval_epoch_iterator"] = validation  # it goes on from one validation to the next
        return found

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        super().capture(obj, node, walk)
        attributes = instance_dict(obj) or {}
        made = {name: attributes[name] for name in self.made_again if attributes.get(name) is not None}
        if made:
            node["made"] = walk.attributes(made.items())

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        super().fill(obj, node, restore, is_new)
        attributes = instance_dict(obj) or {}
        for name, ref in node.get("made", ()):
            if attributes.get(name) is None and not is_new:
                getattr(obj, f"make_{name}")()  # not traced yet: it must be traced to what it had been
            if attributes.get(name) is not None:
                restore.value(ref, attributes[name])

    def derive(self, obj: Any) -> dict[str, Any]:
        if not isinstance(obj, function.Function) or "_nodes_by_depth" not in vars(obj):
            return {}
        nodes = [node for nodes in obj._nodes_by_depth.values() for node in nodes]
        return {
            "_nodes": {function.make_node_key(one.operation, one.operation._inbound_nodes.index(one)) for one in nodes}
        }


class Globals:
    """What keras keeps for the whole process: the seeds of layers that were given none, the numbers in the names of new layers."""

    @staticmethod
    def values() -> dict[str, Any]:
        """By name."""
        return dict(vars(global_state.GLOBAL_STATE_TRACKER))


def _look_at_names() -> Callable[[], None]:
    """The numbers in the names of layers and operations, as they are; returns what puts them back."""
    numbers = global_state.get_global_attribute("object_name_uids")
    before = dict(numbers or {})

    def put_back() -> None:
        now = global_state.get_global_attribute("object_name_uids")
        if now is not None and (numbers is None or now is numbers):
            now.clear()
            now.update(before)

    return put_back


class GlobalsHandler(Handler):
    """Keras' global state."""

    kind = "keras.globals"
    fields: ClassVar = {"attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["attrs"] = walk.attributes(obj.values().items())

    def build(self, node: Node, restore: Restoring) -> Any:
        return _globals

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = obj.values()
        for name, ref in node["attrs"]:
            setattr(global_state.GLOBAL_STATE_TRACKER, name, restore.value(ref, live.get(name, MISSING)))
        for name in live.keys() - {name for name, _ in node["attrs"]}:
            delattr(global_state.GLOBAL_STATE_TRACKER, name)

    def fingerprint(self, obj: Any) -> bytes:
        generator = obj.values().get("global_seed_generator")
        return b"" if generator is None else keras.ops.convert_to_numpy(generator.state).tobytes()


_globals = Globals()
register(TrackerHandler(), tracking.Tracker)
register(ModelHandler(), function.Function, keras.Model)
register(GlobalsHandler(), Globals)


#: Backends whose weight updates an adapter of their own reports.
_WATCHED = frozenset({"tensorflow", "torch"})


class KerasAdapter(Adapter):
    """keras. Its backend trains, and has an adapter of its own that reports updates, losses and operators."""

    name = "keras"

    def prepare(self, settings: Settings) -> None:
        """Warn if no adapter sees the backend train. Nothing is seeded: Keras draws its seeds from Python's generator, which is."""
        # Frames of detrain's are left out of the script's tracebacks, as Keras's own are.
        traceback_utils._EXCLUDED_PATHS = (*traceback_utils._EXCLUDED_PATHS, package.FOLDER + os.sep)
        name_numbers.look_at.append(_look_at_names)
        if keras.config.backend() not in _WATCHED:
            sys.stderr.write(
                f"detrain: warning: Keras runs on {keras.config.backend()}, whose training detrain does not see: unless the script trains "
                "in torch or TensorFlow as well, nothing is checkpointed [backend-not-watched]\n"
            )

    def generators(self) -> dict[str, Any]:
        """What gives seeds to layers that were given none."""
        return {"keras": _globals}

    def flags(self) -> dict[str, Any]:
        """The type of floating-point numbers, epsilon and the order of an image's axes."""
        return {
            "floatx": keras.config.floatx(),
            "epsilon": keras.config.epsilon(),
            "format": keras.config.image_data_format(),
        }

    def set_flags(self, flags: dict[str, Any]) -> None:
        keras.config.set_floatx(flags["floatx"])
        keras.config.set_epsilon(flags["epsilon"])
        keras.config.set_image_data_format(flags["format"])

    def facts(self) -> dict[str, Any]:
        """The installed version, and the backend."""
        return {"keras": keras.__version__, "keras_backend": keras.config.backend()}

    def log_operators(
        self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]
    ) -> Callable[[], None]:
        """The backend's adapter logs them. Raises `NotSupported` if it has none."""
        if keras.config.backend() not in _WATCHED:
            raise NotSupported(f"Keras on {keras.config.backend()}", "log the operators that it runs")
        return lambda: None


ADAPTER = KerasAdapter()
