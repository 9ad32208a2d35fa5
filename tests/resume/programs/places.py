"""State where a reader would not look for it: in classes, in what decorators leave, in hooks, in libraries' objects."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
"""
_END = "save(model=model, optimizer=optimizer)\n"

PLACES = {
    "state_of_classes": _BEGIN
    + """\
import enum


def counted(function):
    calls = 0

    def call(*args):
        nonlocal calls
        calls += 1
        return function(*args) + calls

    return call


class Cached(property):
    pass


class Odd:
    class Rate:
        value = 0.01

    smooth = torch.tanh

    def add(self, x, kept=[]):
        kept.append(x)
        return len(kept)

    @staticmethod
    def still(x, kept=[]):
        kept.append(x)
        return len(kept)

    @classmethod
    def of_class(cls, x, kept={}):
        kept[len(kept)] = x
        return len(kept)

    @counted
    def decorated(self):
        return 100

    @Cached
    def size(self):
        Odd.size.asked = getattr(Odd.size, "asked", 0) + 1
        return Odd.size.asked


Odd.add.calls = 0


def hidden():
    class Meter:
        count = 0

        def tick(self):
            type(self).count += 1
            return type(self).count

    return Meter()


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2

    def __init__(self, number):
        self.uses = 0


def softly(x):
    return 0.5 * torch.tanh(x)


odd, meter = Odd(), hidden()
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, Odd.smooth(x), y)
        Odd.add.calls += 1
        Phase.WARM.uses += 1
        optimizer.param_groups[0]["lr"] = Odd.Rate.value
        Odd.Rate.value *= 0.97
        seen = odd.add(loss), odd.still(loss), odd.of_class(loss), odd.decorated(), odd.size, Odd.add.calls
        log(epoch, batch, (loss, *seen, meter.tick(), Phase.WARM.uses))
    Odd.smooth = staticmethod(softly)
"""
    + _END,
    "owners_of_threads": """\
import sys, threading
from torch import Tensor
from torch.nn import Parameter


class History(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record.getMessage())


class Result(threading.Thread):
    best = None

    def run(self):
        self.best = 1.0


class Tee:
    def __init__(self, plain):
        self.plain, self.file = plain, open("tee.txt", "w")

    def write(self, text):
        self.file.write(text)
        return self.plain.write(text)

    def flush(self):
        self.file.flush()
        self.plain.flush()


logging.basicConfig(filename="train.log", filemode="w", level=logging.INFO)
history = History()
logging.getLogger().addHandler(history)
sys.stdout = Tee(sys.stdout)


class Trainer:
    def __init__(self):
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.timer = threading.Timer(1000, print, ["late"])
        self.timer.daemon = True
        self.warm = Result()
        self.warm.start()
        self.warm.join()
        self.seen = 0

    def run(self, loader):
        for epoch in range(3):
            for batch, (x, y) in enumerate(loader):
                loss = step(self.model, self.optimizer, x, y)
                self.seen += 1
                self.warm.best = min(self.warm.best, loss)
                logging.info("%d %d %r", epoch, batch, loss)
                log(epoch, batch, (loss, self.seen, self.warm.best, len(history.records)))


trainer = Trainer()
trainer.run(DataLoader(Points(), batch_size=4, shuffle=True))
save(model=trainer.model, optimizer=trainer.optimizer)
""",
    "endless_sampler_with_count": _BEGIN
    + """\
data = Points(24)


def stream():
    for number in itertools.count():
        for index in torch.randperm(len(data)).tolist():
            yield number, data[index]


points = stream()
for epoch in range(3):
    for batch in range(10):
        number = 0
        chosen = [next(points) for _ in range(4)]
        x, y = torch.stack([x for _, (x, _) in chosen]), torch.stack([y for _, (_, y) in chosen])
        log(epoch, batch, (step(model, optimizer, x, y), chosen[-1][0]))
"""
    + _END,
    "hooks_and_queues_made_in_the_loop": _BEGIN
    + """\
import queue
from concurrent.futures import ThreadPoolExecutor

weight = model.fc1.weight
handle = model.fc2.weight.register_hook(lambda grad: grad * 0.5)
settings = {"rate": 1.0}
names, began, here = settings.keys(), time.localtime(), os.stat(".")
waiting = queue.SimpleQueue()
for number in range(3):
    waiting.put(torch.full((6,), float(number)))
chain, seen, pool = None, [], None
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        waiting.put(x.mean(0))
        loss = step(model, optimizer, x + 0.01 * waiting.get(), y)
        if batch == 2:
            seen.append([])
            model.fc1.register_forward_hook(lambda module, args, out, s=seen[-1]: s.append(1))
        if pool is None:
            pool = ThreadPoolExecutor(1)
        double = pool.submit(lambda: 2 * loss).result()
        chain = (loss, chain)
        log(epoch, batch, (loss, double, list(names), [len(one) for one in seen], began.tm_year > 2000, here.st_mode))
    if epoch == 0:
        weight.register_hook(lambda grad: grad * 0.1)
        handle.remove()
        torch.set_num_threads(1)
"""
    + _END,
}
