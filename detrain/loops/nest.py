"""Which of the loops around a weight update are the nest: from what happens, and not from what things are called. Pure.

Both the session, while the first attempt runs, and the tracer see weights updated and gradients computed, each time with the path
of the loops that are running. Of those, the innermost that has computed gradients as well is the batch loop (a loop over optimizers that
only steps them is not; one that begins with an update by the gradients of the iteration before is), the next one out is the epoch loop,
and whatever stands further out is outer.

A loop that makes up one update is no batch loop where the two loops around it make a nest: that over the micro-batches of an update, or
over optimizers that are stepped with a closure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

#: An inner loop with more iterations than this is taken for the batch loop even if weights are also updated around it; a GAN's
#: critic steps and inner steps of a meta-learner are fewer.
SHORT_LOOP = 16


class Site(Protocol):
    """A loop in source. `part` is "" until the loop is known to be in a nest."""

    part: str
    is_demoted: bool
    is_fixed: bool  # the part was known beforehand, and stays


class Entry(Protocol):
    """One entry of a loop, running. Iterations count from 0."""

    gradient_at: int  # the last iteration in which gradients were computed, or -1
    updated_at: int  # the last iteration in which weights were updated, or -1
    num_updated: int  # iterations in which weights were updated

    @property
    def site(self) -> Site:
        """Where it stands."""

    @property
    def iteration(self) -> int:
        """The present one."""

    @property
    def iterator(self) -> object:
        """What a `for` loop takes its elements from, if known."""


E = TypeVar("E", bound=Entry)


class NestFinder:
    """Watches updates and gradients; sets the `part` of the sites that it finds to be in a nest.

    A path lists the entries of the loops that are running, outermost first. What returns a path returns that of a batch loop.
    """

    def __init__(self, has_optimizer: Callable[[], bool]) -> None:
        self._has_optimizer = has_optimizer
        self.updates_seen = 0
        self.gradients_seen = 0
        self._longest: dict[Site, int] = {}
        self._inside: dict[Site, set[Site]] = {}
        #: Iterations in which gradients were computed, with no loop inside.
        self._num_computed: dict[Site, int] = {}
        #: The most iterations of one entry in which weights were updated.
        self._most_updated: dict[Site, int] = {}

    def on_gradient(self, path: Sequence[E]) -> Sequence[E] | None:
        """Gradients were computed; returns the nest if that alone has shown one.

        Training without an optimizer updates weights by hand, which nobody reports; a loop that computes gradients in a third
        iteration while no optimizer has been seen is taken for it.
        """
        self.gradients_seen += 1
        if not path or path[-1].gradient_at == path[-1].iteration:
            return None
        for one in path:
            one.gradient_at = one.iteration
        self._record(path)
        innermost = path[-1]
        self._num_computed[innermost.site] = self._num_computed.get(innermost.site, 0) + 1
        is_known = self._num_computed[innermost.site] > 2
        if self.updates_seen or innermost.site.part or not is_known or self._has_optimizer():
            return None
        return _take(path)

    def num_computed(self, site: Site) -> int:
        """Iterations of a loop, of all its entries, in which gradients were computed with no loop inside."""
        return self._num_computed.get(site, 0)

    def on_update(self, path: Sequence[E]) -> Sequence[E] | None:
        """Weights were updated; returns the nest if that has shown another one than before."""
        self.updates_seen += 1
        self._record(path)
        for one in path:
            if one.updated_at != one.iteration:
                one.updated_at, one.num_updated = one.iteration, one.num_updated + 1
            self._most_updated[one.site] = max(self._most_updated.get(one.site, 0), one.num_updated)
        with_gradient = [
            number for number, one in enumerate(path)
            if one.gradient_at >= 0 and not one.site.is_demoted
        ]  # fmt: skip
        if not with_gradient:
            return self._without_gradients(path)
        if self._is_one_update(path, with_gradient):
            path[with_gradient[-1]].site.part, path[with_gradient[-1]].site.is_demoted = "", True
            return _take(path[: with_gradient[-2] + 1])
        batch = path[with_gradient[-1]]
        if batch.site.part == "batch" or (batch.site.part and not self._is_around_short(batch)):
            return None
        return _take(path[: with_gradient[-1] + 1])

    def _is_one_update(self, path: Sequence[Entry], with_gradient: Sequence[int]) -> bool:
        """True if the innermost loop makes up one update, and the next one out several of them, in a third."""
        if len(with_gradient) < 3:
            return False
        inner, around = path[with_gradient[-1]], path[with_gradient[-2]]
        is_open = inner.site.part == "batch" and not inner.site.is_fixed
        return is_open and self._most_updated[inner.site] == 1 and around.num_updated > 1

    def is_settled(self, batch: Entry, *outer: Entry) -> bool:
        """True once a batch loop cannot turn out to be an inner loop any more, so that its positions may be written down.

        `outer`: the loops around it, from the innermost on.
        """
        if not outer or batch.iteration > SHORT_LOOP:
            return True
        around = outer[0]
        if around.iteration == 0:
            return False
        return len(outer) == 1 or self._most_updated.get(batch.site, 0) != 1 or around.num_updated > 1

    def is_epoch_settled(self, epoch: Entry, *outer: Entry) -> bool:
        """The same of an epoch loop: it may turn out to be the batch loop, with all of the loop inside for one update."""
        inside = self._inside.get(epoch.site, ())
        is_open = any(one.part == "batch" and not one.is_fixed and self._most_updated.get(one) == 1 for one in inside)
        return not outer or epoch.num_updated > 1 or not is_open

    def _without_gradients(self, path: Sequence[E]) -> Sequence[E] | None:
        """The nest of a script that updates weights by what it has estimated itself: an evolution strategy, say."""
        if self.gradients_seen or not path or path[-1].iteration < 2 or path[-1].site.part:
            return None
        return _take(path)

    def _record(self, path: Sequence[Entry]) -> None:
        for number, one in enumerate(path):
            self._longest[one.site] = max(self._longest.get(one.site, 0), one.iteration + 1)
            self._inside.setdefault(one.site, set()).update(other.site for other in path[number + 1 :])

    def _is_around_short(self, loop: Entry) -> bool:
        """True if the batch loop found so far is a short loop inside this one; then it is demoted."""
        short = [
            site for site in self._inside[loop.site]
            if site.part == "batch" and not site.is_fixed and self._longest[site] <= SHORT_LOOP
        ]  # fmt: skip
        for site in short:
            site.part, site.is_demoted = "", True
        return bool(short)


def _take(path: Sequence[E]) -> Sequence[E]:
    """Name the parts; returns the path without loops that are not around the training."""
    # A loop that is driven by the generator in which the training stands is its caller, not a loop around it.
    kept = [one for one in path if not getattr(one.iterator, "gi_running", False)]
    for one in kept:
        one.site.part = "outer"
    if len(kept) > 1:
        kept[-2].site.part = "epoch"
    kept[-1].site.part = "batch"
    return kept
