"""`detrain diff --op`: the first operator of the first differing batch that does not give the same in two runs."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from detrain.errors import ResumeRefused
from detrain.proof import diff
from detrain.proof.divergence import Parting
from detrain.proof.segments import Segment
from detrain.proof.verify import open_run, order_for
from detrain.store import ledger
from detrain.store.checkpoint import Checkpoint

#: Operators of one side only that are written out.
_SHOWN = 10


def find(a: Path, b: Path) -> dict[str, Any] | None:
    """Do the batches between the last common record of two runs and the first that differs again, on both sides.

    Returns None if the ledgers part nowhere; else what `compare` does, and `notes`. Raises `DetrainError`.
    """
    parting = diff.parting_of(a, b)
    if parting is None:
        return None
    logs, notes = [], []
    for name, path in (("A", a), ("B", b)):
        found = _do_again(path, parting)
        logs.append(found["operators"])
        if found["difference"] is not None:
            notes.append(
                f"when repeated, {name} does not give what its own ledger says (after batch {found['difference']['batches']}, "
                f"{found['difference']['leaf']}): the cause is not in the program, its arguments or the checkpoint"
            )
    return {**compare(*logs), "notes": notes}


def _do_again(path: Path, parting: Parting) -> dict[str, Any]:
    with open_run(path) as (directory, record, checkpoints, _):
        usable = [one for one in checkpoints if _is_before(one, parting.last_key)]
        start = max(usable, key=lambda one: one.sequence, default=None)
        part = Segment(start, None, False, 0)
        done = ledger.read(directory.path / "ledger", has_losses=False)
        found = order_for(directory, record, checkpoints, done, part, (parting.last_key, parting.key)).carry_out()
    if "operators" not in found:
        why = found["said"].strip() or f"the script ended with status {found['status']}"
        raise ResumeRefused(f"{path}: batch {parting.batches} was not reached again: {why}")
    return found


def _is_before(checkpoint: Checkpoint, key: tuple[int, int] | None) -> bool:
    """True if an attempt that resumes there comes by the header of this key."""
    if key is None:
        return False
    batches = checkpoint.meta.batches
    here = ledger.digest_of_position((loop.ordinal, loop.iteration) for loop in checkpoint.meta.position)
    return batches < key[0] or (batches, here) == key


def compare(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, Any]:
    """The first operator that differs between two sequences of them.

    `what` is "output": the same operator gives something else of the same inputs; "input": what goes into it differs, though no
    operator has made it so; "operator": one side runs others (`only_a`, `only_b`), and `a`, `b` is the first that both run and that
    gives something else after that; "nothing". `number`: how many the two have alike before.
    """
    same = 0
    for one, other in zip(a, b, strict=False):
        if one["name"] != other["name"]:
            break
        if one["outputs"] != other["outputs"]:
            what = "output" if one["inputs"] == other["inputs"] else "input"
            return {"what": what, "number": same, "a": one, "b": other, "only_a": [], "only_b": []}
        same += 1
    if same == len(a) == len(b):
        return {"what": "nothing", "number": same, "a": None, "b": None, "only_a": [], "only_b": []}
    return {"what": "operator", "number": same, **_after_another_way(a[same:], b[same:])}


def _after_another_way(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> dict[str, Any]:
    """What only one side runs up to where they meet again, and the first that gives something else from there on."""
    blocks = difflib.SequenceMatcher(None, [*map(_kind, a)], [*map(_kind, b)], autojunk=False).get_matching_blocks()
    first = blocks[0]
    found: dict[str, Any] = {"only_a": a[: first.a], "only_b": b[: first.b], "a": None, "b": None}
    for block in blocks:
        for one, other in zip(a[block.a : block.a + block.size], b[block.b : block.b + block.size], strict=True):
            if one["outputs"] != other["outputs"]:
                return {**found, "a": one, "b": other}
    return found


def _kind(call: dict[str, Any]) -> tuple[str, str, str]:
    """What two calls have in common that may stand for the same step; a graph reshapes many things."""
    return call["name"], call["backward"], repr(call["shapes"])


def format_result(found: dict[str, Any]) -> str:
    """As a person reads it."""
    number = found["number"]
    lines = [
        f"  operators: the first {number} are the same"
        if number > 1
        else f"  operators: {('none', 'the first')[number]} is the same"
    ]
    what, one, other = found["what"], found["a"], found["b"]
    if what == "output":
        lines.append(f"  then {_describe(one)} gives another result in B for the same inputs{_elsewhere(one, other)}")
    elif what == "input":
        lines.append(
            f"  then {_describe(one)} gets other inputs in B (tensors, or a generator of random numbers), which no operator of "
            f"these batches has produced{_elsewhere(one, other)}"
        )
    elif what == "operator":
        for side in ("A", "B"):
            only = found[f"only_{side.lower()}"]
            lines += [f"  then only {side} runs {_describe(each)}" for each in only[:_SHOWN]]
            lines += [f"  … and {len(only) - _SHOWN} more"] if len(only) > _SHOWN else []
        if one is not None:
            lines.append(
                f"  and {_describe(one)} is the first in both that gives another result{_elsewhere(one, other)}"
            )
    else:
        lines.append("  no operator differs: the difference was not made by an operator, or not by the program")
    return "\n".join([*lines, *(f"  note: {note}" for note in found["notes"])])


def _describe(operator: dict[str, Any]) -> str:
    shapes = ", ".join(f"{dtype} {shape}" for dtype, shape in operator["shapes"])
    of = f" of {operator['backward']}" if operator["backward"] else ""
    return f"{operator['name']}{of} ({shapes}), called at {operator['line'] or 'no line of the script'}"


def _elsewhere(one: dict[str, Any], other: dict[str, Any]) -> str:
    return "" if one["line"] == other["line"] else f" (B: {other['line']})"
