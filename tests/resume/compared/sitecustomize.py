"""Loaded by the processes of a test, as this folder is in their PYTHONPATH: each walk along a route is compared with one from anew.

A difference ends the process: a route that overlooks something would show nowhere else until a resume.
"""

import json
import os
import sys
from typing import Any


def _differences(one: Any, other: Any) -> list[str]:
    if list(map(type, one.objects)) != list(map(type, other.objects)):
        return [f"{len(one.objects)} objects, and {len(other.objects)} from anew, or of other types"]
    found = []
    for number, (node, anew) in enumerate(zip(one.tree.nodes, other.tree.nodes, strict=True)):
        # Each walk makes objects of its own of what a running frame holds: of these it says by address where they are from.
        is_same = one.objects[number] is other.objects[number] and "code" not in node
        told, expected = (
            json.dumps({name: value for name, value in each.items() if is_same or name not in ("from", "code")})
            for each in (node, anew)
        )
        if told != expected:
            found.append(f"{one.paths[number]}: {told}, and {expected} from anew")
    if json.dumps(one.tree.roots) != json.dumps(other.tree.roots) or list(one.paths) != list(other.paths):
        found.append("other roots or paths")
    for array, anew in zip(one.tree.arrays, other.tree.arrays, strict=True):
        looks = [(each.path, each.label, each.look, each.data.tobytes()) for each in (array, anew)]
        if looks[0] != looks[1]:
            found.append(f"array {array.path}, and {anew.path} from anew")
    return found


def _compare() -> None:
    from detrain.state import retrace
    from detrain.state.walk import Walk

    plain = retrace._run

    def run(walk: Any, roots: Any, dead: Any) -> Any:
        found = plain(walk, roots, dead)
        if type(walk) is retrace.Retrace:
            other = plain(Walk(walk._route.census), roots, dead)
            problems = _differences(found.captured(), other.captured())
            with open(os.environ["COMPARED"], "a", encoding="utf-8") as file:
                file.write("".join(f"{problem}\n" for problem in problems or ["same"]))
            if problems:
                os._exit(70)
        return found

    retrace._run = run
    with open(os.environ["COMPARED"], "a", encoding="utf-8") as file:
        file.write("on\n")


class _Finder:
    """Waits until the attempt itself loads the module: the program finds everything as without us."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "detrain.session.saving":
            sys.meta_path.remove(self)
            _compare()


sys.meta_path.insert(0, _Finder())
