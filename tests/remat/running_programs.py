"""Small trainings with what makes evicting and making again hard. Each gives a net, and what computes a loss of one batch."""

import ctypes
import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint


class Residual(nn.Module):
    """Batch statistics, changes in place, dropout, a sum that skips."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.1)

    def forward(self, x):
        y = self.relu(self.norms[0](self.first(x)))
        return self.relu(self.drop(self.norms[1](self.second(y))) + x)


class Tied(nn.Module):
    """A small language model whose last layer has the weights of its first; control flow by the batch."""

    def __init__(self):
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


def channels_last(batch):
    net = pictures(batch)[0].to(memory_format=torch.channels_last)
    return net, lambda: F.cross_entropy(
        net(torch.randn(batch, 3, 16, 16).to(memory_format=torch.channels_last)), torch.randint(0, 8, (batch,))
    )


def language(batch):
    net = Tied()

    def loss():
        tokens = torch.randint(0, 40, (batch, 24))
        return F.cross_entropy(net(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())

    return net, loss


def recurrent(batch):
    net = nn.ModuleDict({"rnn": nn.GRU(12, 24, 2, dropout=0.2, batch_first=True), "head": nn.Linear(24, 3)})
    return net, lambda: F.cross_entropy(
        net["head"](net["rnn"](torch.randn(batch, 20, 12))[0][:, -1]), torch.randint(0, 3, (batch,))
    )


def unrolled(batch):
    """A cell of an LSTM, step by step; what it remembers is carried into the next batch."""
    net = nn.ModuleDict({"cell": nn.LSTMCell(12, 24), "head": nn.Linear(24, 3)})
    state = [torch.zeros(batch, 24), torch.zeros(batch, 24)]

    def loss():
        h, c = (one.detach() for one in state)
        for _ in range(12):
            h, c = net["cell"](torch.randn(batch, 12), (h, c))
        state[:] = h, c
        return F.cross_entropy(net["head"](h), torch.randint(0, 3, (batch,)))

    return net, loss


def layers(depth, *between):
    """A chain of linear layers."""
    return nn.Sequential(*[one for _ in range(depth) for one in (nn.Linear(32, 32), nn.Tanh(), *between)])


def reused_buffer(batch):
    """The script writes the next batch into the memory of the last, also between forward and backward."""
    net, buffer = layers(4), torch.zeros(8 * batch, 32)

    def loss():
        buffer.copy_(torch.randn(8 * batch, 32))
        doubled = buffer * 2
        found = net(doubled.sin() + doubled).square().mean()
        buffer.copy_(torch.randn(8 * batch, 32))
        return found + buffer.mean()

    return net, loss


def own_checkpoints(batch):
    """The script's own, of both kinds."""
    net = nn.ModuleList(layers(2, nn.Dropout(0.2)) for _ in range(4))

    def loss():
        x = torch.randn(8 * batch, 32, requires_grad=True)
        for number, layer in enumerate(net):
            x = x + checkpoint(layer, x, use_reentrant=bool(number % 2))
        return x.square().mean()

    return net, loss


def views_changed(batch):
    """Changes in place, of parts of a tensor."""
    net = layers(4)

    def loss():
        x = net(torch.randn(8 * batch, 32))
        y = x.clone()
        y[:, :8].mul_(2)
        y[::2] += x[1::2]
        y.view(-1)[5:50].sigmoid_()
        return (y * x).square().mean() + y.mean()

    return net, loss


def gradients_of_gradients(batch):
    """A penalty on the gradient, as some GANs have."""
    net = layers(3)

    def loss():
        x = torch.randn(8 * batch, 32, requires_grad=True)
        (gradient,) = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)
        return net(x).mean() + (gradient.norm(dim=1) - 1).square().mean()

    return net, loss


class Doubled(torch.autograd.Function):
    """A function of the script's own, which keeps more than it needs."""

    @staticmethod
    def forward(ctx, x):
        y = torch.exp(x)
        ctx.save_for_backward(x, y)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * 2 + 0 * (x * y)


def own_functions(batch):
    """And hooks on tensors."""
    net = layers(4)

    def loss():
        x = net(torch.randn(8 * batch, 32))
        x.register_hook(lambda gradient: gradient * 1.5)
        return Doubled.apply(x).cos().square().mean()

    return net, loss


def looked_at(batch):
    """Memory that the script reads past torch, and random numbers of generators of its own."""
    net, generator = layers(4), torch.Generator().manual_seed(5)

    def loss():
        x = torch.randn(8 * batch, 32, generator=generator)
        kept = [x]
        for layer in net:
            kept.append(layer(kept[-1]))
        noise = torch.empty(8 * batch, 32).uniform_(generator=generator)
        seen = sum(float(one.detach().numpy().sum()) for one in kept[1::3]) + kept[2].tolist()[0][0]
        return (kept[-1] * noise).square().mean() * (1 + 1e-3 * abs(seen))

    return net, loss


def transforms(batch):
    """Spectra, normalized weights, per-sample gradients."""
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32)), nn.Tanh(), nn.Linear(32, 32))

    def loss():
        x = net(torch.randn(8 * batch, 32))
        spectrum = torch.fft.rfft(x, dim=1)
        each = torch.func.vmap(torch.func.grad(lambda row: row.sin().square().sum()))(x)
        return spectrum.abs().mean() + each.square().mean()

    return net, loss


def sparse_gradients(batch):
    net = nn.ModuleDict({"table": nn.Embedding(50, 32, sparse=True), "rest": layers(3)})
    return net, lambda: net["rest"](net["table"](torch.randint(0, 50, (8 * batch,)))).square().mean()


def looked_at_in_a_thread(batch):
    """Another thread hands memory out, which nobody sees."""
    net, arrays = layers(6), []

    def loss():
        x = torch.randn(8 * batch, 32)
        for number, layer in enumerate(net):
            x = layer(x)
            if number % 4 == 0:
                thread = threading.Thread(target=lambda x=x: arrays.append(x.detach().numpy()))
                thread.start()
                thread.join()
        found = sum(float(array.sum()) for array in arrays)
        arrays.clear()
        return (x * found).square().mean()

    return net, loss


def other_shapes(batch):
    """Each batch is of another length."""
    net, number = layers(4), iter(range(10_000))
    return net, lambda: net(torch.randn(8 * batch + 16 * (next(number) % 3), 32)).square().mean()


#: As a library's own code reads it, which no method of a tensor is asked by.
ADDRESS_OF = torch.Tensor.data_ptr


def fill_unseen(tensor, value):
    """What a kernel of a library does that is called with a tensor, past PyTorch's dispatcher."""
    (ctypes.c_float * tensor.numel()).from_address(ADDRESS_OF(tensor))[:] = [
        value + n % 7 for n in range(tensor.numel())
    ]


def filled_by_a_library(batch):
    """Memory that PyTorch has made, empty or zeroed, and a library's own code fills."""
    net = layers(4)

    def loss():
        x = net(torch.randn(8 * batch, 32))
        scale, shift = torch.empty_like(x), torch.zeros(8 * batch, 32)
        fill_unseen(scale, 0.5)
        fill_unseen(shift, -2.0)
        return net(F.relu(x * scale + shift.add_(0.5), inplace=True)).square().mean()

    return net, loss


def memory_of_numpy(batch):
    """An array that numpy writes to between the forward and the backward pass."""
    net, generator = layers(4), np.random.default_rng(3)
    array = np.zeros((8 * batch, 32), np.float16)

    def loss():
        array[:] = generator.random(array.shape)
        found = net((torch.from_numpy(array).float() * 2).sin()).square().mean()
        array[:] = 0
        return found

    return net, loss


PROGRAMS = {
    program.__name__: program
    for program in (
        pictures, language, unrolled, reused_buffer, own_checkpoints, views_changed, gradients_of_gradients, own_functions, looked_at,
        looked_at_in_a_thread, other_shapes, filled_by_a_library, memory_of_numpy, channels_last, recurrent, transforms,
        sparse_gradients,
    )
}  # fmt: skip
