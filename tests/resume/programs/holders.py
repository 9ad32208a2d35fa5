"""State in objects whose memory is not Python's: locks and events, caches, shared memory, compiled modules, open data files."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
"""
_END = "save(model=model, optimizer=optimizer)\n"

HOLDERS = {
    "images_and_work_in_threads": _BEGIN
    + """\
from concurrent.futures import ThreadPoolExecutor
from PIL import Image

pool, sums = ThreadPoolExecutor(2), []
kept = [Image.fromarray(np.full((4, 4), shade, np.uint8)) for shade in range(3)]


def darken(image):
    time.sleep(0.002)
    return sum(image.point(lambda shade: shade // 2).tobytes())


for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        image = Image.fromarray((x.numpy() * 40 % 255).astype(np.uint8)).rotate(90)
        image.putpixel((0, 0), batch)
        kept[batch % 3].putpixel((1, epoch), image.getpixel((0, 0)))
        work = pool.submit(darken, image)
        if batch:
            sums.append(earlier.result())
        earlier = work
        log(epoch, batch, step(model, optimizer, x, y))
    print("epoch", epoch, sums[-1], [sum(one.tobytes()) for one in kept])
pool.shutdown()
sums.append([list(one.tobytes()) for one in kept])
save(model=model, optimizer=optimizer, sums=sums)
""",
    "events_and_thread_locals": _BEGIN
    + """\
import contextvars, threading, types

warm, permits, own = threading.Event(), threading.Semaphore(40), threading.local()
rate = contextvars.ContextVar("rate", default=0.01)
settings = {"seen": 0}
shown = types.MappingProxyType(settings)
own.total = 0.0
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        own.total += loss
        settings["seen"] += 1
        if permits.acquire(blocking=False) and shown["seen"] > 15:
            warm.set()
        if warm.is_set():
            rate.set(rate.get() * 0.95)
        for group in optimizer.param_groups:
            group["lr"] = rate.get()
        log(epoch, batch, (loss, warm.is_set(), own.total, rate.get(), permits._value))
"""
    + _END,
    "semaphores": _BEGIN
    + """\
import ctypes, multiprocessing

permits, system = multiprocessing.Semaphore(20), ctypes.CDLL(None)
for epoch in range(3):
    lock, again, warm = multiprocessing.Lock(), multiprocessing.RLock(), multiprocessing.Event()
    for batch, (x, y) in enumerate(loader):
        if batch % 2:
            again.acquire()
        if batch % 3 == 1:
            permits.acquire()
        if batch == 4:
            warm.set()
        with lock:
            loss = step(model, optimizer, x * system.abs(-batch % 3 - 1), y)
        told = permits.get_value(), again._semlock._count(), warm.is_set()
        log(epoch, batch, (loss, *told))
        if batch % 2 and batch > 4:
            again.release()
"""
    + _END,
    "caches_of_random_numbers": _BEGIN
    + """\
@functools.lru_cache(maxsize=None)
def noise(size, *, scale=0.1):
    return scale * torch.randn(size)


@functools.lru_cache(maxsize=3)
def draw(number):
    return random.random()


class Masks:
    @functools.cache
    def of(self, kind):
        return (torch.rand(6) > 0.2).float()


masks = Masks()
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        x = x * masks.of(batch % 3) + noise(6, scale=0.1 + epoch // 2)
        log(epoch, batch, (step(model, optimizer, x, y), draw(batch % 5), draw.cache_info().currsize))
"""
    + _END,
    "shared_memory_counters": _BEGIN
    + """\
import ctypes, mmap, multiprocessing


class Moments(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("sums", ctypes.c_double * 2)]


steps, window = multiprocessing.Value("i", 0), multiprocessing.Array("d", 4)
moments, board = Moments(), mmap.mmap(-1, 64)
view = memoryview(bytearray(8))
lock = multiprocessing.Lock()
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        with steps.get_lock(), lock:
            steps.value += 1
        loss = step(model, optimizer, x + window[steps.value % 4], y)
        window[steps.value % 4] = loss
        moments.count += 1
        moments.sums[batch % 2] += loss
        board[steps.value] = steps.value
        view[batch % 8] = steps.value
        log(epoch, batch, (loss, moments.count, moments.sums[0], sum(board[:]), sum(view), steps.value))
"""
    + _END,
    "scripted_model": """\
class Counting(nn.Module):
    seen: int

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2))
        self.register_buffer("total", torch.zeros(()), persistent=False)
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        self.total = self.total + x.detach().sum()
        return self.body(x) / (1.0 + 0.01 * self.seen)


import warnings

warnings.simplefilter("ignore")
model = torch.jit.script(Counting())
traced = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
optimizer = torch.optim.Adam([*model.parameters(), *traced.parameters()], lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    model.train(epoch != 1)
    for batch, (x, y) in enumerate(loader):
        loss = F.cross_entropy(traced(model(x)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(epoch, batch, (loss.item(), model.seen, model.total.item()))
save(model=model, traced=traced, optimizer=optimizer)
""",
    "data_in_hdf5_and_gzip": """\
import gzip

import h5py

if not os.path.exists("data.h5"):
    with h5py.File("data.h5", "w") as file:
        file["x"] = np.random.default_rng(0).normal(size=(40, 6)).astype("f4")
    text = "".join(f"{n % 3 % 2}\\n" for n in range(400))
    pathlib.Path("labels.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


class Rows(Dataset):
    def __init__(self):
        self.file = None

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File("data.h5", "r")
            self.rows = self.file["x"]
        return torch.from_numpy(self.rows[index])


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Rows(), batch_size=4, shuffle=True)
mean = h5py.File("data.h5", "r")["x"]
labels = gzip.open("labels.txt.gz", "rb")
for epoch in range(3):
    for batch, x in enumerate(loader):
        y = torch.tensor([int(labels.readline()) for _ in x])
        log(epoch, batch, (step(model, optimizer, x - float(mean[0, 0]), y), labels.tell()))
"""
    + _END,
    "kept_by_address": """\
class Momentum:
    Step = collections.namedtuple("Step", "size count")

    def __init__(self, lr):
        self.lr, self.state, self.seen, self.last = lr, {}, set(), None

    def step(self, parameters):
        for parameter in parameters:
            if id(parameter) not in self.state:
                self.state[id(parameter)] = torch.zeros_like(parameter)
            average = self.state[id(parameter)].mul_(0.9).add_(parameter.grad)
            parameter.data.sub_(self.lr * average)
            self.seen.add(id(parameter))
        self.last = self.Step(float(average.norm()), len(self.state))


model = Net()
optimizer = Momentum(0.05)
len([bytearray(137 * number % 4000) for number in range(300 + time.time_ns() % 300)])  # moves what comes after it
for epoch in range(3):
    if epoch == 1:
        model.extra = nn.Linear(2, 2)  # first met in the loop: in another attempt it lies elsewhere
    for batch, (x, y) in enumerate(DataLoader(Points(), batch_size=4, shuffle=True)):
        scores = model.extra(model(x)) if epoch else model(x)
        loss = F.cross_entropy(scores, y)
        model.zero_grad()
        loss.backward()
        optimizer.step(model.parameters())
        log(epoch, batch, loss.item())
known = [id(parameter) in optimizer.seen and id(parameter) in optimizer.state for parameter in model.parameters()]
save(model=model, state=[optimizer.state[id(one)] for one in model.parameters()], last=list(optimizer.last), known=known)
""",
    "weak_references_to_what_lies_deep": _BEGIN
    + """\
import weakref


class Score:
    def __init__(self, value):
        self.value = value

    def worth(self):
        return self.value


class Board:
    def __init__(self):
        self.gone = 0
        self.best, self.shown, self.told = None, None, None
        self.nodes = {"a": {"b": {"c": [Score(0.5), Score(0.25)]}}}

    def name(self, score):
        self.best = weakref.ref(score, self.lose)
        self.shown = weakref.proxy(score)
        self.told = weakref.WeakMethod(score.worth)

    def lose(self, reference):
        self.gone += 1


board = Board()
board.name(board.nodes["a"]["b"]["c"][0])
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        scores = board.nodes["a"]["b"]["c"]
        if batch == 1:
            board.name(scores[epoch])  # what the set-up has made, then what the loop has
        if batch == 4:
            scores.append(Score(0.125 * epoch))
        if epoch == 2 and batch == 9:
            scores.clear()
            score = None
        if board.best() is not None:
            board.shown.value *= 0.9
        loss = step(model, optimizer, x * (1.0 if board.best() is None else 1 + board.told()()), y)
        score = scores[-1] if scores else None
        log(epoch, batch, (loss, board.gone, board.best() is board.nodes["a"]["b"]["c"][0] if scores else None))
"""
    + _END,
    "hook_handle_kept_over_epochs": """\
class Shake:
    def __init__(self, by):
        self.by, self.seen = by, 0

    def __call__(self, module, args, out):
        self.seen += 1
        return out * (1 + self.by * self.seen)


handles = {}
optimizer, model = None, nn.Sequential(Net(), nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
handles["first"] = model[1][0].register_forward_hook(Shake(0.001))
for epoch in range(4):
    if epoch == 1:
        handles["second"] = model[1][1].register_forward_hook(Shake(0.01), with_kwargs=False, always_call=True)
        handles["grad"] = model[0].fc1.weight.register_hook(lambda grad: grad * 0.5)
    if epoch == 3:
        for handle in handles.values():
            handle.remove()
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, (step(model, optimizer, x, y), [len(m._forward_hooks) for m in model.modules()]))
"""
    + _END,
    "variables_deleted_in_the_loop": _BEGIN
    + """\
class Slotted:
    __slots__ = ("bonus",)

    def __init__(self):
        self.bonus = 0.25


def scale(x):
    return x * getattr(scale, "by", 1.0)


def growing(start):
    push = start
    while True:
        if start > 3 and "push" in locals():
            del push
        start += 1
        yield start if "push" not in locals() else start + push


def main():
    warm, shared, slotted = 0.5, 0.75, Slotted()
    scale.by = 0.5

    def read():
        try:
            return shared
        except NameError:
            return 0.0

    numbers = growing(0)
    for epoch in range(3):
        for batch, (x, y) in enumerate(loader):
            found = ["warm" in locals(), read(), getattr(slotted, "bonus", 0.0), next(numbers)]
            loss = step(model, optimizer, scale(x) * (1 + found[0] + found[1] + found[2]), y)
            log(epoch, batch, (loss, found))
            if epoch == 1 and batch == 0:
                del warm, shared, slotted.bonus, scale.by


main()
"""
    + _END,
    "closure_first_made_in_the_loop": _BEGIN
    + """\
def main(rate):
    total, add, seen = 0.0, None, []
    for epoch in range(3):
        for batch, (x, y) in enumerate(loader):
            if add is None and epoch == 1:

                def add(loss):
                    nonlocal total, rate
                    total, rate = total + loss, rate * 0.99

            loss = step(model, optimizer, x * (1 + rate), y)
            if add is not None:
                add(loss)
            log(epoch, batch, (loss, total, rate))


main(0.5)
"""
    + _END,
}
