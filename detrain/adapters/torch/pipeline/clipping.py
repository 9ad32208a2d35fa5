"""Gradients scaled by the norm of all stages' together, with the bits of `torch.nn.utils.clip_grad_norm_` in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from detrain.adapters.torch.pipeline.splitting import StageModule
from detrain.errors import GraphError

#: In the place of a norm, where there is no gradient.
_NONE = -1.0


@dataclass(frozen=True)
class Clipping:
    """Of a model's stages."""

    #: The norm of all gradients together is at most this.
    max_norm: float
    #: By stage, of each of its parameters: its place among the model's.
    places: tuple[tuple[int, ...], ...]
    #: In which norms are added.
    dtype: torch.dtype

    @classmethod
    def of(cls, max_norm: float, model: nn.Module, stages: Sequence[StageModule]) -> Clipping:
        """`stages` have the model's own parameters. Raises `GraphError` for parameters of several types."""
        types = list(dict.fromkeys(one.dtype for one in model.parameters()))
        if len(types) > 1:
            raise GraphError(f"gradients of {' and '.join(map(str, types))} are not clipped together over stages")
        place_of = {id(parameter): place for place, parameter in enumerate(model.parameters())}
        return cls(
            max_norm, tuple(tuple(place_of[id(one)] for one in stage.parameters()) for stage in stages), types[0]
        )

    def factor(self, norms: Mapping[int, Tensor]) -> Tensor | None:
        """By which all gradients are multiplied, of each stage's `norms_of`; None if there are no gradients."""
        placed = sorted(
            (place, norm)
            for stage, own in norms.items()
            for place, norm in zip(self.places[stage], own.tolist(), strict=True)
            if norm != _NONE
        )
        if not placed:
            return None
        # In the order of the model's parameters: it decides in which order their squares are added.
        total = torch.linalg.vector_norm(torch.tensor([norm for _, norm in placed], dtype=self.dtype))
        return torch.clamp(self.max_norm / (total + 1e-6), max=1.0)


def norms_of(gradients: Sequence[Tensor | None]) -> Tensor:
    """Of each gradient of a stage; float64, which holds those of all other types."""
    norms = [_NONE if one is None else torch.linalg.vector_norm(one).item() for one in gradients]
    return torch.tensor(norms, dtype=torch.float64)
