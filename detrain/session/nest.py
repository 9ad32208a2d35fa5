"""Finding the loop nest while the first attempt runs, from what happens and not from what things are called.

The loops of the user's code carry dormant hooks. When weights are updated, the loops around the update are on the stack; of those,
the innermost in whose present iteration gradients were computed as well is the batch loop (a loop over optimizers that only steps
them is not), the next one out is the epoch loop, and whatever stands further out is outer.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from detrain.session.loops import Loop, Site, innermost_active

#: An inner loop with more iterations than this is taken for the batch loop even if weights are also updated around it; a GAN's
#: critic steps and inner steps of a meta-learner are fewer.
SHORT_LOOP = 16


class NestFinder:
    """Watches updates and gradients; sets the `part` of the sites that it finds to be in a nest."""

    def __init__(self, has_optimizer: Callable[[], bool]) -> None:
        self._has_optimizer = has_optimizer
        self.updates_seen = 0
        self.gradients_seen = 0
        self._longest: dict[Site, int] = {}

    def on_gradient(self, top: Loop | None, frame: types.FrameType) -> Loop | None:
        """Gradients were computed; returns the batch loop if that alone has shown one.

        Training without an optimizer updates weights by hand, which nobody reports; a loop that computes gradients in a third
        iteration while no optimizer has been seen is taken for it.
        """
        self.gradients_seen += 1
        loop = innermost_active(top, frame)
        if loop is None or loop.gradient_at == loop.iteration:
            return None
        for one in loop.path:
            one.gradient_at = one.iteration
            self._longest[one.site] = max(self._longest.get(one.site, 0), one.iteration + 1)
        if self.updates_seen or loop.site.part or loop.iteration < 2 or self._has_optimizer():
            return None
        return self._take(loop)

    def on_update(self, top: Loop | None, frame: types.FrameType) -> Loop | None:
        """Weights were updated; returns the batch loop if that has shown another nest than before."""
        self.updates_seen += 1
        loop = innermost_active(top, frame)
        if loop is None:
            return None
        path = loop.path
        for one in path:
            self._longest[one.site] = max(self._longest.get(one.site, 0), one.iteration + 1)
        with_gradient = [one for one in path if one.gradient_at == one.iteration and not one.site.is_demoted]
        if not with_gradient:
            return None
        batch = with_gradient[-1]
        if batch.site.part == "batch" or (batch.site.part and not self._is_inner_short(batch)):
            return None
        return self._take(batch)

    def _is_inner_short(self, loop: Loop) -> bool:
        """True if the batch loop found so far is a short loop inside one iteration of this one; then it is demoted."""
        inner = [site for site in self._longest if site.part == "batch" and site is not loop.site]
        short = [site for site in inner if self._longest[site] <= SHORT_LOOP and site in loop.children]
        for site in short:
            site.part, site.is_demoted = "", True
        return bool(short)

    def _take(self, batch: Loop) -> Loop:
        # A loop that is driven by the generator in which the training stands is its caller, not a loop around it.
        path = [one for one in batch.path if not getattr(one.iterator, "gi_running", False)]
        for one in path:
            one.site.part = "outer"
        if len(path) > 1:
            path[-2].site.part = "epoch"
        batch.site.part = "batch"
        return batch


def is_settled(batch: Loop) -> bool:
    """True once the batch loop cannot turn out to be an inner loop any more, so that its positions may be written down."""
    return batch.parent is None or batch.iteration > SHORT_LOOP or batch.parent.iteration > 0
