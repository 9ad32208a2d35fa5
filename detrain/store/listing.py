"""`detrain ls` and `detrain inspect`: what is in a run directory and in a checkpoint.

`ls` reads of checkpoints where they stand and what they need: it finds a truncated file, an altered state tree and a missing earlier file.
`inspect` reads every byte and checks every digest.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError
from detrain.plans.units import size_text
from detrain.store import checkpoint as checkpoint_file
from detrain.store import leaves
from detrain.store.checkpoint import Checkpoint
from detrain.store.directory import RunDirectory
from detrain.store.job import CUTS, JobDirectory, Manifest

_NAME = re.compile(r"checkpoint_(\d+)_(\d+)\.h5$")
#: First elements that `inspect --leaf` shows.
_SHOWN = 20


def find_runs(folder: Path) -> list[Path]:
    """Directories of runs and jobs: `folder` itself, or those directly in it or in its `.detrain`, by name."""
    if is_run(folder):
        return [folder]
    places = [place for place in (folder, folder / ".detrain") if place.is_dir()]
    return sorted(path for place in places for path in place.iterdir() if is_run(path))


def is_run(path: Path) -> bool:
    """True if this is the directory of a run or of a job."""
    if not path.is_dir():
        return False
    return (path / "run.json").is_file() or is_job(path) or bool(RunDirectory(path).checkpoint_paths())


def is_job(path: Path) -> bool:
    """True if this is the directory of a job of several ranks, or what one host has of it."""
    return JobDirectory(path).is_there


def describe(path: Path) -> dict[str, Any]:
    """A run, or a job of several ranks."""
    return describe_job(path) if is_job(path) else describe_run(path)


def describe_job(path: Path) -> dict[str, Any]:
    """What `describe_run` tells of a run, of the job as a whole: its checkpoints are its cuts. With `ranks`: what each rank here has."""
    job = JobDirectory(path)
    ranks = [{"rank": number, **describe_run(job.rank(number).path)} for number in job.ranks_here()]
    first = ranks[0] if ranks else describe_run(job.rank(0).path)
    damage = []
    try:
        size = job.size()
    except CheckpointError as error:
        size = 0
        damage.append(str(error))
    cuts = [describe_cut(path, manifest) for manifest in job.manifests.read(lambda error: damage.append(str(error)))]
    damage += [f"rank {one['rank']}: {one['damage']}" for one in ranks if one["damage"]]
    return {
        **{name: first[name] for name in ("script", "arguments", "began")},
        "path": str(path),
        "attempts": max((one["attempts"] for one in ranks), default=0),
        "ended": job.finished_at() or None,
        "is_finished": bool(job.finished_at()),
        "held_by": job.holder(),
        "damage": "; ".join(damage),
        "checkpoints": cuts,
        "num_ranks": size or len(ranks),
        "ranks": ranks,
    }


def describe_cut(job: Path, manifest: Manifest) -> dict[str, Any]:
    """One cut, as `describe_run` tells of a checkpoint, and its `parts`."""
    parts = [{"rank": one.rank, "host": one.host, "path": str(_part(job, manifest, one.rank)), "bytes": None, "damage": ""}
             for one in manifest.parts]  # fmt: skip
    for part in parts:
        path = Path(str(part["path"]))
        if path.exists():
            found = _describe_file(path)
            part["bytes"], part["damage"] = (
                found["bytes"],
                found["damage"] or _is_another(job, manifest, int(str(part["rank"]))),
            )
        elif path.parent.is_dir():
            part["damage"] = f"{path.name} is not in {path.parent}"
    written = job / CUTS / f"{manifest.name}.json"
    return {
        "file": manifest.name,
        "bytes": sum(int(str(part["bytes"])) for part in parts if part["bytes"] is not None),
        "when": when(written.stat().st_mtime),
        "damage": "; ".join(f"rank {part['rank']}: {part['damage']}" for part in parts if part["damage"]),
        "epoch": manifest.epoch,
        "batch": manifest.batch,
        "sequence": manifest.sequence,
        "parts": parts,
    }


def _is_another(job: Path, manifest: Manifest, rank: int) -> str:
    """Says so if the file is not the one that was part of the cut."""
    try:
        JobDirectory(job).part(manifest, rank)
    except CheckpointError as error:
        return str(error)
    return ""


def _part(job: Path, manifest: Manifest, rank: int) -> Path:
    return JobDirectory(job).rank(rank).path / manifest.name


def describe_run(path: Path) -> dict[str, Any]:
    """A run and its checkpoints, latest first, damaged ones last."""
    directory = RunDirectory(path)
    try:
        record, damage = directory.read_record(), ""
    except (CheckpointError, OSError) as error:
        record, damage = None, str(error)
    checkpoints = [_describe_file(found) for found in directory.checkpoint_paths()]
    checkpoints.sort(key=lambda found: (found["damage"] != "", -found.get("sequence", 0)))
    for found in checkpoints:
        found["needed_by"] = [one["file"] for one in checkpoints if found["file"] in one.get("needs", ())]
    return {
        "path": str(path),
        "script": record.script if record is not None else None,
        "arguments": record.arguments if record is not None else [],
        "began": record.began if record is not None else None,
        "ended": directory.finished_at() or None,
        "attempts": record.attempts if record is not None else 0,
        "is_finished": bool(directory.finished_at()),
        "held_by": directory.holder(),
        "damage": damage,
        "checkpoints": checkpoints,
    }


def _describe_file(path: Path) -> dict[str, Any]:
    status = path.stat()
    found = {"file": path.name, "bytes": status.st_size, "when": when(status.st_mtime), "damage": ""}
    try:
        header = checkpoint_file.read_outline(path)
    except CheckpointError as error:
        return {**found, "damage": str(error)}
    missing = sorted(name for name in header.needs if not path.with_name(name).exists())
    if missing:
        found["damage"] = f"{path.name} needs {', '.join(missing)}, which is not there"
    return {**found, **_position(header), "sequence": header.sequence, "needs": sorted(header.needs)}


def _position(header: Checkpoint) -> dict[str, int]:
    """Epoch and batch in it, from 0, that come next; as the file name has them."""
    named = _NAME.match(header.name)
    if named is not None:
        return {"epoch": int(named[1]), "batch": int(named[2])}
    return {"epoch": header.meta.epochs, "batch": header.meta.batch_in_epoch}


def when(seconds: float) -> str:
    """Seconds since 1970 as a person reads them."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """What is in a checkpoint, every digest checked. Raises `CheckpointError` for what cannot be trusted."""
    header, tree = checkpoint_file.load(path)
    meta = header.meta
    kept = [
        {
            "path": leaves.readable(tree, tree.path(number)), "type": node["t"], "why": node["kept"],
            "is_loud": bool(node.get("loud")),
        }
        for number, node in enumerate(tree.nodes) if "kept" in node
    ]  # fmt: skip
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        **_position(header),
        "sequence": header.sequence,
        "needs": sorted(header.needs),
        "environment": meta.facts,
        "meta": meta.encode(),
        "leaves": [_describe_leaf(leaf, header) for leaf in leaves.leaves(tree)],
        "kept": sorted(kept, key=lambda one: (not one["is_loud"], one["path"])),
    }


def _describe_leaf(leaf: leaves.Leaf, header: Checkpoint) -> dict[str, Any]:
    found: dict[str, Any] = {"path": leaf.path, "kind": leaf.kind, "bytes": leaf.nbytes, "digest": leaf.digest}
    if leaf.shape is None:
        return {**found, "value": leaves.plain_json(leaves.value_of(leaf.ref))}
    found |= {"shape": leaf.shape, "stored_in": header.stored[leaf.array].holder or header.name}
    if leaf.shares:
        found["shares"] = leaf.shares
    return {**found, "is_pickled": True} if leaf.is_pickled else found


def read_leaf(path: Path, wanted: str) -> list[dict[str, Any]]:
    """The leaf of a path, with its value; else every leaf below the path; [] if there is none.

    Elements come with dtype, shape and the first of them. Raises `CheckpointError` for what cannot be trusted.
    """
    header, tree = checkpoint_file.load(path)
    wanted = leaves.readable(tree, wanted)
    all_leaves = list(leaves.leaves(tree))
    exact = [leaf for leaf in all_leaves if leaf.path == wanted]
    if not exact:
        below = (f"{wanted}.", f"{wanted}[")
        return [_describe_leaf(leaf, header) for leaf in all_leaves if leaf.path.startswith(below)]
    described = []
    for leaf in exact:
        found = _describe_leaf(leaf, header)
        elements = leaves.elements_of(tree, tree.nodes[leaf.node]) if leaf.node >= 0 else None
        if elements is not None:
            first = elements.reshape(-1)[:_SHOWN]
            found["first"] = [leaves.element_text(element, leaf.kind) for element in first]
            found["first_bits"] = [leaves.bits_of(element) for element in first]
        described.append(found)
    return described


# --- for a person ---


def format_run(run: dict[str, Any]) -> str:
    """A run as lines of text."""
    words = [str(run["script"] or "(how it was started is not recorded)"), *run["arguments"]]
    state = "finished" if run["is_finished"] else "not finished"
    if run["held_by"]:
        state = f"running: {run['held_by']}"
    count = f"ranks: {run['num_ranks']}; cuts" if "ranks" in run else "checkpoints"
    lines = [
        f"{run['path']}: {' '.join(words)}",
        f"  {state}; began {run['began']}; attempts: {run['attempts']}; {count}: {len(run['checkpoints'])}",
    ]
    if "ranks" in run and len(run["ranks"]) < run["num_ranks"]:
        lines.append(f"  on this host: ranks {', '.join(str(one['rank']) for one in run['ranks'])}")
    if run["damage"]:
        lines.append(f"  damaged: {run['damage']}")
    for found in run["checkpoints"]:
        where = f"epoch {found['epoch']}, batch {found['batch']}" if "epoch" in found else "?"
        needed = f"  needed by {_several(found['needed_by'])}" if found.get("needed_by") else ""
        lines.append(f"  {found['file']:24} {where:24} {size_text(found['bytes']):>10}  {found['when']}{needed}")
        if found["damage"]:
            lines.append(f"    damaged: {found['damage']}")
    return "\n".join(lines)


def _several(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} of the others"


def format_cut(cut: dict[str, Any]) -> str:
    """A cut as lines of text: where it was taken, and each rank's part."""
    lines = [
        f"{cut['file']}: epoch {cut['epoch']}, batch {cut['batch']}, cut {cut['sequence']} of its job, {len(cut['parts'])} ranks"
    ]
    for part in cut["parts"]:
        size = size_text(part["bytes"]) if part["bytes"] is not None else "not on this host"
        lines.append(f"  rank {part['rank']} on {part['host']}: {part['path']}  {size}")
        if part["damage"]:
            lines.append(f"    damaged: {part['damage']}")
    return "\n".join(lines)


def format_checkpoint(found: dict[str, Any]) -> str:
    """A checkpoint as lines of text: position, environment, what is not in it, then the leaves."""
    lines = [
        f"{found['file']}: epoch {found['epoch']}, batch {found['batch']}, save {found['sequence']} of its run, "
        f"{size_text(found['bytes'])}",
        f"needs: {', '.join(found['needs']) or 'no other file'}",
        f"environment: {', '.join(f'{name} {value}' for name, value in found['environment'].items())}",
    ]
    for kept in found["kept"]:
        lines.append(f"{'not captured' if kept['is_loud'] else 'kept'}: {kept['path']} ({kept['type']}): {kept['why']}")
    return "\n".join([*lines, *map(format_leaf, found["leaves"])])


def format_leaf(leaf: dict[str, Any]) -> str:
    """A leaf as a line; with its first elements as two, if they were asked for."""
    if "shape" not in leaf:
        return f"{leaf['path']}  {leaf['kind']} {leaf['value']!r}  {leaf['bytes']} B  {leaf['digest']}"
    where = f"the bytes of {leaf['shares']}" if "shares" in leaf else f"in {leaf['stored_in']}"
    mark = "  pickled" if leaf.get("is_pickled") else ""
    line = (
        f"{leaf['path']}  {leaf['kind']} {leaf['shape']}  {size_text(leaf['bytes'])}  {leaf['digest']}  {where}{mark}"
    )
    if "first" not in leaf:
        return line
    is_cut = len(leaf["first"]) < _num_elements(leaf["shape"])
    return f"{line}\n  [{', '.join(leaf['first'])}{', …' if is_cut else ''}]"


def _num_elements(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
