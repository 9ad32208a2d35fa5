"""Loops, calls and updates on either side of files, packages and installed libraries."""

from .program import BEGIN, ON_DATASET, TORCH, VARIED, Loader, called, program

_LIBRARY = {
    "fitlib/__init__.py": "from fitlib.trainer import Trainer, advance, train_epoch\n",
    "fitlib/trainer.py": """\
import torch.nn.functional as F


def advance(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def train_epoch(model, optimizer, loader):
    total = 0.0
    for batch in loader:  #IN_EPOCH
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  #STEP_IN_EPOCH
        total += loss.item()
    return total


class Trainer:
    def __init__(self, epochs, callbacks=()):
        self.epochs, self.callbacks = epochs, callbacks

    def fit(self, model, optimizer, loader):
        for callback in self.callbacks:
            callback(self, "start", None)
        for self.epoch in range(self.epochs):  #EPOCHS
            for self.batch, (x, y) in enumerate(loader):  #BATCHES
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                if self.callbacks:
                    for callback in self.callbacks:
                        callback(self, "batch", loss)
                else:
                    optimizer.step()  #STEP
                    optimizer.zero_grad()
""",
}


def _library(**markers: str) -> dict[str, str]:
    """The library with markers at some of its lines."""
    files = dict(_LIBRARY)
    text = files["fitlib/trainer.py"]
    for place in ("STEP_IN_EPOCH", "IN_EPOCH", "EPOCHS", "BATCHES", "STEP"):
        text = text.replace(f"  #{place}\n", f"  # {markers[place]}\n" if place in markers else "\n")
    return {**files, "fitlib/trainer.py": text}


FILES = [
    program(
        "batch_loop_in_another_file",
        {
            "train.py": """\
from engine import train_one_epoch

"""
            + BEGIN
            + """\
for epoch in range(2):  # <epoch>
    print(epoch, train_one_epoch(model, optimizer, loader))
""",
            "engine.py": """\
import torch.nn.functional as F


def train_one_epoch(model, optimizer, loader):
    total = 0.0
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
        total += loss.item()
    return total
""",
        },
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "update_in_a_third_file",
        {
            "train.py": """\
import lib.engine

"""
            + BEGIN
            + """\
for epoch in range(2):  # <epoch>
    lib.engine.run(model, optimizer, loader)
""",
            "lib/__init__.py": "",
            "lib/engine.py": """\
from .steps import advance


def run(model, optimizer, loader):
    for batch in loader:  # <batch> <dl>
        advance(model, optimizer, batch)
""",
            "lib/steps.py": """\
import torch.nn.functional as F


def apply(optimizer):
    optimizer.step()  # <update>


def advance(model, optimizer, batch):
    x, y = batch
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    apply(optimizer)
""",
        },
        loaders=(TORCH,),
    ),
    program(
        "script_below_the_files_that_it_uses",
        {
            "scripts/train.py": """\
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from engine import fit

"""
            + BEGIN
            + "fit(model, optimizer, loader)\n",
            "engine.py": """\
import torch.nn.functional as F


def fit(model, optimizer, loader):
    for epoch in range(2):  # <epoch>
        for x, y in loader:  # <batch> <dl>
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()  # <update>
""",
        },
        script="scripts/train.py",
        loaders=(TORCH,),
    ),
    program(
        "trainer_in_a_library",
        "from fitlib import Trainer\n" + BEGIN + "Trainer(2).fit(model, optimizer, loader)\n",
        library=_library(EPOCHS="<epoch>", BATCHES="<batch> <dl>", STEP="<update>"),
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "library_steps_through_a_callback",
        "from fitlib import Trainer\n"
        + BEGIN
        + """\
def on_event(trainer, event, loss):
    if event == "batch":
        optimizer.step()  # <update>
        optimizer.zero_grad()


Trainer(2, [on_event]).fit(model, optimizer, loader)
""",
        library=_library(EPOCHS="<epoch>", BATCHES="<batch> <dl>"),
        loaders=(TORCH,),
    ),
    program(
        "batch_loop_in_a_library",
        "from fitlib import train_epoch\n"
        + BEGIN
        + """\
for epoch in range(2):  # <epoch>
    print(epoch, train_epoch(model, optimizer, loader))
""",
        library=_library(IN_EPOCH="<batch> <dl>", STEP_IN_EPOCH="<update>"),
        loaders=(TORCH,),
    ),
    program(
        "step_in_a_library",
        "from fitlib import advance\n"
        + BEGIN
        + """\
for epoch in range(2):  # <epoch>
    for batch in loader:  # <batch> <dl>
        advance(model, optimizer, batch)  # <update>
""",
        library=_library(),
        loaders=(TORCH,),
    ),
    program(
        "library_iterates_a_class_of_the_user",
        "from fitlib import Trainer\n"
        + """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)

    def __iter__(self):
        return zip(self.x.split(8), self.y.split(8))


model = net()
optimizer = torch.optim.Adam(model.parameters())
Trainer(2).fit(model, optimizer, Data(args.n))
""",
        library=_library(EPOCHS="<epoch>", BATCHES="<batch> <dl>", STEP="<update>"),
        loaders=(Loader("train.Data", loop_type=ON_DATASET, persistent=True),),
        may_be_more=True,
        **VARIED,
    ),
    program(
        "loader_in_a_module_of_its_own",
        {
            "train.py": """\
from sources import registry

model = net()
optimizer = torch.optim.Adam(model.parameters())
registry.open(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = registry.current.spill(8)  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
            "sources/__init__.py": "",
            "sources/registry.py": """\
from .tables import Table

current = None


def open(count):
    global current
    current = Table(count)
""",
            "sources/tables.py": """\
import torch


class Table:
    def __init__(self, count):
        self.columns = {f"c{i}": [(i * j) % 5 / 5 for j in range(count)] for i in range(6)}

    def spill(self, size):
        rows = torch.randint(len(self.columns["c0"]), (size,)).tolist()
        x = torch.tensor([[column[row] for column in self.columns.values()] for row in rows])
        return x, (x.sum(1) > 2).long()
""",
        },
        loaders=(called("sources.tables.Table.spill"),),
        vary="--n 96",
        diff_size=32,
    ),
]
