"""Which tag what is under, between the workers of one model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tags:
    """Of a model with so many tensors across its cuts, stages, and tensors that it returns. No two are the same."""

    num_crossings: int
    num_stages: int
    num_outputs: int

    def crossing(self, number: int, *, is_back: bool) -> int:
        """What crosses a cut, or its gradient."""
        return 2 * number + int(is_back)

    def output(self, number: int, *, is_back: bool) -> int:
        """What the model returns, or its gradient."""
        return 2 * (self.num_crossings + number) + int(is_back)

    def gradients(self, stage: int) -> int:
        """Of a stage's parameters."""
        return self._of_stages(0) + stage

    def weights(self, stage: int) -> int:
        """A stage's parameters and buffers."""
        return self._of_stages(1) + stage

    def buffers(self, stage: int) -> int:
        """Those that the stage has changed."""
        return self._of_stages(2) + stage

    def inputs(self, stage: int) -> int:
        """What the model is given and the stage reads."""
        return self._of_stages(3) + stage

    def norms(self, stage: int) -> int:
        """Of a stage's gradients."""
        return self._of_stages(4) + stage

    def _of_stages(self, kind: int) -> int:
        return 2 * (self.num_crossings + self.num_outputs) + kind * self.num_stages
