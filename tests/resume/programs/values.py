"""Values that are more than their bytes: members with hashes of their own, rows and views of arrays, conditions, loggers."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
"""
_END = "save(model=model, optimizer=optimizer)\n"

_ITEM = """\


class Item:
    def __init__(self, k):
        self.k = k

    def __hash__(self):
        return hash(self.k)

    def __eq__(self, other):
        return isinstance(other, Item) and self.k == other.k


"""
_FROZEN = """\


@dataclasses.dataclass(frozen=True)
class Frozen:
    v: int


"""

VALUES = {
    "own_hashes": _BEGIN
    + _ITEM
    + """\
current, table, moving = {Item(0)}, {Item(0): 0.0}, Item(-1)
held = {moving: 1.0}
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if batch == 1:
            current.clear()
            current.add(Item(epoch))
            table.clear()
            table[Item(epoch)] = 0.0
        loss = step(model, optimizer, x, y)
        table[Item(epoch)] = table.get(Item(epoch), 0.0) + loss
        del held[moving]
        moving.k = batch
        held[moving] = loss
        log(epoch, batch, (loss, Item(epoch) in current, table[Item(epoch)], len(table), held[Item(batch)]))
"""
    + _END,
    "frozen_members": _BEGIN
    + _FROZEN
    + """\
group, kinds = frozenset(), {frozenset([Frozen(-1)]): 0}
for epoch in range(3):
    group = frozenset(Frozen(10 * epoch + number) for number in range(3))
    for batch, (x, y) in enumerate(loader):
        kinds[frozenset([Frozen(batch), "b", Frozen(epoch)])] = batch
        loss = step(model, optimizer, x, y)
        found = Frozen(10 * epoch) in group, kinds[frozenset([Frozen(batch), Frozen(epoch), "b"])], len(kinds)
        log(epoch, batch, (loss, *found))
"""
    + _END,
    "members_with_own_hashes": _BEGIN
    + _ITEM
    + _FROZEN
    + """\
current, table, group = {Item(0)}, {Item(0): 0.0}, frozenset()
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if batch == 0:
            current.clear()
            current.add(Item(epoch))
            table.clear()
            table[Item(epoch)] = 0.0
        loss = step(model, optimizer, x, y)
        table[Item(epoch)] += loss
        group = group | {Frozen(epoch * batch), (Frozen(batch), "pair")}
        log(epoch, batch, (loss, Item(epoch) in current, table[Item(epoch)], len(table), len(group)))
    assert (Frozen(epoch), "pair") in group
"""
    + _END,
    "rows_of_tables": _BEGIN
    + """\
table = np.zeros(2, dtype=[("n", "i8"), ("s", "f8")])
records = np.zeros(3, dtype=table.dtype).view(np.recarray)
row, alone = table[0], table[1].copy()
for epoch in range(3):
    record = records[epoch]
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        row["n"] += 1
        record.s += loss
        alone["s"] += loss
        log(epoch, batch, (loss, table.tolist(), records.tolist(), alone.item()))
    row = table[1]
save(model=model, optimizer=optimizer, table=table, records=np.asarray(records), row=row.item(), alone=alone.item())
""",
    "views_of_object_arrays": _BEGIN
    + """\
ob = np.empty(6, dtype=object)
grid = np.full((3, 4), None, dtype=object)
half, column, numbers = ob[0:3], grid[:, 0], np.zeros(6)
part = numbers[0:3]
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if batch == 0:
            half, column = ob[epoch : epoch + 3], grid[::-1, epoch]
            part = numbers[epoch : epoch + 3]
        loss = step(model, optimizer, x, y)
        half[batch % 3] = [epoch, batch]
        half[(batch + 1) % 3] = column[batch % 3] = f"{epoch} {batch}"
        part[batch % 3] += loss
        log(epoch, batch, (loss, ob.tolist(), grid.tolist(), numbers.tolist()))
"""
    + _END,
    "ellipsis_in_values": _BEGIN
    + """\
idx, marks = (..., slice(0, 1)), {}
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if batch == 0:
            idx, answers = (..., slice(0, epoch + 1)), [NotImplemented, None, ...]
        marks[...] = answers[batch % 3]
        log(epoch, batch, (step(model, optimizer, x, y), x[idx].sum().item(), marks))
"""
    + _END,
    "looks_into_arrays": _BEGIN
    + """\
table = np.zeros(4, dtype=[("n", "i8"), ("s", "f8")])
ob = np.empty(6, dtype=object)
row, half, idx = table[0], ob[0:3], ...
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        row["n"] += 1
        row["s"] += x[idx].sum().item()
        half[batch % 3] = [epoch, batch]
        log(epoch, batch, (loss, table.tolist(), ob.tolist()))
    row, half, idx = table[epoch + 1], ob[epoch : epoch + 3], (..., slice(0, epoch + 1))
"""
    + _END,
    "queues_made_each_epoch": _BEGIN
    + """\
import queue, threading

for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if batch == 0:
            waiting, done, turn = queue.PriorityQueue(), threading.Event(), threading.Condition()
            few = queue.Queue(maxsize=3)
        loss = step(model, optimizer, x, y)
        waiting.put((loss, batch))
        if few.full():
            few.get()
        few.put(loss)
        if batch == 3:
            done.set()
        with turn:
            turn.notify_all()
        log(epoch, batch, (loss, done.is_set(), waiting.qsize(), waiting.queue[0], few.qsize()))
"""
    + _END,
    "levels_of_loggers": _BEGIN
    + """\
class Counting(logging.LoggerAdapter):
    seen = 0

    def process(self, msg, kwargs):
        self.seen += 1
        return f"{self.extra['epoch']} {msg}", kwargs


logging.basicConfig(filename="train.log", level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
logger, quiet = logging.getLogger("train"), logging.getLogger("quiet.one")
counting = Counting(logger, {"epoch": -1})
plain = logging.LoggerAdapter(logging.getLogger("plain"), {})
logger.debug("hidden")
quiet.debug("hidden")
for epoch in range(3):
    counting.extra["epoch"] = epoch
    named = logging.getLogger(f"epoch{epoch}")
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        counting.info("batch %d %r", batch, loss)
        logger.debug("loss %r", loss)
        logging.getLogger("quiet.one").debug("quiet %r", loss)
        named.warning("warned %r", loss)
        log(epoch, batch, (loss, counting.seen, counting.extra))
    logger.setLevel(logging.DEBUG)
    if epoch == 0:
        logging.getLogger("quiet.one").setLevel(logging.DEBUG)
        del quiet
    if epoch == 1:
        logging.disable(logging.INFO)
"""
    + _END,
    "queues_and_loggers": _BEGIN
    + """\
import queue, threading

logging.basicConfig(filename="train.log", level=logging.INFO)
logger = logging.getLogger("train")
adapter = logging.LoggerAdapter(logger, {"epoch": -1})
logger.debug("hidden")
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if batch == 0:
            waiting, done = queue.PriorityQueue(), threading.Event()
            adapter.extra["epoch"] = epoch
        loss = step(model, optimizer, x, y)
        waiting.put((loss, batch))
        if batch == 3:
            done.set()
        logger.debug("loss %r", loss)
        logger.info("loss %r", loss)
        log(epoch, batch, (loss, done.is_set(), waiting.queue[0], adapter.extra))
    if epoch == 0:
        logger.setLevel(logging.DEBUG)
    if epoch == 1:
        logging.disable(logging.DEBUG)
"""
    + _END,
    "pools_of_numbers": _BEGIN
    + """\
pool = set(range(300))
words = {f"w{number}" for number in range(60)}
visited, last = set(), frozenset()
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        given = [pool.pop() for _ in range(5)]
        for number in random.sample(given, 2):
            pool.add(number)
        words.discard(f"w{random.randrange(60)}")
        visited.update((number % 7, number % 3) for number in given)
        loss = step(model, optimizer, x, y)
        log(epoch, batch, (loss, given, next(iter(words)), list(visited)[:3], list(last)[:3]))
        words.add(f"w{random.randrange(60)}")
        if batch % 4 == 0:
            last = frozenset(pool - {1, 2, 3})
"""
    + _END,
    "memory_shared_with_numpy": _BEGIN
    + """\
bias, own = model.fc1.bias.detach().numpy(), model.fc2.bias.detach().numpy()
scores = np.zeros(12)
seen_scores = torch.from_numpy(scores)
weight = None
outputs = collections.deque(maxlen=3)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        if weight is None:
            weight, corner = model.fc1.weight.detach().numpy(), model.fc1.weight.detach().numpy().T[1:, ::2]
            own = own.copy()
            counts = np.zeros((3, 4), dtype=np.float32)
            seen_counts = torch.from_numpy(counts[1:])
        outputs.append(model(x).detach().numpy())
        scores[batch] += loss
        seen_counts += 1
        counts[0] -= 1
        sums = [float(one.sum()) for one in (weight, corner, bias, own, seen_scores, counts, seen_counts, *outputs)]
        log(epoch, batch, (loss, sums))
"""
    + _END,
    "losses_summed_with_their_graphs": _BEGIN
    + """\
kinds = {np.dtype("float32"): 0, np.dtype("int64"): 0}
for epoch in range(3):
    running_loss, worst = 0.0, None
    for batch, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        running_loss += loss
        worst = loss if worst is None else torch.maximum(worst, loss)
        kinds[x.numpy().dtype] += 1
        told = (loss.item(), running_loss.item(), worst.item(), running_loss.requires_grad, running_loss.is_leaf)
        log(epoch, batch, (*told, list(kinds.values())))
"""
    + _END,
    "maps_opened_in_the_loop": _BEGIN
    + """\
np.save("weights.npy", np.arange(48.0).reshape(24, 2))
whole = None
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        if whole is None:
            whole = np.load("weights.npy", mmap_mode="r")
        loss = step(model, optimizer, x, y)
        log(epoch, batch, (loss, float(whole[batch, 1]), float(whole[2 * batch :].sum())))
"""
    + _END,
    "storages_that_change_their_size": _BEGIN
    + """\
buffer, joined, table = torch.empty(0), torch.empty(0), bytearray(1)
sharded = torch.zeros(40)
part = sharded[10:20]
grown = None
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        if grown is None:
            grown = torch.empty(0)
        buffer.resize_(5 + 7 * batch % 11).fill_(loss)
        torch.cat([buffer, x.reshape(-1)], out=joined.resize_(0))
        grown.resize_(3 + batch)[-1] = loss
        table += b"1"
        if batch % 3 == 1:
            sharded.untyped_storage().resize_(0)
        elif batch % 3 == 2:
            sharded.untyped_storage().resize_(160)
            sharded.copy_(torch.arange(40.0) * loss)
        told = (0.0 if batch % 3 == 1 else part.sum().item(), buffer.sum().item(), joined.sum().item(), grown[-1].item())
        log(epoch, batch, (loss, *told, part.untyped_storage().nbytes(), len(table)))
sharded.untyped_storage().resize_(160)
part.fill_(1.0)
save(model=model, optimizer=optimizer, buffer=buffer, joined=joined, part=part)
""",
}
