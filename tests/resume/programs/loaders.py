"""`DataLoader`, with and without workers, and what users wrap around it."""


def _loop(loader: str, header: str = "for batch, (x, y) in enumerate(loader):", before: str = "") -> str:
    return f"""\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = {loader}
{before}
for epoch in range(3):
    {header}
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
"""


_PLAIN = "DataLoader(Points(), batch_size=4, shuffle=True)"
_COUNT = "batch = -1\n    for x, y in {}:\n        batch += 1"

_KEEPING_WORKERS = """\
class Jitter:
    generator = None

    def __call__(self, x):
        if self.generator is None:
            self.generator = np.random.default_rng(torch.utils.data.get_worker_info().id)
        return x * float(self.generator.uniform(0.5, 1.5))


class Counted(Points):
    def __init__(self):
        super().__init__()
        self.jitter, self.calls = Jitter(), 0

    def __getitem__(self, index):
        self.calls += 1
        x, y = super().__getitem__(index)
        return self.jitter(x) + 0.01 * self.calls, y


part, _ = torch.utils.data.random_split(Counted(), [40, 8])
loader = DataLoader(part, batch_size=4, shuffle=True, num_workers=2%s)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
"""

LOADERS = {
    "loader_enumerate": _loop(_PLAIN),
    "loader_workers_1": _loop("DataLoader(Points(), batch_size=4, shuffle=True, num_workers=1)"),
    "loader_workers_2": _loop("DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)"),
    "loader_workers_4": _loop("DataLoader(Points(), batch_size=4, shuffle=True, num_workers=4)"),
    "loader_workers_2_persistent": _loop(
        "DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)"
    ),
    "loader_prefetch_5": _loop("DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, prefetch_factor=5)"),
    "loader_plain_for": _loop(_PLAIN, _COUNT.format("loader")),
    "loader_enumerate_start": _loop(_PLAIN, "for batch, (x, y) in enumerate(loader, start=1):"),
    "loader_zip_range": _loop(_PLAIN, "for batch, (x, y) in zip(range(100), loader):"),
    "loader_tqdm": _loop(_PLAIN, _COUNT.format("tqdm(loader)")),
    "loader_tqdm_workers_2": _loop(
        "DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)", _COUNT.format("tqdm(loader)")
    ),
    "loader_islice": _loop(_PLAIN, "for batch, (x, y) in enumerate(itertools.islice(loader, 9)):"),
    "loader_islice_workers_2": _loop(
        "DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)",
        "for batch, (x, y) in enumerate(itertools.islice(loader, 9)):",
    ),
    "loader_enumerate_tqdm": _loop(_PLAIN, "for batch, (x, y) in enumerate(tqdm(loader)):"),
    "loader_tqdm_enumerate": _loop(_PLAIN, "for batch, (x, y) in tqdm(enumerate(loader), total=len(loader)):"),
    "loader_tqdm_enumerate_workers_2": _loop(
        "DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)",
        "for batch, (x, y) in tqdm(enumerate(loader), total=len(loader)):",
    ),
    "loader_batch_sampler": _loop(
        "DataLoader(Points(), batch_sampler=BatchSampler(torch.utils.data.RandomSampler(Points()), 4, False))"
    ),
    "loader_weighted_sampler": _loop(
        "DataLoader(Points(), batch_size=4, sampler=torch.utils.data.WeightedRandomSampler([1.0, 2.0] * 24, 48))"
    ),
    "loader_own_generator": _loop(
        "DataLoader(Points(), batch_size=4, shuffle=True, generator=generator)",
    ).replace("loader = ", "generator = torch.Generator().manual_seed(5)\nloader = ", 1),
    "loader_own_generator_workers_2": _loop(
        "DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, generator=generator)",
    ).replace("loader = ", "generator = torch.Generator().manual_seed(5)\nloader = ", 1),
    "loader_subsets": _loop(
        "DataLoader(torch.utils.data.random_split(Points(64), [48, 16])[0], batch_size=4, shuffle=True, drop_last=True)"
    ),
    "loader_rebuilt_each_epoch": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(3):
    loader = DataLoader(Points(), batch_size=4 + 2 * epoch, shuffle=True, num_workers=epoch)
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "loader_zip_two": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
labelled = DataLoader(Points(), batch_size=4, shuffle=True)
unlabelled = DataLoader(Points(60), batch_size=4, shuffle=True, num_workers=1)
for epoch in range(3):
    for batch, ((x, y), (more, _)) in enumerate(zip(labelled, unlabelled)):
        loss = F.cross_entropy(model(x), y) + 0.1 * model(more).softmax(1).log().mean().neg()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(epoch, batch, loss.item())
save(model=model, optimizer=optimizer)
""",
    "loader_tqdm_postfix": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
for epoch in range(3):
    bar = tqdm(enumerate(loader), total=len(loader), desc=f"epoch {epoch}")
    running = 0.0
    for batch, (x, y) in bar:
        loss = step(model, optimizer, x, y)
        running += loss
        bar.set_postfix(loss=running / (batch + 1))
        log(epoch, batch, loss)
    print("epoch", epoch, "done", running)
save(model=model, optimizer=optimizer)
""",
    "loader_tqdm_with_update": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in tqdm(range(3)):
    with tqdm(total=len(loader)) as bar:
        for batch, (x, y) in enumerate(loader):
            log(epoch, batch, step(model, optimizer, x, y))
            bar.update(1)
save(model=model, optimizer=optimizer)
""",
    "sampler_set_epoch": """\
class EpochSampler(Sampler):
    def __init__(self, count):
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.count

    def __iter__(self):
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.tolist())


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = EpochSampler(48)
loader = DataLoader(Points(), batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, sampler=sampler)
""",
    "sampler_generator_function": """\
class LongFirst(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count // 4

    def __iter__(self):
        order = np.random.permutation(self.count)
        for start in range(0, self.count, 4):
            chosen = order[start : start + 4].tolist()
            random.shuffle(chosen)
            yield chosen


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_sampler=LongFirst(48), num_workers=2)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "sampler_generator_function_no_workers": """\
class LongFirst(Sampler):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count // 4

    def __iter__(self):
        order = np.random.permutation(self.count)
        for start in range(0, self.count, 4):
            chosen = order[start : start + 4].tolist()
            random.shuffle(chosen)
            yield chosen


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_sampler=LongFirst(48))
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "distributed_sampler": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = Points()
sampler = torch.utils.data.DistributedSampler(data, num_replicas=2, rank=0)
loader = DataLoader(data, batch_size=2, sampler=sampler, num_workers=2)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "batches_as_dicts": """\
def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "y": torch.stack([y for _, y in rows]), "noise": random.random()}


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True, collate_fn=collate, num_workers=2)
for epoch in range(3):
    for number, batch in enumerate(loader):
        log(epoch, number, step(model, optimizer, batch["x"] + batch["noise"], batch["y"]))
save(model=model, optimizer=optimizer, last=batch)
""",
    "batches_as_dataclasses": """\
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    sizes: list = dataclasses.field(default_factory=list)


def collate(rows):
    return Batch(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]), [len(rows)])


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True, collate_fn=collate)
for epoch in range(3):
    for number, batch in enumerate(loader):
        log(epoch, number, step(model, optimizer, batch.x, batch.y))
save(model=model, optimizer=optimizer, last=batch)
""",
    "validation_loader_with_workers": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
held_out = DataLoader(Points(30), batch_size=10, num_workers=1)
for epoch in range(3):
    model.train()
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    print("validating", epoch)
    print("validation", epoch, evaluate(model, held_out))
save(model=model, optimizer=optimizer)
""",
    "entropy_drawn_by_workers": """\
import uuid


class Entropic(Dataset):
    def __init__(self):
        self.points = Points()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        x, y = self.points[index]
        noise = torch.from_numpy(np.random.default_rng().normal(size=6).astype(np.float32))
        return x + 0.1 * noise + uuid.uuid4().int % 100 / 1000, y


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Entropic(), batch_size=4, shuffle=True, num_workers=2)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        x = x + int.from_bytes(os.urandom(1), "big") / 1000
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "generators_in_many_places_of_workers": """\
of_the_module = np.random.default_rng(42)


def shaking(seed):
    generator = np.random.RandomState(seed)
    return lambda x: x + 0.1 * float(generator.uniform())


class Collate:
    def __init__(self):
        self.generator = random.Random(3)

    def __call__(self, pairs):
        x, y = torch.utils.data.default_collate(pairs)
        return x * self.generator.uniform(0.5, 1.5), y


class Shaken(Dataset):
    def __init__(self):
        self.points, self.shake = Points(), shaking(7)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        x, y = self.points[index]
        return self.shake(x) + torch.from_numpy(of_the_module.normal(size=6).astype(np.float32)), y


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Shaken(), batch_size=4, shuffle=True, num_workers=2, collate_fn=Collate())
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "persistent_workers_of_old": """\
class Growing(Dataset):
    def __init__(self):
        self.points, self.strength = Points(), 0.0

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        x, y = self.points[index]
        return x + self.strength, y


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = Growing()
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
for epoch in range(3):
    data.strength = epoch / 10  # which the workers never see
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    print("behind", epoch, flush=True)
    time.sleep(0.5)
save(model=model, optimizer=optimizer)
""",
    "stream_of_workers_kept_over_epochs": """\
class Stream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        points = Points()
        for index in range(worker.id, 48, worker.num_workers):
            x, y = points[index]
            yield x + random.random() / 10, y


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Stream(), batch_size=4, num_workers=2)
feed = iter(loader)
for epoch in range(4):
    for batch in range(8):
        try:
            x, y = next(feed)
        except StopIteration:
            feed = iter(loader)
            x, y = next(feed)
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "state_kept_by_workers": _KEEPING_WORKERS % "",
    "state_kept_by_persistent_workers": _KEEPING_WORKERS % ", persistent_workers=True",
}
