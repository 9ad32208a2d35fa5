"""Programs that run within a memory budget end with the bits that they have without one."""

import hashlib
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from detrain.adapters.torch.remat.budget import budget
from detrain.errors import OverBudget


class Residual(nn.Module):
    """Batch statistics, changes in place, dropout, a sum that skips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.1)

    def forward(self, x):
        y = self.relu(self.norms[0](self.first(x)))
        return self.relu(self.drop(self.norms[1](self.second(y))) + x)


class Tied(nn.Module):
    """A small language model whose last layer has the weights of its first; control flow by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 32)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True) for _ in range(3))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for number, layer in enumerate(self.layers):
            if number < 2 or tokens[0, 0].item() % 2:
                x = layer(x)
        return x @ self.embedding.weight.T


def pictures(batch):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), *[Residual(8) for _ in range(4)], nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return net, lambda: F.cross_entropy(net(torch.randn(batch, 3, 16, 16)), torch.randint(0, 8, (batch,)))


def language(batch):
    net = Tied()

    def loss():
        tokens = torch.randint(0, 40, (batch, 24))
        return F.cross_entropy(net(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())

    return net, loss


def recurrent(batch):
    net = nn.ModuleDict({"rnn": nn.LSTM(12, 24, 2, dropout=0.2, batch_first=True), "head": nn.Linear(24, 3)})
    return net, lambda: F.cross_entropy(
        net["head"](net["rnn"](torch.randn(batch, 20, 12))[0][:, -1]), torch.randint(0, 3, (batch,))
    )


def reused_buffer(batch):
    """The script writes the next batch into the memory of the last, also between forward and backward."""
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    buffer = torch.zeros(batch, 16)

    def loss():
        buffer.copy_(torch.randn(batch, 16))
        doubled = buffer * 2
        found = net(doubled.sin() + doubled).square().mean()
        buffer.copy_(torch.randn(batch, 16))
        return found + buffer.mean()

    return net, loss


def checkpointed(batch):
    """The script's own checkpoints."""
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(
        *[nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 32)) for _ in range(4)]
    )

    def loss():
        x = torch.randn(batch, 32)
        for layer in net:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x.square().mean()

    return net, loss


PROGRAMS = {program.__name__: program for program in (pictures, language, recurrent, reused_buffer, checkpointed)}


def trained(program, limit_bytes=None, *, accumulate=1, autocast=False, optimizer=torch.optim.AdamW, steps=4):
    """Digest of everything that a training has ended with; the runtime."""
    torch.manual_seed(1)
    net, loss_of = PROGRAMS[program](16)
    updates = optimizer(net.parameters(), 1e-3)
    losses = []
    with budget(limit_bytes) if limit_bytes is not None else nullcontext() as runtime:
        for number in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = loss_of()
            (loss / accumulate).backward()
            losses.append(loss.item())
            if (number + 1) % accumulate == 0:
                updates.step()
                updates.zero_grad(set_to_none=number % 2 == 0)
    digest = hashlib.sha256(repr(losses).encode())
    for tensor in (
        *net.state_dict().values(),
        *(one.grad for one in net.parameters() if one.grad is not None),
        torch.get_rng_state(),
    ):
        digest.update(tensor.numpy().tobytes())
    for state in updates.state.values():
        for tensor in state.values():
            digest.update(tensor.numpy().tobytes() if isinstance(tensor, torch.Tensor) else repr(tensor).encode())
    return digest.hexdigest(), runtime


@pytest.mark.parametrize(
    "options", [{}, {"accumulate": 2}, {"autocast": True}, {"optimizer": torch.optim.SGD}], ids=str
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_within_any_budget_the_bits_are_the_same(program, options):
    expected, _ = trained(program, **options)
    observed, runtime = trained(program, 1 << 60, **options)
    assert observed == expected
    assert not runtime.num_evictions
    num_smaller = 0
    for share in (0.8, 0.5, 0.3):
        limit_bytes = int(runtime.peak_bytes * share)
        try:
            found, within = trained(program, limit_bytes, **options)
        except OverBudget as error:
            assert f"the memory budget is {limit_bytes:,}" in str(error)
            continue
        assert found == expected
        assert within.peak_bytes <= limit_bytes
        assert within.num_evictions
        num_smaller += 1
    assert num_smaller
