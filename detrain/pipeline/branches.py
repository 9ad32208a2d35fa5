"""Branches as single layers, as PipeDream merges them (`compress_branches`) for networks that have too many states for it."""

from __future__ import annotations

from dataclasses import replace

from detrain.pipeline.layers import Layer, Profile


def merge_branches(profile: Profile) -> tuple[Profile, dict[str, tuple[str, ...]]]:
    """The profile with the unbranched run behind each fork as one layer, and by layer the names of those that it stands for.

    A run takes in the next fork, if it leads to one, but nothing that more than one layer leads to. Its output is its last
    layer's. As published, names count the ways out of forks, and edges stand in the order of the layers that they lead to.
    Unlike there, a layer that ends a run and leads nowhere keeps its time, and one without edges is not lost.
    """
    merging = _Merging(profile)
    merging.run()
    return merging.merged()


class _Merging:
    """Goes through the layers from the sources on, each once."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._num_ways = 0
        #: The last layer of a run to the run's number among `_runs`.
        self._run_of: dict[int, int] = {}
        #: The number of its way out of a fork, and its layers.
        self._runs: list[tuple[int, list[int]]] = []
        #: Nodes are (is a run, number); in the order in which edges name them first.
        self._nodes: dict[tuple[bool, int], None] = {}
        self._edges: list[tuple[tuple[bool, int], tuple[bool, int]]] = []

    def run(self) -> None:
        """All edges of the merged graph."""
        successors = self._profile.successors
        queue = [number for number, before in enumerate(self._profile.predecessors) if not before]
        for number in queue:
            if not successors[number]:
                self._nodes[False, number] = None
        seen: set[int] = set()
        while queue:
            at = queue.pop(0)
            if at in seen:
                continue
            for after in successors[at]:
                queue.append(self._fork(at, after) if len(successors[at]) > 1 else self._follow(at, after))
            seen.add(at)

    def _follow(self, at: int, after: int) -> int:
        self._join(self._node(at), self._node(after))
        return after

    def _fork(self, at: int, after: int) -> int:
        """One way out of a fork; returns where to go on."""
        way = self._num_ways
        self._num_ways += 1
        members = self._members(after)
        if not members:
            self._join(self._node(at), (False, after))
            return after
        self._run_of[members[-1]] = len(self._runs)
        self._runs.append((way, members))
        self._join(self._node(at), self._node(members[-1]))
        return members[-1]

    def _members(self, first: int) -> list[int]:
        predecessors, successors = self._profile.predecessors, self._profile.successors
        members: list[int] = []
        at = first
        while len(predecessors[at]) == 1 and len(successors[at]) == 1:
            members.append(at)
            if len(predecessors[successors[at][0]]) > 1:
                return members
            at = successors[at][0]
        if members:
            members.append(at)
        return members

    def _node(self, number: int) -> tuple[bool, int]:
        return (True, self._run_of[number]) if number in self._run_of else (False, number)

    def _join(self, begin: tuple[bool, int], end: tuple[bool, int]) -> None:
        self._nodes.setdefault(begin)
        self._nodes.setdefault(end)
        self._edges.append((begin, end))

    def merged(self) -> tuple[Profile, dict[str, tuple[str, ...]]]:
        """The merged graph."""
        layers, stands_for = [], {}
        for is_run, number in self._nodes:
            layer = self._layer(number) if is_run else self._profile.layers[number]
            members = self._runs[number][1] if is_run else [number]
            stands_for[layer.name] = tuple(self._profile.layers[number].name for number in members)
            layers.append(layer)
        place = {node: position for position, node in enumerate(self._nodes)}
        edges = sorted(((place[begin], place[end]) for begin, end in self._edges), key=lambda edge: edge[1])
        return Profile(tuple(layers), tuple(edges), self._profile.name), stands_for

    def _layer(self, run: int) -> Layer:
        way, members = self._runs[run]
        inner = [self._profile.layers[number] for number in members]
        return replace(
            inner[-1], name=f"compressed_node{way}",
            description=inner[0].description if len(members) == 1 else f"Branch {way}",
            forward_ms=sum(layer.forward_ms for layer in inner), backward_ms=sum(layer.backward_ms for layer in inner),
            parameter_bytes=sum(layer.parameter_bytes for layer in inner), stage=None,
        )  # fmt: skip
