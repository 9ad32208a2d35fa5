"""Generators, plain functions and lists that hand out the batches."""

from .program import LIST, ON_CUSTOM, VARIED, VARIED_BY_32, Loader, computed, generated, program

_BATCHES = """\
def batches(x, y, size=8):
    for rows in torch.randperm(len(x)).split(size):
        yield x[rows], y[rows]


x, y = points(args.n)
model = net()
optimizer = torch.optim.Adam(model.parameters())
"""
#: As in nanoGPT: a global array, and a function that cuts windows out of it.
_GET_BATCH = """\
train_data = np.arange(args.n, dtype=np.int64) ** 2 % 11
held_data = np.arange(40, dtype=np.int64) % 11
model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def get_batch(split):
    data = train_data if split == "train" else held_data
    places = torch.randint(len(data) - 6, (4,)).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + 6]) for i in places])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 7]) for i in places])
    return x, y


@torch.no_grad()
def estimate_loss():
    found = {}
    model.eval()
    for split in ("train", "held"):
        losses = torch.zeros(3)
        for k in range(3):
            x, y = get_batch(split)
            losses[k] = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        found[split] = losses.mean().item()
    model.train()
    return found
"""

FUNCTIONS = [
    program(
        "generator_function",
        _BATCHES
        + """\
for epoch in range(2):  # <epoch>
    for xs, ys in batches(x, y):  # <batch> <dl>
        learn(model, optimizer, xs, ys)
        optimizer.step()  # <update>
""",
        loaders=(generated("train.batches"),),
        **VARIED_BY_32,
    ),
    program(
        "generator_function_in_another_file",
        {
            "train.py": """\
from reading import stream

model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for batch, (x, y) in enumerate(stream(args.n)):  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
            "reading.py": """\
import numpy as np
import torch


def stream(count):
    rng = np.random.default_rng(7)
    rows = [rng.standard_normal(6).tolist() for _ in range(count)]
    while rows:
        taken, rows = rows[:8], rows[8:]
        x = torch.tensor(taken)
        yield x, (x.sum(1) > 0).long()
""",
        },
        loaders=(generated("reading.stream"),),
        **VARIED,
    ),
    program(
        "generator_made_anew_at_its_end",
        _BATCHES
        + """\
stream = batches(x, y)
for step in range(20):  # <batch>
    try:
        xs, ys = next(stream)  # <dl>
    except StopIteration:
        stream = batches(x, y)
        xs, ys = next(stream)  # <dl>
    learn(model, optimizer, xs, ys)
    optimizer.step()  # <update>
""",
        loaders=(generated("train.batches"),),
        **VARIED_BY_32,
    ),
    program(
        "generator_method",
        """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)

    def in_batches_of(self, size):
        for begin in range(0, len(self.x), size):
            yield self.x[begin : begin + size], self.y[begin : begin + size]


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for x, y in data.in_batches_of(8):  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(Loader("train.Data*", ("train", "Data.in_batches_of"), persistent=True),),
        **VARIED_BY_32,
    ),
    program(
        "generators_in_a_row",
        """\
def shuffled(x, y):
    for row in torch.randperm(len(x)).tolist():
        yield x[row], y[row]


def batched(rows, size):
    while taken := list(itertools.islice(rows, size)):
        yield torch.stack([x for x, _ in taken]), torch.stack([y for _, y in taken])


x, y = points(args.n)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for xs, ys in batched(shuffled(x, y), 8):  # <batch> <dl>
        learn(model, optimizer, xs, ys)
        optimizer.step()  # <update>
""",
        loaders=(generated("train.batched"),),
        may_be_more=True,
        **VARIED_BY_32,
    ),
    program(
        "function_that_reads_a_global",
        _GET_BATCH
        + """\
step = 0
while True:  # <batch>
    if step % 5 == 0:
        print(step, estimate_loss())
    x, y = get_batch("train")  # <dl>
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()  # <update>
    step += 1
    if step > 20:
        break
""",
        loaders=(computed("train.get_batch"),),
        **VARIED_BY_32,
    ),
    program(
        "function_called_ahead_of_its_batch",
        _GET_BATCH
        + """\
x, y = get_batch("train")
for step in range(20):  # <batch>
    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
    x, y = get_batch("train")  # <dl>
    loss.backward()
    optimizer.step()  # <update>
    optimizer.zero_grad(set_to_none=True)
    if step % 5 == 4:
        print(step, estimate_loss())
""",
        loaders=(computed("train.get_batch"),),
        **VARIED_BY_32,
    ),
    program(
        "function_called_for_each_micro_step",
        _GET_BATCH
        + """\
for step in range(10):  # <batch>
    for micro_step in range(3):
        x, y = get_batch("train")  # <dl>
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 3
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # <update>
    optimizer.zero_grad(set_to_none=True)
""",
        loaders=(computed("train.get_batch"),),
        **VARIED_BY_32,
    ),
    program(
        "closure_that_holds_the_data",
        """\
def make_sampler(count):
    x, y = points(count)
    rng = random.Random(7)

    def draw(size):
        rows = rng.sample(range(len(x)), size)
        return x[rows], y[rows]

    return draw


draw = make_sampler(args.n)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = draw(8)  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(Loader("train.*draw", ("train", "*draw"), ON_CUSTOM, True),),
        **VARIED_BY_32,
    ),
    program(
        "list_of_batches",
        """\
x, y = points(args.n)
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, args.n, 8)]
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):  # <epoch>
    random.shuffle(batches)
    for batch, (xs, ys) in enumerate(batches):  # <batch> <dl>
        learn(model, optimizer, xs, ys)
        optimizer.step()  # <update>
""",
        vary="--n 96",
        diff_size=4,
        loaders=(LIST,),
    ),
    program(
        "list_by_index",
        """\
x, y = points(args.n)
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, args.n, 8)]
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):  # <epoch>
    for batch in range(len(batches)):  # <batch>
        xs, ys = batches[batch]
        learn(model, optimizer, xs, ys)
        optimizer.step()  # <update>
""",
    ),
    program(
        "slices_of_a_permutation",
        """\
x, y = points(args.n)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):  # <epoch>
    order = torch.randperm(args.n)
    for begin in range(0, args.n, 8):  # <batch>
        rows = order[begin : begin + 8]
        learn(model, optimizer, x[rows], y[rows])
        optimizer.step()  # <update>
""",
    ),
    program(
        "iterator_over_zipped_chunks",
        """\
x, y = points(args.n)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):  # <epoch>
    for xs, ys in zip(x.split(8), y.split(8)):  # <batch>
        learn(model, optimizer, xs, ys)
        optimizer.step()  # <update>
""",
    ),
]
