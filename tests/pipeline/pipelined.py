"""Models that are trained over stages, and how they train without."""

import hashlib

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from detrain.adapters.torch.pipeline.tracing import trace
from detrain.pipeline.plan import Plan, Stage


class Block(nn.Module):
    """Of a transformer."""

    def __init__(self, width, dropout):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop, self.rate = nn.Dropout(dropout), dropout

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.into(self.norm(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))


class GPT(nn.Module):
    """Its last layer has the weights of its first; what it returns has no dimension of samples alone."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.tokens, self.places = nn.Embedding(40, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList(Block(16, dropout) for _ in range(3))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x):
        batch, length = x.shape
        y = self.tokens(x) + self.places(torch.arange(length))
        for block in self.blocks:
            y = block(y)
        return self.head(y).view(batch * length, 40)


class Dense(nn.Module):
    """Each convolution takes what all before it have made; batch statistics; in place."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.steps = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(4 * number), nn.ReLU(inplace=True), nn.Conv2d(4 * number, 4, 3, padding=1), nn.Dropout(dropout)
            )
            for number in range(1, 5)
        )  # fmt: skip
        self.last = nn.Linear(20, 40)

    def forward(self, x):
        found = [self.first(x)]
        for step in self.steps:
            found.append(step(torch.cat(found, 1)))
        return self.last(torch.cat(found, 1).mean((2, 3)))


class Recurrent(nn.Module):
    """Layers of LSTM with sums that skip, as GNMT has."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(nn.LSTM(16, 16, batch_first=True) for _ in range(4))
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(16, 40)

    def forward(self, x):
        y = self.tokens(x)
        for number, layer in enumerate(self.layers):
            z, _ = layer(self.drop(y))
            y = y + z if number else z
        return self.head(y)


MODELS = {"gpt": GPT, "dense": Dense, "recurrent": Recurrent}


def loss_of(output, target):
    """The mean over all that is predicted."""
    return F.cross_entropy(output.reshape(-1, 40), target.reshape(-1))


def made(name, dropout=0.0, optimizer=torch.optim.AdamW):
    """A model and its optimizer."""
    torch.manual_seed(0)
    model = MODELS[name](dropout)
    return model, optimizer(model.parameters(), 1e-2)


def batches(name, num_batches=4, size=10):
    """What it is trained on."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_batches):
        if name == "dense":
            yield (
                torch.randn(size, 1, 6, 6, generator=generator),
                torch.randint(0, 40, (size,), generator=generator),
            )
        else:
            tokens = torch.randint(0, 40, (size, 9), generator=generator)
            yield tokens[:, :-1], tokens[:, 1:]


def layers_of(name, dropout=0.0):
    """Names of its layers."""
    model, _ = made(name, dropout)
    return [layer.name for layer in trace(model, [next(batches(name))[0]]).layers]


def plan_of(layers, replicas, chunks=1):
    """As many layers in each stage; devices one after the other."""
    ends = [sum(replicas[: number + 1]) for number in range(len(replicas))]
    count = len(replicas) * chunks
    stages = []
    for number in range(count):
        place = number % len(replicas)
        begin, end = number * len(layers) // count, (number + 1) * len(layers) // count
        devices = tuple(range(ends[place] - replicas[place], ends[place]))
        stages.append(Stage(begin, end, tuple(layers[begin:end]), replicas[place], devices))
    return Plan("by hand", tuple(stages), 1, 0.0, 1.0, 1.0)


def digest(model):
    """Of weights and buffers."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def plainly(name, num_micro_batches, max_norm=None):
    """Trained in one process that adds up the gradients of micro-batches, and clips them if there is a norm; digest and losses."""
    model, optimizer = made(name)
    losses = []
    for x, y in batches(name):
        total = 0.0
        for part, target in zip(x.tensor_split(num_micro_batches), y.tensor_split(num_micro_batches), strict=True):
            loss = loss_of(model(part), target)
            if len(part) != len(x):
                loss = loss * (len(part) / len(x))
            loss.backward()
            total = total + loss.detach()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return digest(model), losses


def piped(pipeline, name, num_batches=4, size=10, begin=0, on_step=lambda number, pipeline: pipeline):
    """Digest and losses of a training by a pipeline.

    `on_step`: called before each step but the first; the training goes on with what it returns.
    """
    losses = []
    for number, (x, y) in enumerate(batches(name, num_batches, size)):
        if number < begin:
            continue
        pipeline = on_step(number, pipeline) if number else pipeline
        loss = pipeline.step(x, target=y)
        if loss is not None:
            losses.append(loss.item())
    model = pipeline.gather()
    return digest(model), losses or pipeline.losses()
