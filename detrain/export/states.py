"""State dicts of the models, optimizers and schedulers that a checkpoint holds, under the names that `state_dict()` gives.

They are known by the attributes that torch's own `state_dict()` reads, and by nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from detrain.export.reading import NotPlain, Reader
from detrain.export.values import StateDict, Value
from detrain.state.tree import Node, Ref, is_node

_MODULE = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_OPTIMIZER = {"param_groups", "state", "defaults"}
_SCHEDULER = {"optimizer", "last_epoch"}
#: Modules that only wrap another, which is what other programs want, by the attribute or the name that it has there.
_WRAPPERS = {
    "torch.nn.parallel.distributed:DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel:DataParallel": "module",
    "torch._dynamo.eval_frame:OptimizedModule": "_orig_mod",
}


class States:
    """What is found from the variables of the script."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.modules: dict[str, StateDict] = {}
        self.optimizers: dict[str, StateDict] = {}
        self.schedulers: dict[str, StateDict] = {}
        #: Plain variables of the script.
        self.values: dict[str, Value] = {}
        self._seen: set[int] = set()
        self._find()

    def _find(self) -> None:
        pending: list[tuple[str, Ref]] = [
            (name, ref)
            for name, ref in self._reader.tree.roots.items()
            if not name.startswith(("process.", "generators.", "<"))
        ]
        for name, ref in pending:
            if not is_node(ref) and not isinstance(ref, list):
                self.values[name] = ref
        # By breadth: the shortest path names an object.
        while pending:
            found = pending
            pending = []
            for path, ref in found:
                pending += self._visit(path, ref)

    def _visit(self, path: str, ref: Ref) -> Iterator[tuple[str, Ref]]:
        node = self._reader.node(ref)
        if node is None or ref[1] in self._seen:
            return
        self._seen.add(ref[1])
        attributes = self._reader.attributes(node)
        if attributes.keys() >= _MODULE:
            unwrapped, inner = self._unwrap(node, attributes)
            self.modules[path] = dict(self._entries(inner, ""))
            self._hide(unwrapped)
        elif attributes.keys() >= _OPTIMIZER:
            self.optimizers[path] = self._optimizer(attributes)
        elif attributes.keys() >= _SCHEDULER and ("base_lrs" in attributes or "_last_lr" in attributes):
            self.schedulers[path] = self._scheduler(attributes)
        elif "items" in node:
            for key, value in node["items"]:
                if not is_node(key):
                    yield f"{path}[{self._reader.value(key)!r}]", value
        elif "seq" in node:
            for position, value in enumerate(node["seq"]):
                yield f"{path}[{position}]", value
        elif node["k"] == "object":
            for name, value in attributes.items():
                yield f"{path}.{name}", value

    # --- modules -----------------------------------------------------------------------------------------------------------------

    def _unwrap(self, node: Node, attributes: dict[str, Ref]) -> tuple[Node, dict[str, Ref]]:
        """The module that wrappers stand around."""
        while (name := _WRAPPERS.get(node["t"])) is not None:
            inner = dict(self._reader.named(attributes["_modules"])).get(name, attributes.get(name))
            found = self._reader.node(inner)
            if found is None:
                break
            node, attributes = found, self._reader.attributes(found)
        return node, attributes

    def _entries(self, attributes: dict[str, Ref], prefix: str) -> Iterator[tuple[str, Value]]:
        """As `Module.state_dict` has them, in its order."""
        reader = self._reader
        left_out = {one for one in reader.elements(attributes["_non_persistent_buffers_set"]) if isinstance(one, str)}
        for name, ref in [*reader.named(attributes["_parameters"]), *reader.named(attributes["_buffers"])]:
            node = reader.node(ref)
            if node is not None and name not in left_out and reader.is_tensor(node):
                yield f"{prefix}{name}", reader.tensor(ref)
        for name, ref in reader.named(attributes["_modules"]):
            node = reader.node(ref)
            if node is not None:
                yield from self._entries(reader.attributes(node), f"{prefix}{name}.")

    def _hide(self, node: Node) -> None:
        """Modules within one that is exported have no names of their own."""
        for _, ref in self._reader.named(self._reader.attributes(node).get("_modules")):
            inner = self._reader.node(ref)
            if inner is not None and ref[1] not in self._seen:
                self._seen.add(ref[1])
                self._hide(inner)

    # --- optimizers --------------------------------------------------------------------------------------------------------------

    def _optimizer(self, attributes: dict[str, Ref]) -> StateDict:
        """As `Optimizer.state_dict` has it: parameters by number, in the order of the groups."""
        reader, numbers = self._reader, dict[int, int]()
        groups: list[Value] = []
        for group in reader.elements(attributes["param_groups"]):
            packed: StateDict = {}
            for name, ref in reader.named(group):
                if name == "params":
                    packed[name] = [numbers.setdefault(one[1], len(numbers)) for one in reader.elements(ref)]
            others = [(name, ref) for name, ref in reader.named(group) if name != "params"]
            groups.append({**self._plain(others), **packed})
        state: StateDict = {}
        for key, ref in reader.items(attributes["state"]):
            if is_node(key) and key[1] in numbers:
                state[numbers[key[1]]] = self._plain(reader.named(ref))
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def _scheduler(self, attributes: dict[str, Ref]) -> StateDict:
        return self._plain((name, ref) for name, ref in attributes.items() if name != "optimizer")

    def _plain(self, named: Iterable[tuple[str, Ref]]) -> StateDict:
        """Those that a state dict has a place for."""
        found: StateDict = {}
        for name, ref in named:
            with contextlib.suppress(NotPlain):
                found[name] = self._reader.value(ref)
        return found


def short_names(paths: list[str]) -> dict[str, str]:
    """Each path by the shortest end of it that no other has: `train.main.model` by `model`."""
    ends = {path: path.split(".") for path in paths}
    names: dict[str, str] = {}
    for path, parts in ends.items():
        for count in range(1, len(parts) + 1):
            name = ".".join(parts[-count:])
            if sum(other == name or other.endswith(f".{name}") for other in paths) == 1:
                break
        names[path] = name
    return names
