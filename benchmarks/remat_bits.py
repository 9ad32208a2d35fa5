"""What a training within less memory ends with, beside one that keeps everything: within a memory budget, and by the ways that torch has.

Each way trains the same small net from the same seed; compared are the gradients of the first step and, behind the last, the loss, the
buffers and the generator. A language model has dropout, a network for pictures batch statistics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from measure import Bench, Report, main
from remat_run import Attention, Blocks, Residual
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from detrain.adapters.torch.remat.budget import budget
from detrain.errors import OverBudget

#: A net that checkpoints every so many of its blocks, none for 0, and what computes a loss of it.
Make = Callable[[int], tuple[nn.Module, Callable[[nn.Module], Tensor]]]
SHARES = (0.8, 0.5, 0.3)
STEPS = 3
UNBOUNDED = 1 << 60


def language(every: int) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    net = nn.Sequential(nn.Embedding(64, 64), Blocks([Attention(64, 2) for _ in range(4)], every), nn.Linear(64, 64))

    def loss_of(net: nn.Module) -> Tensor:
        tokens = torch.randint(0, 64, (16, 65))
        return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return net, loss_of


def pictures(every: int) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    blocks = Blocks([Residual(16) for _ in range(4)], every)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )
    return net, lambda net: F.cross_entropy(net(torch.randn(16, 3, 24, 24)), torch.randint(0, 10, (16,)))


MODELS = {"language, dropout": language, "pictures, batch statistics": pictures}


@dataclass
class End:
    """What a training has ended with."""

    loss: float
    gradients: list[Tensor]
    buffers: list[Tensor]
    generator: Tensor
    peak_bytes: int = 0


def train(
    make: Make,
    *,
    every: int = 0,
    limit_bytes: int = 0,
    is_compiled: bool = False,
) -> End:
    """Raises `OverBudget`."""
    torch.manual_seed(0)
    net, loss_of = make(every)
    called = torch.compile(net) if is_compiled else net
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    gradients: list[Tensor] = []
    with budget(limit_bytes) if limit_bytes else contextlib.nullcontext() as runtime:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(called)
            loss.backward()
            gradients = gradients or [one.grad.clone() for one in net.parameters() if one.grad is not None]
            optimizer.step()
        value = loss.item()
    buffers = [one.clone() for one in net.buffers()]
    return End(value, gradients, buffers, torch.get_rng_state(), runtime.space.peak_bytes if runtime else 0)


def compiled(make: Make, share: float) -> End:
    """By torch.compile's own budget, with the random numbers of eager torch."""
    before = functorch.activation_memory_budget, inductor.fallback_random
    functorch.activation_memory_budget, inductor.fallback_random = share, True
    torch._dynamo.reset()
    try:
        return train(make, is_compiled=True)
    finally:
        functorch.activation_memory_budget, inductor.fallback_random = before


def difference(found: list[Tensor], expected: list[Tensor]) -> str:
    """The distance over the length of what is expected."""
    pairs = list(zip(found, expected, strict=True))
    if all(torch.equal(one, other) for one, other in pairs):
        return "same bits"
    apart = sum(float((one.double() - other.double()).square().sum()) for one, other in pairs)
    return f"{(apart / sum(float(other.double().square().sum()) for _, other in pairs)) ** 0.5:.1e} off"


def ways(make: Make, peak_bytes: int) -> dict[str, Callable[[], End]]:
    """Each by what a row calls it."""
    found: dict[str, Callable[[], End]] = {}
    for share in SHARES:
        found[f"memory budget {share}"] = partial(train, make, limit_bytes=int(peak_bytes * share))
    found["torch.utils.checkpoint, every block"] = partial(train, make, every=1)
    for share in (1.0, *SHARES):
        found[f"torch.compile, activation_memory_budget {share}"] = partial(compiled, make, share)
    return found


def measure_bits(_: Bench, report: Report, __: bool) -> None:
    """A table for each net."""
    for name, make in MODELS.items():
        plain = train(make)
        rows = []
        for way, run in ways(make, train(make, limit_bytes=UNBOUNDED).peak_bytes).items():
            try:
                end = run()
            except OverBudget as error:
                rows.append([way, f"no room: {error}", "", "", ""])
                continue
            rows.append([
                way,
                difference(end.gradients, plain.gradients),
                "same bits" if end.loss == plain.loss else f"{abs(end.loss - plain.loss):.1e} off",
                difference(end.buffers, plain.buffers) if plain.buffers else "none",
                "same" if torch.equal(end.generator, plain.generator) else "another state",
            ])  # fmt: skip
        report.say(f"## {name}\n\nBeside plain torch; {STEPS} steps.")
        report.table(["", "gradients of the first step", "last loss", "buffers", "generator"], rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("The bits of a training within less memory", __doc__ or "", {"bits": measure_bits})
