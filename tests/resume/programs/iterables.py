"""What is not a `DataLoader`: ranges, lists, generators, iterators that are taken from by hand."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
_END = "save(model=model, optimizer=optimizer)\n"

ITERABLES = {
    "range_random_indices": _BEGIN
    + """\
data = Points(shake=False)
for epoch in range(3):
    order = torch.randperm(48)
    for batch in range(12):
        chosen = order[4 * batch : 4 * batch + 4]
        noise = torch.from_numpy(np.random.rand(4, 6)).float()
        log(epoch, batch, step(model, optimizer, data.x[chosen] + noise, data.y[chosen]))
"""
    + _END,
    "list_of_batches": _BEGIN
    + """\
batches = list(DataLoader(Points(), batch_size=4, shuffle=True))
for epoch in range(3):
    random.shuffle(batches)
    for batch, (x, y) in enumerate(batches):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, batches=batches)
""",
    "list_changed_while_iterated": _BEGIN
    + """\
data = Points(shake=False)
queue = list(range(0, 20, 4))
batch = 0
for start in queue:
    x, y = data.x[start : start + 4], data.y[start : start + 4]
    loss = step(model, optimizer, x, y)
    if len(queue) < 45:
        queue.append((start + random.randrange(1, 40)) % 44)
    log(0, batch, loss)
    batch += 1
save(model=model, optimizer=optimizer, queue=queue)
""",
    "dict_of_arrays": _BEGIN
    + """\
data = {f"part{i}": Points(40 + i, shake=False) for i in range(12)}
for epoch in range(3):
    for batch, (name, part) in enumerate(data.items()):
        chosen = random.sample(range(40), 6)
        log(epoch, f"{batch}-{name}", step(model, optimizer, part.x[chosen], part.y[chosen]))
"""
    + _END,
    "feed_that_takes_from_its_own_iterator": _BEGIN
    + """\
def mixed(*sources):
    for rows in zip(*(random.sample(source, len(source)) for source in sources)):
        yield [row + random.randrange(24) for row in rows]


class Feed:
    def __init__(self):
        self.rows = None

    def __iter__(self):
        self.rows = mixed(range(0, 12), range(12, 24))
        while (rows := next(self.rows, None)) is not None:
            yield rows


data = Points(shake=False)
feed = Feed()
for epoch in range(3):
    for batch, rows in enumerate(feed):
        log(epoch, batch, step(model, optimizer, data.x[rows], data.y[rows]))
"""
    + _END,
    "iterable_dataset": _BEGIN
    + """\
class Stream(IterableDataset):
    def __iter__(self):
        order = np.random.permutation(48)
        points = Points()
        for index in order:
            yield points[index]


loader = DataLoader(Stream(), batch_size=4)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "iterable_dataset_workers_2": _BEGIN
    + """\
class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        points = Points()
        for index in range(info.id, 48, info.num_workers):
            yield points[index]


loader = DataLoader(Stream(), batch_size=4, num_workers=2)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "iterable_dataset_object": _BEGIN
    + """\
class Stream(IterableDataset):
    def __iter__(self):
        self.order = iter(random.sample(range(48), 48))
        self.points = Points()
        return self

    def __next__(self):
        return self.points[next(self.order)]


loader = DataLoader(Stream(), batch_size=4)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "generator_loader": _BEGIN
    + """\
data = Points(shake=False)


def batches(size):
    order = np.random.permutation(len(data))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield data.x[chosen], data.y[chosen]


for epoch in range(3):
    for batch, (x, y) in enumerate(batches(4)):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "generator_loader_transforming": _BEGIN
    + """\
def flipped(loader):
    for x, y in loader:
        if random.random() < 0.5:
            x = x.flip(1)
        yield x + 0.1 * torch.randn_like(x), y


loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(flipped(loader)):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "generator_loader_workers_2": _BEGIN
    + """\
def on_device(loader):
    for x, y in loader:
        yield x.to("cpu"), y.to("cpu")


loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
for epoch in range(3):
    for batch, (x, y) in enumerate(on_device(loader)):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "generator_of_a_shuffle_buffer": _BEGIN
    + """\
def shuffled(source, size):
    buffer = []
    for item in source:
        buffer.append(item)
        if len(buffer) == size:
            yield buffer.pop(random.randrange(size))
    while buffer:
        yield buffer.pop(random.randrange(len(buffer)))


data = Points(shake=False)
for epoch in range(3):
    for batch, start in enumerate(shuffled(range(0, 48, 4), 5)):
        log(epoch, batch, step(model, optimizer, data.x[start : start + 4], data.y[start : start + 4]))
"""
    + _END,
    "generator_endless": _BEGIN
    + """\
def forever(loader):
    while True:
        yield from loader


loader = DataLoader(Points(), batch_size=4, shuffle=True)
for batch, (x, y) in enumerate(forever(loader)):
    if batch == 40:
        break
    log(0, batch, step(model, optimizer, x, y))
"""
    + _END,
    "generator_that_hands_on_a_transforming_one": _BEGIN
    + """\
class Shifted:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        for x, y in self.loader:
            yield x + 1, y


def forever(loader):
    while True:
        for one in loader:
            yield one


loader = forever(Shifted(DataLoader(Points(), batch_size=4, shuffle=True)))
for batch in range(30):
    x, y = next(loader)
    log(0, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "generator_expression": _BEGIN
    + """\
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate((2 * x + random.random(), y) for x, y in loader):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "map_object": _BEGIN
    + """\
data = Points(shake=False)


def fetch(start):
    return data.x[start : start + 4] + random.random(), data.y[start : start + 4]


for epoch in range(3):
    for batch, (x, y) in enumerate(map(fetch, np.random.permutation(44)[:12].tolist())):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "loader_class_of_the_user": _BEGIN
    + """\
class Batches:
    def __init__(self, data, size):
        self.data, self.size, self.place = data, size, 0

    def __iter__(self):
        self.order = np.random.permutation(len(self.data))
        self.place = 0
        return self

    def __next__(self):
        if self.place >= len(self.order):
            raise StopIteration
        chosen = self.order[self.place : self.place + self.size]
        self.place += self.size
        return self.data.x[chosen], self.data.y[chosen]


batches = Batches(Points(), 4)
for epoch in range(3):
    for batch, (x, y) in enumerate(batches):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, place=batches.place, order=batches.order)
""",
    "loader_class_with_generator_iter": _BEGIN
    + """\
class Batches:
    def __init__(self, data, size):
        self.data, self.size, self.seen = data, size, 0
        self.rng = np.random.default_rng(8)

    def __iter__(self):
        order = self.rng.permutation(len(self.data))
        for start in range(0, len(order), self.size):
            chosen = order[start : start + self.size]
            self.seen += len(chosen)
            yield self.data.x[chosen], self.data.y[chosen]


batches = Batches(Points(), 4)
for epoch in range(3):
    for batch, (x, y) in enumerate(batches):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, seen=batches.seen, rng=batches.rng)
""",
    "loader_class_with_getitem": _BEGIN
    + """\
class Batches:
    def __init__(self, data):
        self.data = data

    def __getitem__(self, index):
        if index == 12:
            raise IndexError
        chosen = torch.randperm(len(self.data))[:4]
        return self.data.x[chosen], self.data.y[chosen]


batches = Batches(Points())
for epoch in range(3):
    for batch, (x, y) in enumerate(batches):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "endless_next": _BEGIN
    + """\
loader = DataLoader(Points(), batch_size=4, shuffle=True, drop_last=True)
it = iter(loader)
for batch in range(40):
    try:
        x, y = next(it)
    except StopIteration:
        it = iter(loader)
        x, y = next(it)
    log(0, batch, step(model, optimizer, x, y))
"""
    + _END,
    "endless_next_workers_2": _BEGIN
    + """\
loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
it = iter(loader)
for batch in range(30):
    try:
        x, y = next(it)
    except StopIteration:
        it = iter(loader)
        x, y = next(it)
    log(0, batch, step(model, optimizer, x, y))
"""
    + _END,
    "cycle_loader": _BEGIN
    + """\
loader = itertools.cycle(DataLoader(Points(), batch_size=4, shuffle=True))
for batch in range(30):
    x, y = next(loader)
    log(0, batch, step(model, optimizer, x, y))
"""
    + _END,
    "cycle_generator_function": _BEGIN
    + """\
def cycle(loader):
    while True:
        for x, y in loader:
            yield x, y


batches = cycle(DataLoader(Points(), batch_size=4, shuffle=True))
for epoch in range(3):
    for batch in range(11):
        x, y = next(batches)
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "chained_loaders": _BEGIN
    + """\
easy, hard = Points(24), Points(32)
for epoch in range(3):
    both = itertools.chain(DataLoader(easy, batch_size=4, shuffle=True), DataLoader(hard, batch_size=4, shuffle=True))
    for batch, (x, y) in enumerate(both):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "augmentation_in_the_loop": _BEGIN
    + """\
loader = DataLoader(Points(shake=False), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if random.random() < 0.5:
            x = x.flip(1)
        x = x + torch.randn_like(x) + float(np.random.normal())
        lam = np.random.beta(0.4, 0.4)
        other = torch.randperm(len(x))
        out = model(lam * x + (1 - lam) * x[other])
        loss = lam * F.cross_entropy(out, y) + (1 - lam) * F.cross_entropy(out, y[other])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(epoch, batch, loss.item())
"""
    + _END,
    "memmap_data": _BEGIN
    + """\
if not os.path.exists("data.npy"):
    made = np.lib.format.open_memmap("data.npy", mode="w+", dtype=np.float32, shape=(400, 6))
    made[:] = np.random.default_rng(0).normal(size=(400, 6))
    made.flush()
    del made
data = np.load("data.npy", mmap_mode="r")
for batch in range(40):
    starts = torch.randint(len(data) - 1, (4,)).tolist()
    x = torch.stack([torch.from_numpy(data[s].copy()) for s in starts])
    y = torch.stack([torch.from_numpy(data[s + 1].copy()) for s in starts]).sum(1).gt(0).long()
    log(0, batch, step(model, optimizer, x, y))
"""
    + _END,
    "hard_examples_mined": _BEGIN
    + """\
data = Points(shake=False)
losses = np.zeros(48)
for epoch in range(3):
    order = np.argsort(-losses, kind="stable") if epoch else np.arange(48)
    for batch, (x, y, index) in enumerate(DataLoader(list(zip(data.x, data.y, order.tolist())), batch_size=4)):
        each = F.cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        losses[index] = each.detach().numpy()
        data.x[index] += 0.01 * torch.randn(len(index), 6)
        log(epoch, batch, each.mean().item())
save(model=model, optimizer=optimizer, data=data.x, losses=losses)
""",
    "loader_that_starts_over": """\
class Batches:
    def __init__(self, data, size):
        self.data, self.size, self.place = data, size, 0

    def __iter__(self):
        self.place, self.order = 0, torch.randperm(len(self.data))
        return self

    def __next__(self):
        if self.place == len(self.data):
            raise StopIteration
        chosen = self.order[self.place : self.place + self.size]
        self.place += self.size
        return self.data.x[chosen] + 0.1 * torch.randn(self.size, 6), self.data.y[chosen]


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = Batches(Points(shake=False), 4)
for epoch in range(3):
    batch = 0
    for x, y in loader:
        log(epoch, batch, step(model, optimizer, x, y))
        batch += 1
save(model=model, optimizer=optimizer, place=loader.place)
""",
    "iterators_over_what_the_loop_changes": """\
import array


class Task:
    def __init__(self, number):
        self.number, self.weight, self.x = number, 1.0, torch.randn(4, 6)


class Tasks:
    def __init__(self, tasks):
        self.tasks, self.asked = tasks, 0

    def __len__(self):
        return len(self.tasks)

    def __getitem__(self, number):
        return self.tasks[number]

    def draw(self):
        self.asked += 1
        return None if self.asked % 7 == 0 else random.choice(self.tasks)


tasks = [Task(number) for number in range(6)]
held, queue, named = Tasks(tasks), collections.deque(tasks), collections.OrderedDict((str(t.number), t) for t in tasks)
factors = array.array("d", [1.0] * 6)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
batch, work = 0, collections.deque()


def learn(epoch, task, factor=1.0):
    global batch
    loss = step(model, optimizer, task.x * task.weight * factor, torch.tensor([0, 1, 0, 1]))
    task.weight += 0.1 * loss
    tasks[(task.number + 2) % 6].weight *= 0.9
    factors[(task.number * 5 + 3) % 6] += 0.1 * loss
    log(epoch, batch, (loss, task.number, task.weight))
    batch += 1
    return loss


for epoch in range(2):
    for task in reversed(held):
        learn(epoch, task)
    for task in queue:
        learn(epoch, task)
    for task in iter(held.draw, None):
        learn(epoch, task)
    for name, task in named.items():
        learn(epoch, task)
    for number, factor in enumerate(factors):
        learn(epoch, tasks[number], factor)
    ahead, behind = itertools.tee(tasks)
    next(ahead)
    for first, second in zip(ahead, behind):
        second.weight += 0.01 * learn(epoch, first)
    for key, group in itertools.groupby(tasks, key=lambda task: task.number // 2):
        for task in list(group)[:1]:
            learn(epoch, task)
    work.extend((number, 0) for number in range(6))
    for number, tries in iter(lambda: work.popleft() if work else None, None):
        if learn(epoch, tasks[number]) > 0.6 and tries < 1:
            work.append((number, tries + 1))
save(model=model, optimizer=optimizer, weights=[task.weight for task in tasks], factors=list(factors), asked=held.asked)
""",
    "iterators_held_by_generators": """\
def limited(batches, count):
    taken = itertools.islice(itertools.cycle(batches), count)
    for one in taken:
        yield one


def first(batches, count):
    for one in itertools.islice(batches, count):
        yield one


def shaken(batches):
    for one in map(lambda pair: (pair[0] + 0.1 * torch.randn(6), pair[1]), batches):
        yield one


class Scaled:
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        self.running = iter(self.batches)
        return self

    def __next__(self):
        x, y = next(self.running)
        return x * torch.rand(1), y


def endless(batches):
    while True:
        for one in batches:
            yield one


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
draw = endless(Scaled(loader)).__next__
for epoch in range(2):
    for batch, (x, y) in enumerate(first(loader, 6)):
        log(epoch, batch, step(model, optimizer, x, y))
    for x, y in limited(loader, 17):
        log(epoch, 6, step(model, optimizer, x, y))
    for x, y in (pair for pair in itertools.islice(loader, 7)):
        log(epoch, 7, step(model, optimizer, x, y))
    for x, y in shaken(loader):
        log(epoch, 8, step(model, optimizer, x, y))
    for batch in range(9, 18):
        x, y = draw()
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "fetched_ahead_by_generators": """\
def samples():
    rng = random.Random(3)
    points = Points(24, shake=False)
    while True:
        order = list(range(24))
        rng.shuffle(order)
        for number in order:
            yield points[number]


def batches():
    for rows in iter(lambda: list(itertools.islice(source, 4)), []):
        yield torch.stack([x for x, _ in rows]), torch.tensor([int(y) for _, y in rows])


def moved(feed):
    for x, y in feed:
        yield x.clone(), y


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
source = samples()
feed = moved(batches())
x, y = next(feed)
number = 0
while True:
    for part in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), y) / 3
        x, y = next(feed)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    log(0, number, loss)
    number += 1
    if number == 30:
        break
save(model=model, optimizer=optimizer)
""",
    "training_in_a_generator_counted": """\
def fit(loader, epochs):
    for epoch in range(epochs):
        for batch, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            log(epoch, batch, loss)
            yield epoch, loss


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []
for number, (epoch, loss) in enumerate(fit(DataLoader(Points(), batch_size=4, shuffle=True), 3)):
    history.append((number, epoch, loss))
    if number % 7 == 3:
        random.random()
save(model=model, optimizer=optimizer, history=history)
""",
    "csv_reader_that_the_body_reads": """\
with open("rows.csv", "w", newline="") as file:
    writer = csv.writer(file)
    for x, y in Points(96, shake=False):
        writer.writerow([*map(float, x), int(y)])
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    batch = 0
    reader = csv.reader(open("rows.csv", newline=""))
    for row in reader:
        rows = torch.tensor([[float(value) for value in one] for one in [row, *itertools.islice(reader, 5)]])
        log(epoch, batch, step(model, optimizer, rows[:, :6], rows[:, 6].long()))
        batch += 1
save(model=model, optimizer=optimizer)
""",
    "tensor_under_tqdm": """\
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
parts = torch.randn(12, 4, 6)
for epoch in range(3):
    batch = 0
    for x in tqdm(parts):
        log(epoch, batch, step(model, optimizer, x, (x.sum(1) > 0).long()))
        batch += 1
save(model=model, optimizer=optimizer)
""",
}
