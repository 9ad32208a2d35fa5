"""Writing what is exported: torch's own file, a safetensors file, or a folder of `torch.distributed.checkpoint`."""

from __future__ import annotations

from pathlib import Path

from detrain.errors import CheckpointError, UsageError
from detrain.export.reading import Reader
from detrain.export.states import States, short_names
from detrain.export.values import StateDict, Tensor, Value
from detrain.store import checkpoint as checkpoint_file
from detrain.store import listing
from detrain.store.checkpoint import Checkpoint
from detrain.store.directory import RunDirectory
from detrain.store.job import CUTS, JobDirectory, Manifest, read_manifest

#: In a file: the name of what is detrain's own.
_OWN = "detrain"
_TORCH, _SAFETENSORS = (".pt", ".pth", ".bin", ".ckpt"), ".safetensors"


def export(source: Path, target: Path) -> list[str]:
    """Write what a checkpoint, the latest of a run, or a cut holds; returns lines that say what is in it.

    `target`: FILE.pt, FILE.safetensors (models only), or the name of a folder. Raises `DetrainError`.
    """
    if target.exists():
        raise UsageError(f"{target} is there already; name another file")
    header, reader = _open(source)
    states = States(reader)
    if not (states.modules or states.optimizers):
        raise UsageError(f"{header.name} holds no model of torch's; `detrain inspect` lists what it holds")
    kinds = {**states.modules, **states.optimizers, **states.schedulers}
    names = short_names([*kinds, _OWN])  # one variable may have the name that another ends with
    found: StateDict = {names[path]: state for path, state in kinds.items()}
    meta = header.meta
    found[_OWN] = {
        "checkpoint": header.name, "epochs": meta.epochs, "batches": meta.batches, "batch_in_epoch": meta.batch_in_epoch,
        "values": dict(_by_short_name(states.values)),
    }  # fmt: skip
    is_folder = not target.suffix
    if not is_folder and target.suffix not in (*_TORCH, _SAFETENSORS):
        raise UsageError(
            f"{target.name} is of no known kind: {', '.join((*_TORCH, _SAFETENSORS))}, or a name without a dot for a folder"
        )
    from detrain.adapters.torch import exporting

    if target.suffix == _SAFETENSORS:
        exporting.save_safetensors(_tensors_of(_by_short_name(states.modules)), target)
    elif is_folder:
        exporting.save_distributed(found, target)
    else:
        exporting.save(found, target)
    is_of_models = target.suffix == _SAFETENSORS
    return [
        *(f"model {names[path]}: {len(state)} tensors" for path, state in states.modules.items()),
        *(f"optimizer {names[path]}" for path in states.optimizers if not is_of_models),
        *(f"scheduler {names[path]}" for path in states.schedulers if not is_of_models),
        *(f"left out: {what}" for what in states.left_out),
    ]


def _open(source: Path) -> tuple[Checkpoint, Reader]:
    if source.is_dir() and listing.is_job(source):
        manifests = JobDirectory(source).manifests.read()
        if not manifests:
            raise CheckpointError(f"there is no cut in {source}")
        return _open_cut(source, manifests[0])
    if source.suffix == ".json" and source.parent.name == CUTS:
        return _open_cut(source.parent.parent, read_manifest(source))
    if source.is_dir():
        good, bad = RunDirectory(source).read_checkpoints()
        if bad:
            raise CheckpointError(f"{source}: {bad[0]}, and it may be the latest. Name a checkpoint instead")
        if not good:
            raise CheckpointError(f"there is no checkpoint in {source}")
        source = good[0].path
    header, tree = checkpoint_file.load(source)
    return header, Reader([tree])


def _open_cut(job: Path, manifest: Manifest) -> tuple[Checkpoint, Reader]:
    loaded = [checkpoint_file.load(JobDirectory(job).part(manifest, part.rank)) for part in manifest.parts]
    return loaded[0][0], Reader([tree for _, tree in loaded])


def _by_short_name(found: dict[str, StateDict] | dict[str, Value]) -> StateDict:
    names = short_names(list(found))
    return {names[path]: value for path, value in found.items()}


def _tensors_of(modules: StateDict) -> dict[str, Tensor]:
    """By the names of one model's `state_dict`; of several, the model's name stands before them."""
    found: dict[str, Tensor] = {}
    for name, state in modules.items():
        assert isinstance(state, dict)
        prefix = f"{name}." if len(modules) > 1 else ""
        found |= {f"{prefix}{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    return found
