"""State dicts of the models, optimizers and schedulers that a checkpoint holds, under the names that `state_dict()` gives.

They are known by the attributes that torch's own `state_dict()` reads, and by nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from detrain.errors import CheckpointError
from detrain.export.reading import NotPlain, Reader
from detrain.export.values import StateDict, Value
from detrain.state.tree import Ref, is_node

_MODULE = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_OPTIMIZER = {"param_groups", "state", "defaults"}
_SCHEDULER = {"optimizer", "last_epoch"}
#: Attributes of schedulers that `state_dict()` has in a form of its own.
_OF_SCHEDULERS = ("lr_lambdas", "_schedulers")
#: Optimizers of which each rank holds a part.
_SHARED = {"torch.distributed.optim.zero_redundancy_optimizer:ZeroRedundancyOptimizer"}
#: Modules whose parameters are parts of one flat tensor.
_FLAT = {"torch.distributed.fsdp.fully_sharded_data_parallel:FullyShardedDataParallel"}
#: Modules that only wrap another, which is what other programs want, by the attribute or the name that it has there.
_WRAPPERS = {
    "torch.nn.parallel.distributed:DistributedDataParallel": "module",
    "torch.nn.parallel.data_parallel:DataParallel": "module",
    "torch._dynamo.eval_frame:OptimizedModule": "_orig_mod",
}


class States:
    """What is found from the variables of the script."""

    def __init__(self, reader: Reader) -> None:
        """Raises `CheckpointError` for what is there and cannot be exported."""
        self._reader = reader
        self.modules: dict[str, StateDict] = {}
        self.optimizers: dict[str, StateDict] = {}
        self.schedulers: dict[str, StateDict] = {}
        #: Plain variables of the script.
        self.values: dict[str, Value] = {}
        #: What is left out, and why.
        self.left_out: list[str] = []
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
            self._add_module(path, ref)
        elif attributes.keys() >= _OPTIMIZER:
            if node["t"] in _SHARED:
                self.left_out.append(f"optimizer {path}: each rank holds a part of {node['t'].rpartition(':')[2]}")
            else:
                self.optimizers[path] = self._optimizer(attributes)
        elif _is_scheduler(attributes):
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

    def _add_module(self, path: str, ref: Ref) -> None:
        """A module that is in no other; the loss functions and the like that have no tensors are none."""
        inner = self._unwrap(ref)
        if inner != ref and inner[1] in self._seen:
            return  # the model has a variable of its own beside its wrapper
        self._seen.add(inner[1])
        state = dict(self._entries(inner, "", path))
        if state:
            self.modules[path] = state
        self._hide(inner)

    def _unwrap(self, ref: Ref) -> Ref:
        """The module that wrappers stand around."""
        while (name := _WRAPPERS.get(self._reader.tree.nodes[ref[1]]["t"])) is not None:
            attributes = self._reader.attributes(self._reader.tree.nodes[ref[1]])
            inner = dict(self._reader.named(attributes["_modules"])).get(name, attributes.get(name))
            if self._reader.node(inner) is None:
                break
            ref = inner
        return ref

    def _entries(self, ref: Ref, prefix: str, path: str) -> Iterator[tuple[str, Value]]:
        """As `Module.state_dict` has them, in its order."""
        reader, node = self._reader, self._reader.tree.nodes[ref[1]]
        attributes = reader.attributes(node)
        if not attributes.keys() >= _MODULE or node["t"] in _FLAT:
            raise CheckpointError(f"{path}.{prefix.rstrip('.')} is of {node['t']}, whose tensors cannot be exported")
        left_out = {one for one in reader.elements(attributes["_non_persistent_buffers_set"]) if isinstance(one, str)}
        for name, tensor in [*reader.named(attributes["_parameters"]), *reader.named(attributes["_buffers"])]:
            if reader.node(tensor) is None or name in left_out:
                continue
            if not reader.is_tensor(reader.tree.nodes[tensor[1]]):
                raise CheckpointError(f"{path}.{prefix}{name} is sparse or of another kind that cannot be exported")
            yield f"{prefix}{name}", reader.tensor(tensor)
        for name, module in reader.named(attributes["_modules"]):
            if reader.node(module) is not None:
                yield from self._entries(module, f"{prefix}{name}.", path)

    def _hide(self, ref: Ref) -> None:
        """Modules within one that is exported have no names of their own."""
        attributes = self._reader.attributes(self._reader.tree.nodes[ref[1]])
        for _, inner in self._reader.named(attributes.get("_modules")):
            if is_node(inner) and inner[1] not in self._seen:
                self._seen.add(inner[1])
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
        by_number: StateDict = {}
        others_of_state: StateDict = {}
        for key, ref in reader.items(attributes["state"]):
            with contextlib.suppress(NotPlain):
                node = reader.node(ref)
                value = self._plain(reader.named(ref)) if node is not None and "items" in node else reader.value(ref)
                if is_node(key) and key[1] in numbers:
                    by_number[numbers[key[1]]] = value
                elif not is_node(key):
                    others_of_state[reader.value(key)] = value
        return {"state": {**dict(sorted(by_number.items())), **others_of_state}, "param_groups": groups}

    def _scheduler(self, attributes: dict[str, Ref]) -> StateDict:
        """As `LRScheduler.state_dict` has it: functions are None, schedulers within it their own state."""
        reader = self._reader
        state = self._plain(
            (name, ref) for name, ref in attributes.items() if name not in ("optimizer", *_OF_SCHEDULERS)
        )
        if "lr_lambdas" in attributes:
            state["lr_lambdas"] = [None for _ in reader.elements(attributes["lr_lambdas"])]
        if "_schedulers" in attributes:
            nodes = [reader.node(one) for one in reader.elements(attributes["_schedulers"])]
            state["_schedulers"] = [self._scheduler(reader.attributes(one)) for one in nodes if one is not None]
        return state

    def _plain(self, named: Iterable[tuple[str, Ref]]) -> StateDict:
        """Those that a state dict has a place for."""
        found: StateDict = {}
        for name, ref in named:
            with contextlib.suppress(NotPlain):
                found[name] = self._reader.value(ref)
        return found


def _is_scheduler(attributes: dict[str, Ref]) -> bool:
    return attributes.keys() >= _SCHEDULER and ("base_lrs" in attributes or "_last_lr" in attributes)


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
