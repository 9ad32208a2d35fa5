"""keras: what it keeps beside its models, whichever backend computes. Variables and graphs are the backend's, in its adapter."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend.common import global_state
from keras.src.utils import tracking

from detrain.adapters import Settings
from detrain.state.registry import Handler, register
from detrain.state.restore import MISSING, Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk, instance_dict

__all__ = ["facts", "flags", "generators", "prepare", "set_flags", "watch_updates"]


class TrackerHandler(Handler):
    """What knows the parts of a layer by their addresses: those follow from the parts."""

    kind = "keras.Tracker"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["attrs"] = walk.attributes(self._own(obj).items())

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        live = self._own(obj)
        for name, ref in node["attrs"]:
            setattr(obj, name, restore.value(ref, live.get(name, MISSING)))
        restore.afterwards(lambda: self._find_parts(obj))

    @staticmethod
    def _own(obj: Any) -> dict[str, Any]:
        return {name: value for name, value in (instance_dict(obj) or {}).items() if name != "stored_ids"}

    @staticmethod
    def _find_parts(obj: Any) -> None:
        obj.stored_ids = {name: {id(part) for part in parts} for name, (_, parts) in obj.config.items()}


class Globals:
    """What keras keeps for the whole process: the seeds of layers that were given none, the numbers in the names of new layers."""

    @staticmethod
    def values() -> dict[str, Any]:
        """By name."""
        return dict(vars(global_state.GLOBAL_STATE_TRACKER))


class GlobalsHandler(Handler):
    """Keras' global state."""

    kind = "keras.globals"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["values"] = walk.attributes(obj.values().items())

    def build(self, node: Node, restore: Restore) -> Any:
        return _globals

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        live = obj.values()
        for name, ref in node["values"]:
            setattr(global_state.GLOBAL_STATE_TRACKER, name, restore.value(ref, live.get(name, MISSING)))
        for name in live.keys() - {name for name, _ in node["values"]}:
            delattr(global_state.GLOBAL_STATE_TRACKER, name)

    def fingerprint(self, obj: Any) -> bytes:
        generator = obj.values().get("global_seed_generator")
        return b"" if generator is None else keras.ops.convert_to_numpy(generator.state).tobytes()


_globals = Globals()
register(TrackerHandler(), tracking.Tracker)
register(GlobalsHandler(), Globals)


def prepare(settings: Settings) -> None:
    """Keras draws its seeds from Python's generator, which has been seeded."""


def generators() -> dict[str, Any]:
    """What gives seeds to layers that were given none."""
    return {"keras": _globals}


def flags() -> dict[str, Any]:
    """Switches that decide what comes out."""
    return {
        "floatx": keras.config.floatx(),
        "epsilon": keras.config.epsilon(),
        "format": keras.config.image_data_format(),
    }


def set_flags(flags: dict[str, Any]) -> None:
    """The inverse of `flags`."""
    keras.config.set_floatx(flags["floatx"])
    keras.config.set_epsilon(flags["epsilon"])
    keras.config.set_image_data_format(flags["format"])


def facts() -> dict[str, Any]:
    """What the bits depend on beside the script."""
    return {"keras": keras.__version__, "keras_backend": keras.config.backend()}


def watch_updates(on_update: Any, on_gradient: Any) -> None:
    """The backend's adapter sees them."""
