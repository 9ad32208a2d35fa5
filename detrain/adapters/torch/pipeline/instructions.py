"""What the script's process tells a worker's. Tensors come by mail, in the order that is said here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detrain.adapters.torch.pipeline.routes import Routes
from detrain.adapters.torch.pipeline.shipping import Like, ShippedStage
from detrain.adapters.torch.pipeline.splitting import Crossing


@dataclass(frozen=True)
class Begin:
    """First of all."""

    number: int
    num_workers: int
    #: A file in which the workers find each other.
    meeting: str
    routes: Routes
    seed: int
    #: Kernels are the deterministic ones.
    is_deterministic: bool


@dataclass(frozen=True)
class Take:
    """A stage, under a number by which calls name it."""

    model: int
    stage: ShippedStage
    #: Of the whole model.
    num_crossings: int
    outputs: tuple[Crossing, ...]


@dataclass(frozen=True)
class Forward:
    """The model is called. Behind it come the stage's parameters and buffers, then the inputs that the stage reads."""

    model: int
    call: int
    step: int
    #: Where micro-batches end.
    ends: tuple[int, ...]
    #: By input: samples lie in its first dimension; what it is like, if it is a tensor that the stage reads; else its value.
    has_samples: tuple[bool, ...]
    likes: tuple[Like | None, ...]
    values: tuple[Any, ...]
    tensors: tuple[Like, ...]
    #: Process-wide switches of PyTorch.
    flags: dict[str, Any]


@dataclass(frozen=True)
class Backward:
    """The script goes back through a call. Behind it come the gradients of what the model has returned."""

    model: int
    call: int
    #: Of these: the orders of their dimensions in memory.
    layouts: tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True)
class Forget:
    """It will not."""

    model: int
    call: int


@dataclass(frozen=True)
class Failed:
    """The worker's answer, if it has failed."""

    why: str


Instruction = Begin | Take | Forward | Backward | Forget
