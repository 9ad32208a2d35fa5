"""From what two rounds have seen to the data loader. Pure: plain data in, plain data out.

What is larger or smaller in the second round, by `diff_size` if that was given, is the data set. The loader is what holds it, is
asked once in every iteration before gradients are computed, and gives something that flows into them; if nothing is like that (batches fetched ahead,
several in an iteration whose gradients are accumulated), then what is asked equally often in every iteration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Candidate = Mapping[str, Any]


@dataclass
class Verdict:
    """The loaders that feed the update, the first first; or why there are none."""

    loaders: list[Candidate] = field(default_factory=list)
    why_none: str = ""


def from_one_round(candidates: Sequence[Candidate]) -> Verdict:
    """Loaders of frameworks are known for what they are."""
    known = _asked([one for one in candidates if one["is_known"]])
    if known:
        return Verdict(_without_parts(known, candidates))
    return Verdict(why_none="no well-known loader feeds the update")


def from_two_rounds(first: Mapping[str, Any], second: Mapping[str, Any], diff_size: int | None) -> Verdict:
    """Compare the sizes of what each candidate holds. `first` and `second` are reports."""
    changed = changes(first["sizes"], second["sizes"])
    pairs = [(one, _counterpart(one, second["candidates"])) for one in first["candidates"]]
    of_candidates = [changes(one["sizes"], other["sizes"]) if other else {} for one, other in pairs]
    every = {path: change for found in [*of_candidates, changed] for path, change in found.items()}
    if not every:
        return Verdict(why_none="nothing that is reachable from the loops has changed its size; is the second data set another one?")
    if diff_size is not None and not any(abs(by) == abs(diff_size) for by, _ in every.values()):
        return Verdict(why_none=f"nothing differs by {diff_size}; what differs: {list_changes(changed or every)}")
    distances = [
        min((depth for by, depth in found.values() if diff_size is None or abs(by) == abs(diff_size)), default=None)
        for found in of_candidates
    ]
    holding = _asked([one for (one, _), distance in zip(pairs, distances, strict=True) if distance is not None])
    if not holding:
        return Verdict(why_none=f"nothing that the batch loop asks in every iteration holds what differs: {list_changes(changed)}")
    return Verdict(_without_parts(holding, first["candidates"]))


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """By path: the difference in length, and the distance from the root; only of what has the same type in both."""
    return {
        path: (second[path][1] - length, depth)
        for path, (kind, length, depth) in first.items()
        if path in second and second[path][0] == kind and second[path][1] != length
    }


def list_changes(found: Mapping[str, tuple[int, int]], limit: int = 8) -> str:
    """The nearest first: `train.data.rows +32`."""
    nearest = sorted(found.items(), key=lambda item: (item[1][1], item[0]))
    words = [f"{path} {by:+d}" for path, (by, _) in nearest[:limit]]
    return ", ".join(words) + (f" and {len(nearest) - limit} more" if len(nearest) > limit else "") or "nothing"


def _counterpart(one: Candidate, others: Sequence[Candidate]) -> Candidate | None:
    keys = ("full_name", "next", "file_name", "line_no", "kind")
    return next((other for other in others if all(other[key] == one[key] for key in keys)), None)


def _asked(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that are asked in every iteration that was watched as a whole."""
    once = [one for one in candidates if set(one["times"]) == {1} and not one["is_late"]]
    asked = once or [one for one in candidates if len(set(one["times"])) == 1 and one["times"][0] > 0]
    # What is known not to flow into gradients is a validation's, unless nothing is known to.
    return [one for one in asked if one["feeds"] is not False or not any(other["feeds"] for other in asked)]


def _without_parts(chosen: Sequence[Candidate], every: Sequence[Candidate]) -> list[Candidate]:
    """Without those that are asked only by another one of them; a function that only asks a method is no loader, but where it is asked."""

    def is_part(one: Candidate) -> bool:
        inside = one["inside"]
        while inside is not None:
            outer = next((other for other in every if other["order"] == inside), None)
            if outer is None:
                return False
            if any(outer is other for other in chosen) and not _is_mere_function(outer):
                return True
            inside = outer["inside"]
        return False

    kept = [one for one in chosen if not is_part(one)]
    within = {outer for one in kept if not _is_mere_function(one) for outer in _around(one, every)}
    kept = [one for one in kept if not _is_mere_function(one) or one["order"] not in within]
    written_in_python = [one for one in kept if one["kind"] != "c"]
    return sorted(written_in_python or kept, key=lambda one: not one["is_iterated"])


def _around(one: Candidate, every: Sequence[Candidate]) -> list[Any]:
    """The calls of which one is a part, innermost first."""
    found = []
    inside = one["inside"]
    while inside is not None:
        found.append(inside)
        inside = next((other["inside"] for other in every if other["order"] == inside), None)
    return found


def _is_mere_function(one: Candidate) -> bool:
    return bool(one["kind"] == "function")
