"""What an entry of the table is, and what every script of it begins with.

What a program's loops are is written where they stand, at the end of their lines: `# <outer>`, `# <epoch>`, `# <batch>`,
and `# <dl>` at the data-loading call, `# <update>` at the weight update. Two of them share a line as `# <batch> <dl>`.
`<outer1>`, `<outer2>` stand where the order of the lines is not that of the loops. Several `<dl>` or `<update>` mean
that each of these lines is right.
"""

from dataclasses import dataclass, field
from typing import Any

ON_DATASET, ON_CUSTOM = "ON_DATASET", "ON_CUSTOM"


@dataclass(frozen=True)
class Loader:
    """What must be said of a data loader. None is not looked at; names are patterns as those of files (`*`)."""

    full_name: str = "*"
    next: tuple[str, str] | None = None
    loop_type: str | None = None
    persistent: bool | None = None
    iter: tuple[str, str] | None = None
    init: tuple[str, str] | None = None


TORCH = Loader(
    "torch.utils.data.dataloader.DataLoader", ("torch.utils.data.dataloader", "*.__next__"), ON_DATASET, persistent=True
)
LIST = Loader("builtins.list", loop_type=ON_DATASET, persistent=True)


def called(method: str, persistent: bool | None = True) -> Loader:
    """A user's class of which the batch loop calls a method: `called("data.Data.slurp")`."""
    module, owner, name = method.rsplit(".", 2)
    full_name = f"{module}.{owner}"
    return Loader(full_name, (module, f"{owner}.{name}"), ON_CUSTOM, persistent, init=(module, f"{owner}.__init__"))


def iterated(owner: str, step: str, persistent: bool | None = True, begin: str = "") -> Loader:
    """A user's class that the batch loop's header iterates: `iterated("train.Data", "Data.__next__")`."""
    module, name = owner.rsplit(".", 1)
    first = (module, begin or f"{name}.__iter__") if begin != "-" else None
    return Loader(owner, (module, step), ON_DATASET, persistent, iter=first)


def generated(name: str, persistent: bool | None = True) -> Loader:
    """A generator function: `generated("train.batches")`."""
    module, function = name.rsplit(".", 1)
    return Loader(name, (module, function), ON_DATASET, persistent)


def computed(name: str, persistent: bool | None = True) -> Loader:
    """A plain function that reads what is global: `computed("train.get_batch")`."""
    module, function = name.rsplit(".", 1)
    return Loader(name, (module, function), ON_CUSTOM, persistent)


@dataclass(frozen=True)
class Program:
    """One script with the files that it needs beside it, how it is traced, and what must be found beyond the markers."""

    name: str
    files: dict[str, str]
    script: str = "train.py"
    arguments: str = "--n 64"
    vary: str = ""  # the arguments of round two; without them there is no round two
    diff_size: int | None = None
    loaders: tuple[Loader, ...] = ()  # the first is `dataloader`; none: nothing is asked about them
    may_be_more: bool = False  # whether other loaders may stand in `dataloaders`
    wrapper: tuple[str, str] | None = None  # module and function that holds the data-loading call
    is_training: bool = True
    library: dict[str, str] = field(default_factory=dict)  # files among the installed packages


def program(name: str, text: str | dict[str, str], **details: Any) -> Program:
    """A program whose script begins with the prelude."""
    files = {"train.py": text} if isinstance(text, str) else dict(text)
    script = details.get("script", "train.py")
    files[script] = PRELUDE + files[script]
    return Program(name, files, **details)


#: Round two for a script that takes its size from `--n`.
VARIED = {"vary": "--n 96"}
VARIED_BY_32 = {"vary": "--n 96", "diff_size": 32}

PRELUDE = """\
import argparse, asyncio, collections, contextlib, copy, csv, functools, itertools, os
import queue, random, socket, threading
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=64)
parser.add_argument("--data", default="small")
args = parser.parse_args()
random.seed(1)
np.random.seed(2)
torch.manual_seed(3)


def points(count):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=generator)
    return x, (x.sum(1) > 0).long()


def net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def learn(model, optimizer, x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    return loss.item()


"""

#: A model, its optimizer, and a torch loader, for programs that are about something else.
BEGIN = """\
model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True)
"""
