"""The data sets and samplers of torch."""

from .program import BEGIN, ON_DATASET, TORCH, VARIED, VARIED_BY_32, Loader, program

TORCH_LOADERS = [
    program(
        "map_style_data_set",
        """\
class Points(Dataset):
    def __init__(self, count):
        self.x, self.y = points(count)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + random.random(), self.y[index]


model = net()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Points(args.n), batch_size=8, shuffle=True, drop_last=True)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "iterable_data_set",
        """\
class Stream(IterableDataset):
    def __init__(self, count):
        self.x, self.y = points(count)

    def __iter__(self):
        for place in torch.randperm(len(self.x)).tolist():
            yield self.x[place], self.y[place]


model = net()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Stream(args.n), batch_size=8)
for epoch in range(2):  # <epoch>
    for batch, (x, y) in enumerate(loader):  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "workers_2",
        """\
class Points(Dataset):
    def __init__(self, count):
        self.rows = [(random.random(), place % 2) for place in range(count)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        value, label = self.rows[index]
        return torch.full((6,), value), label


if __name__ == "__main__":
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Points(args.n), batch_size=8, shuffle=True, num_workers=2)
    for epoch in range(2):  # <epoch>
        for x, y in loader:  # <batch> <dl>
            learn(model, optimizer, x, y)
            optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "batch_sampler",
        """\
data = TensorDataset(*points(args.n))
loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 8, drop_last=False))
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "collate_into_dicts",
        """\
def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "y": torch.stack([y for _, y in rows])}


loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8, collate_fn=collate)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for batch in loader:  # <batch> <dl>
        for key in batch:
            batch[key] = batch[key].to("cpu")
        learn(model, optimizer, batch["x"], batch["y"])
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "two_loaders_in_one_zip",
        """\
labelled = DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True)
unlabelled = DataLoader(TensorDataset(torch.randn(2 * args.n, 6)), batch_size=16, shuffle=True)
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for (x, y), (z,) in zip(labelled, unlabelled):  # <batch> <dl>
        loss = F.cross_entropy(model(x), y) + model(z).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "endless_cycle_around_a_loader",
        """\
def cycle(loader):
    while True:
        for batch in loader:
            yield batch


model = net()
optimizer = torch.optim.Adam(model.parameters())
batches = cycle(DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True))
for step in range(20):  # <batch>
    x, y = next(batches)  # <dl>
    learn(model, optimizer, x, y)
    optimizer.step()  # <update>
""",
        loaders=(Loader(loop_type=ON_DATASET, persistent=True),),
        may_be_more=True,
        **VARIED,
    ),
    program(
        "loader_of_a_subclass",
        """\
class Shuffled(DataLoader):
    def __init__(self, count):
        super().__init__(TensorDataset(*points(count)), batch_size=8, shuffle=True)

    def describe(self):
        return len(self)


model = net()
optimizer = torch.optim.Adam(model.parameters())
loader = Shuffled(args.n)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
    print(loader.describe())
""",
        loaders=(Loader(next=("*", "*.__next__"), loop_type=ON_DATASET, persistent=True),),
        **VARIED,
    ),
    program(
        "embedding_as_long_as_the_data",
        """\
class Factors(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.rows = nn.Embedding(count, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, index):
        return self.head(self.rows(index))


_, y = points(args.n)
loader = DataLoader(TensorDataset(torch.arange(args.n), y), batch_size=8, shuffle=True)
model = Factors(args.n)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for index, label in loader:  # <batch> <dl>
        learn(model, optimizer, index, label)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "loader_is_recognised_without_a_second_round",
        BEGIN
        + """\
held = DataLoader(TensorDataset(*points(24)), batch_size=8)
history = [0.0] * args.n
for epoch in range(2):  # <epoch>
    for batch, (x, y) in enumerate(loader):  # <batch> <dl>
        history[batch] = learn(model, optimizer, x, y)
        optimizer.step()  # <update>
    with torch.no_grad():
        print(sum(F.cross_entropy(model(x), y).item() for x, y in held))
""",
        loaders=(TORCH,),
    ),
]
