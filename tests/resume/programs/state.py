"""What the loop changes besides parameters: locals, globals, attributes, generators, containers."""

_LOADER = "loader = DataLoader(Points(), batch_size=4, shuffle=True)\n"
_BEGIN = (
    """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
"""
    + _LOADER
)

STATE = {
    "early_stopping_best_state": _BEGIN
    + """\
held_out = DataLoader(Points(30, shake=False), batch_size=10)
best, best_state, stale = float("inf"), None, 0
for epoch in range(6):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    print("validating", epoch)
    score = evaluate(model, held_out)
    print("validation", epoch, score)
    if score < best - 0.02:
        best, stale = score, 0
        best_state = copy.deepcopy(model.state_dict())
    else:
        stale += 1
        if stale > 1:
            print("stopping")
            break
model.load_state_dict(best_state)
save(model=model, optimizer=optimizer, best_state=best_state, best=best)
""",
    "best_state_detached_views": _BEGIN
    + """\
best_state, best = None, 1e9
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        if loss < best:
            best = loss
            best_state = {k: v.detach().clone() for k, v in model.state_dict().items()}
        live = model.state_dict()
        log(epoch, batch, loss)
save(model=model, optimizer=optimizer, best_state=best_state, live=live)
""",
    "ema_copy": _BEGIN
    + """\
ema = copy.deepcopy(model).eval()
for parameter in ema.parameters():
    parameter.requires_grad_(False)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.1)
            for mine, theirs in zip(ema.buffers(), model.buffers()):
                mine.copy_(theirs)
        log(epoch, batch, loss)
save(model=model, ema=ema, optimizer=optimizer)
""",
    "swa_averaged_model": _BEGIN
    + """\
averaged = torch.optim.swa_utils.AveragedModel(model)
slow = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.005)
for epoch in range(4):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    if epoch >= 1:
        averaged.update_parameters(model)
        slow.step()
torch.optim.swa_utils.update_bn(loader, averaged)
save(model=model, averaged=averaged, optimizer=optimizer, slow=slow)
""",
    "deque_of_losses": _BEGIN
    + """\
recent, everything = collections.deque(maxlen=7), []
counts, by_class = collections.Counter(), collections.defaultdict(list)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        recent.append(loss)
        everything.append((epoch, batch, loss))
        counts.update(y.tolist())
        by_class[int(y[0])].append(loss)
        log(epoch, batch, sum(recent) / len(recent))
save(model=model, recent=recent, everything=everything, counts=dict(counts), by_class=dict(by_class))
""",
    "class_with_slots": _BEGIN
    + """\
class Meter:
    __slots__ = ("__weakref__", "history", "name", "total")

    def __init__(self, name):
        self.name, self.total = name, 0.0

    def update(self, value):
        self.total += value
        if not hasattr(self, "history"):
            self.history = []
        self.history.append(value)


class Stopper:
    patience = 3

    def __init__(self):
        self.best, self.meters = None, {"loss": Meter("loss"), "size": Meter("size")}


stopper = Stopper()
alias = stopper.meters["loss"]
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        stopper.meters["loss"].update(loss)
        stopper.meters["size"].update(len(x))
        stopper.best = alias if stopper.best is None or loss < alias.history[-1] else stopper.best
        Stopper.patience += loss < 0.5
        log(epoch, batch, (loss, alias.total, Stopper.patience))
meters = [(m.name, m.total, m.history) for m in stopper.meters.values()]
save(model=model, meters=meters, same=stopper.best is alias, patience=Stopper.patience)
""",
    "generators_of_the_user": """\
class Noise:
    def __init__(self):
        self.python, self.numpy, self.old = random.Random(1), np.random.default_rng(2), np.random.RandomState(9)
        self.torch = torch.Generator().manual_seed(3)

    def __call__(self, x):
        x = x + self.python.gauss(0, 1) + float(self.numpy.normal()) + float(self.old.rand())
        return x + torch.randn(x.shape, generator=self.torch)


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    noise, shuffler = Noise(), random.Random(4)
    local, philox = np.random.default_rng(5), np.random.Generator(np.random.Philox(6))
    data = Points(shake=False)
    for epoch in range(3):
        order = list(range(48))
        shuffler.shuffle(order)
        for batch in range(12):
            chosen = order[4 * batch : 4 * batch + 4]
            x = noise(data.x[chosen]) + float(local.random()) + float(philox.random())
            log(epoch, batch, step(model, optimizer, x, data.y[chosen]))
    save(model=model, noise=noise.python, n=noise.numpy, t=noise.torch, local=local, shuffler=shuffler, philox=philox)


main()
""",
    "generators_that_share_and_spawn": """\
bits = np.random.MT19937(2)
new, old = np.random.Generator(bits), np.random.RandomState(bits)
parent, unseeded = np.random.default_rng(5), np.random.default_rng()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    made = np.random.RandomState(epoch)
    for batch, (x, y) in enumerate(loader):
        child = parent.spawn(1)[0]
        x = x + float(new.normal() + old.normal() + child.normal() + made.normal()) / 100
        log(epoch, batch, (step(model, optimizer, x, y), unseeded.random(), np.random.normal()))
save(model=model, optimizer=optimizer, parent=parent)
""",
    "module_with_odd_state": """\
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Net()
        self.register_buffer("running", torch.zeros(6), persistent=False)
        self.register_buffer("count", torch.tensor(0), persistent=False)
        self.temperature, self.seen, self.cache = 1.0, [], None

    def forward(self, x):
        if self.training:
            self.running.mul_(0.9).add_(0.1 * x.detach().mean(0))
            self.count += 1
            self.temperature *= 0.99
            self.seen.append(len(x))
            self.cache = x.detach()[0]
        return self.inner(x - self.running) / self.temperature


model = Odd()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.steps_done = 0
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        optimizer.steps_done += 1
        optimizer.param_groups[0]["note"] = f"step {optimizer.steps_done}"
        log(epoch, batch, loss)
save(model=model, optimizer=optimizer, rest=[model.temperature, model.seen, model.cache, optimizer.steps_done])
""",
    "tied_weights_and_views": """\
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.mix = nn.Linear(8, 8)
        self.out = nn.Linear(8, 10, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x):
        return self.out(torch.tanh(self.mix(self.embed(x))))


model = Tied()
flat = torch.zeros(20)
left, right, cross = flat[:10], flat[10:], flat.view(4, 5).t()
first_row = model.embed.weight.data[0]
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for epoch in range(3):
    for batch in range(12):
        x = torch.randint(10, (6,))
        loss = step(model, optimizer, x, (x + 1) % 10)
        left.add_(loss)
        right[batch % 10] = loss
        cross[0, 0] *= 1.1
        log(epoch, batch, (loss, first_row.sum().item(), flat.sum().item()))
tied = model.out.weight is model.embed.weight and first_row.data_ptr() == model.embed.weight.data_ptr()
save(model=model, flat=flat, cross=cross, left=left, tied=tied, optimizer=optimizer)
""",
    "frozen_then_new_storage": _BEGIN
    + """\
snapshot = {name: p.data for name, p in model.named_parameters()}
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        if batch == 6:
            model.fc2.weight.data = model.fc2.weight.data.t().contiguous().t()
            model.fc1.weight.data = model.fc1.weight.data.clone()
        log(epoch, batch, loss)
shared = [p.data_ptr() == snapshot[name].data_ptr() for name, p in model.named_parameters()]
save(model=model, optimizer=optimizer, snapshot=snapshot, shared=shared)
""",
    "globals_and_class_attributes": _BEGIN
    + """\
calls, best = 0, {"loss": None}


class Registry:
    entries = []
    count = 0

    @classmethod
    def add(cls, value):
        cls.entries.append(value)
        cls.count += 1


def note(loss):
    global calls
    calls += 1
    note.last = loss
    Registry.add(loss)
    if best["loss"] is None or loss < best["loss"]:
        best["loss"] = loss


def history(value, kept=[]):
    kept.append(value)
    return len(kept)


for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        note(loss)
        log(epoch, batch, (loss, calls, history(loss)))
save(model=model, calls=calls, last=note.last, entries=Registry.entries, count=Registry.count, best=best)
""",
    "closures_and_lambdas": _BEGIN
    + """\
def counter():
    count, history = 0, []

    def tick(value):
        nonlocal count, history
        count += 1
        history = [*history[-3:], value]
        return count, sum(history)

    return tick


ticks = {name: counter() for name in ("a", "b")}
scale = [1.0]
shrink = lambda: scale.__setitem__(0, scale[0] * 0.97)
bound = scale.append
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x * scale[0], y)
        shrink()
        bound(loss)
        log(epoch, batch, (loss, ticks["ab"[batch % 2]](loss)))
save(model=model, scale=scale, final=[tick(0.0) for tick in ticks.values()])
""",
    "replay_buffer": """\
class Walk:
    def reset(self):
        self.place = np.random.randn(6).astype(np.float32)
        self.count = 0
        return self.place

    def act(self, action):
        self.place = self.place + np.random.randn(6).astype(np.float32) * 0.1 + (0.1 if action else -0.1)
        self.count += 1
        return self.place, float(-abs(self.place[0])), self.count >= 8


env, memory = Walk(), collections.deque(maxlen=60)
model, target = Net().eval(), Net().eval()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
epsilon, total_steps = 1.0, 0
for episode in range(6):
    place, done, total = env.reset(), False, 0.0
    while not done:
        if random.random() < epsilon:
            action = random.randrange(2)
        else:
            action = int(model(torch.from_numpy(place)[None]).argmax())
        after, reward, done = env.act(action)
        memory.append((place, action, reward, after, done))
        place, total = after, total + reward
        loss = 0.0
        if len(memory) >= 4:
            rows = random.sample(memory, 4)
            now = torch.from_numpy(np.stack([row[0] for row in rows]))
            then = torch.from_numpy(np.stack([row[3] for row in rows]))
            goal = torch.tensor([row[2] for row in rows]) + 0.9 * target(then).max(1).values.detach()
            error = F.mse_loss(model(now).max(1).values, goal)
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            loss = error.item()
        epsilon = max(0.1, epsilon * 0.97)
        total_steps += 1
        if total_steps % 10 == 0:
            target.load_state_dict(model.state_dict())
        log(episode, env.count, (loss, total))
save(model=model, target=target, optimizer=optimizer, memory=memory, epsilon=epsilon, place=env.place)
""",
    "nothing_seeded": {
        "train.py": """\
import secrets, uuid

for seed in (None,):
    random.seed(seed)
    np.random.seed(seed)
torch.seed()
noise, other = np.random.default_rng(), random.Random()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
token = secrets.token_hex(4)
for epoch in range(3):
    name = uuid.uuid4().hex
    for batch, (x, y) in enumerate(loader):
        x = x + float(noise.normal()) + other.random() + secrets.randbelow(1000) / 1000
        log(epoch, batch, (step(model, optimizer, x, y), name))
save(model=model, optimizer=optimizer, noise=noise, other=other, token=token, name=name)
""",
    },
    "tensors_of_many_kinds": _BEGIN
    + """\
half = torch.zeros(3, dtype=torch.bfloat16)
flags = torch.zeros(5, dtype=torch.bool)
table = torch.zeros(4, 4, dtype=torch.complex64)
empty, scalar = torch.zeros(0, 3), torch.tensor(0.5)
sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (4,))
wide = torch.zeros(2, 3, 4).to(memory_format=torch.contiguous_format).permute(2, 0, 1)
grown, counts = [], np.zeros((3, 4), order="F")
structured = np.zeros(3, dtype=[("a", np.int32), ("b", np.float64)])
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        half += loss
        flags ^= torch.rand(5) < 0.5
        table += loss * 1j
        scalar = scalar * 0.9 + loss
        wide += loss
        sparse = sparse * 1.01
        grown.append(torch.tensor([loss]))
        counts[epoch, batch % 4] += loss
        structured["b"][epoch] = loss
        log(epoch, batch, (loss, half.tolist(), scalar.item()))
dense = sparse.to_dense()
save(model=model, rest=[half, flags, table.view(torch.float32), scalar, wide, dense, grown, counts, structured])
""",
    "identity_kept": _BEGIN
    + """\
@dataclasses.dataclass(eq=False)
class Node:
    value: float
    next: object = None


head = Node(0.0)
head.next = head
shared = [1.0]
nest = {"a": shared, "b": [shared], "c": (shared, "x")}
chosen, seen = set(), {head: 1}
frozen = frozenset()
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        head.next = Node(loss, head.next)
        shared.append(loss)
        chosen.add(batch * 7 % 5)
        frozen |= {batch}
        seen[head.next] = batch
        log(epoch, batch, loss)
length, node = 0, head.next
while node is not head:
    length, node = length + 1, node.next
same = nest["a"] is nest["b"][0] is nest["c"][0] is shared
seen = list(seen.values())
save(model=model, length=length, shared=shared, same=same, chosen=chosen, frozen=frozen, seen=seen)
""",
}
