"""Data loaders that are the user's own classes, and how they are called."""

from .program import ON_CUSTOM, VARIED, VARIED_BY_32, Loader, called, iterated, program

#: A class that hands out eight rows at a time; its method's name is filled in.
_DATA = """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)
        self.rng = np.random.RandomState(7)

    def {}(self, size=8):
        rows = self.rng.choice(len(self.x), size, replace=False)
        return self.x[rows], self.y[rows]


model = net()
optimizer = torch.optim.Adam(model.parameters())
"""
_LEARN = """\
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
"""

CLASSES = [
    program(
        "oddly_named_method",
        _DATA.format("slurp_some")
        + """\
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(args.n // 8):  # <batch>
        x, y = data.slurp_some(8)  # <dl>
"""
        + _LEARN,
        loaders=(called("train.Data.slurp_some"),),
        **VARIED_BY_32,
    ),
    program(
        "method_called_through_another_object",
        _DATA.format("feed")
        + """\
class Trainer:
    def __init__(self, count):
        self.data, self.steps = Data(count), count // 8

    def fit(self):
        for self.epoch in range(2):  # <epoch>
            for self.step in range(self.steps):  # <batch>
                x, y = self.data.feed()  # <dl>
                learn(model, optimizer, x, y)
                optimizer.step()  # <update>


Trainer(args.n).fit()
""",
        loaders=(called("train.Data.feed"),),
        **VARIED_BY_32,
    ),
    program(
        "loader_is_called_itself",
        _DATA.format("__call__")
        + """\
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data()  # <dl>
"""
        + _LEARN,
        loaders=(called("train.Data.__call__"),),
        **VARIED,
    ),
    program(
        "property_gives_the_next_batch",
        _DATA.format("draw").replace("    def draw(self, size=8):", "    @property\n    def fresh(self, size=8):")
        + """\
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data.fresh  # <dl>
"""
        + _LEARN,
        loaders=(called("train.Data.fresh"),),
        **VARIED_BY_32,
    ),
    program(
        "static_method",
        """\
class Data:
    x, y = points(args.n)

    @staticmethod
    def draw(size):
        rows = torch.randint(len(Data.x), (size,))
        return Data.x[rows], Data.y[rows]


model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = Data.draw(8)  # <dl>
"""
        + _LEARN,
        loaders=(Loader("train.Data*", ("train", "Data.draw"), ON_CUSTOM, True),),
        **VARIED_BY_32,
    ),
    program(
        "method_of_the_base_class",
        _DATA.format("draw")
        .replace("class Data:", "class Source:")
        .replace("\n\nmodel", "\n\nclass Data(Source):\n    name = 'points'\n\n\nmodel")
        + """\
sources = {"train": Data(args.n)}
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = sources["train"].draw()  # <dl>
"""
        + _LEARN,
        loaders=(Loader("train.Data", ("train", "*.draw"), ON_CUSTOM, True),),
        **VARIED,
    ),
    program(
        "class_with_slots",
        """\
class Data:
    __slots__ = ("place", "rows")

    def __init__(self, count):
        x, y = points(count)
        self.rows = collections.deque(zip(x, y))
        self.place = 0

    def turn(self, size):
        taken = [self.rows[i] for i in range(size)]
        self.rows.rotate(-size)
        self.place += size
        return torch.stack([x for x, _ in taken]), torch.stack([y for _, y in taken])


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data.turn(8)  # <dl>
"""
        + _LEARN,
        loaders=(called("train.Data.turn"),),
        **VARIED_BY_32,
    ),
    program(
        "class_is_its_own_iterator",
        """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)
        self.place = 0

    def __iter__(self):
        self.place = 0
        return self

    def __next__(self):
        begin, self.place = self.place, self.place + 8
        if begin >= len(self.x):
            raise StopIteration
        return self.x[begin : self.place], self.y[begin : self.place]


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for x, y in data:  # <batch> <dl>
"""
        + _LEARN,
        loaders=(iterated("train.Data", "Data.__next__"),),
        **VARIED_BY_32,
    ),
    program(
        "class_with_a_generator_as_iter",
        """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)

    def __len__(self):
        return len(self.x) // 8

    def __iter__(self):
        for rows in torch.randperm(len(self.x)).split(8):
            yield self.x[rows], self.y[rows]


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for batch, (x, y) in enumerate(data):  # <batch> <dl>
"""
        + _LEARN,
        loaders=(iterated("train.Data", "Data.__iter__"),),
        **VARIED,
    ),
    program(
        "class_with_getitem_only",
        """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)

    def __getitem__(self, batch):
        begin = 8 * batch
        if begin >= len(self.x):
            raise IndexError(batch)
        return self.x[begin : begin + 8], self.y[begin : begin + 8]


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for x, y in data:  # <batch> <dl>
"""
        + _LEARN,
        loaders=(iterated("train.Data", "Data.__getitem__", begin="-"),),
        **VARIED_BY_32,
    ),
    program(
        "class_with_an_iterator_apart",
        """\
class Cursor:
    def __init__(self, data):
        self.data, self.order = data, torch.randperm(len(data.x)).split(8)
        self.place = -1

    def __iter__(self):
        return self

    def __next__(self):
        self.place += 1
        if self.place == len(self.order):
            raise StopIteration
        rows = self.order[self.place]
        return self.data.x[rows], self.data.y[rows]


class Data:
    def __init__(self, count):
        self.x, self.y = points(count)

    def __iter__(self):
        return Cursor(self)


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
for epoch in range(2):  # <epoch>
    for x, y in data:  # <batch> <dl>
"""
        + _LEARN,
        loaders=(iterated("train.Data", "Cursor.__next__"),),
        **VARIED,
    ),
    program(
        "loader_of_held_out_data_is_another_class",
        _DATA.format("draw")
        + """\
class Held(Data):
    def peek(self):
        return self.draw(16)


data, held = Data(args.n), Held(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(4):
        with torch.no_grad():
            x, y = held.peek()
            print(F.cross_entropy(model(x), y).item())
    for batch in range(8):  # <batch>
        x, y = data.draw()  # <dl>
"""
        + _LEARN,
        loaders=(called("train.Data.draw"),),
        **VARIED,
    ),
    program(
        "meter_as_long_as_the_data",
        _DATA.format("draw")
        + """\
class Meter:
    def __init__(self, count):
        self.seen, self.place = [0.0] * count, 0

    def add(self, value):
        self.seen[self.place % len(self.seen)] = value
        self.place += 1


data, meter = Data(args.n), Meter(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data.draw()  # <dl>
        loss = learn(model, optimizer, x, y)
        optimizer.step()  # <update>
        meter.add(loss)
""",
        loaders=(called("train.Data.draw"),),
        **VARIED_BY_32,
    ),
    program(
        "weights_and_points_from_two_classes",
        _DATA.format("draw")
        + """\
class Weights:
    def __init__(self, count):
        self.values = [1.0 + place % 3 for place in range(count)]

    def sample(self, size):
        return torch.tensor(random.sample(self.values, size))


data, weights = Data(args.n), Weights(args.n)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data.draw()  # <dl>
        w = weights.sample(8)  # <dl>
        loss = (w * F.cross_entropy(model(x), y, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
""",
        loaders=(called("train.Data.draw"), called("train.Weights.sample")),
        **VARIED_BY_32,
    ),
]
