"""Where the loops stand and how they are written."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
"""
_END = "save(model=model, optimizer=optimizer)\n"

LOOPS = {
    "targets_of_every_shape": """\
class Place:
    pass


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
place, row, rest = Place(), [None, None], None
for epoch in range(2):
    for place.batch, (row[0], row[1]) in enumerate(loader):
        log(f"a{epoch}", place.batch, step(model, optimizer, *row))
    for batch, (x, *rest) in enumerate(loader):
        log(f"b{epoch}", batch, step(model, optimizer, x, rest[0]))
    for (batch, [x, y]), (z, _) in zip(enumerate(loader), loader):
        log(f"c{epoch}", batch, step(model, optimizer, x + z, y))
save(model=model, optimizer=optimizer, row=row, batch=place.batch)
""",
    "for_else": _BEGIN
    + """\
for epoch in range(4):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        log(epoch, batch, loss)
        if loss < 0.3:
            print("epoch", epoch, "cut short")
            break
    else:
        print("epoch", epoch, "whole")
else:
    print("all epochs")
"""
    + _END,
    "break_and_continue": _BEGIN
    + """\
seen = 0
for epoch in range(4):
    if epoch == 1:
        continue
    for batch, (x, y) in enumerate(loader):
        if batch % 4 == 3:
            log(epoch, batch, "skipped")
            continue
        if epoch == 2 and batch == 9:
            break
        seen += len(x)
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, seen=seen)
""",
    "try_finally_and_with": _BEGIN
    + """\
@contextlib.contextmanager
def phase(name):
    print("begin", name)
    try:
        yield name
    finally:
        print("end", name)


try:
    with phase("training"):
        for epoch in range(3):
            with phase(f"epoch {epoch}") as name, torch.enable_grad():
                try:
                    for batch, (x, y) in enumerate(loader):
                        try:
                            with phase("inner"):
                                log(epoch, batch, step(model, optimizer, x, y))
                                if batch == 5:
                                    raise ValueError(batch)
                        except ValueError as error:
                            print("mended", epoch, error)
                        finally:
                            count = batch
                finally:
                    print("through with", name, count)
finally:
    save(model=model, optimizer=optimizer)
""",
    "in_function": """\
def train(model, optimizer, loader, epochs):
    history = []
    for epoch in range(epochs):
        total = 0.0
        for batch, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            total += loss
            log(epoch, batch, loss)
        history.append(total)
    return history


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
history = train(model, optimizer, DataLoader(Points(), batch_size=4, shuffle=True), 3)
save(model=model, optimizer=optimizer, history=history)
""",
    "in_method": """\
class Trainer:
    best = float("inf")

    def __init__(self, model, data):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.history, self.seen = [], 0
        self.callbacks = [self.on_batch, lambda loss: self.history.append(loss)]

    def on_batch(self, loss):
        self.seen += 1
        Trainer.best = min(Trainer.best, loss)

    def fit(self, epochs):
        for self.epoch in range(epochs):
            self.run_epoch()
            self.model.eval()
            self.model.train()

    def run_epoch(self):
        for batch, (x, y) in enumerate(self.loader):
            loss = step(self.model, self.optimizer, x, y)
            for callback in self.callbacks:
                callback(loss)
            log(self.epoch, batch, loss)


trainer = Trainer(Net(), Points())
trainer.fit(3)
save(model=trainer.model, optimizer=trainer.optimizer, history=trainer.history, seen=trainer.seen, best=Trainer.best)
""",
    "in_closure": """\
def make_trainer(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Points(), batch_size=4, shuffle=True)
    seen, best = 0, float("inf")

    def note(loss):
        nonlocal seen, best
        seen += 1
        best = min(best, loss)

    def train():
        nonlocal best
        for epoch in range(3):
            for batch, (x, y) in enumerate(loader):
                loss = step(model, optimizer, x, y)
                note(loss)
                log(epoch, batch, loss)
            best *= 1.5
        return seen, best

    return train, optimizer


model = Net()
train, optimizer = make_trainer(model)
found = train()
save(model=model, optimizer=optimizer, found=found)
""",
    "main_guard": """\
def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2)
    best = None
    for epoch in range(3):
        for batch, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            best = loss if best is None else min(best, loss)
            log(epoch, batch, loss)
    save(model=model, optimizer=optimizer, best=best)


if __name__ == "__main__":
    main()
""",
    "batch_loop_in_another_function": """\
def train_one_epoch(model, optimizer, loader, epoch):
    model.train()
    total = 0.0
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        total += loss
        log(epoch, batch, loss)
    return total / len(loader)


def main():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    loader = DataLoader(Points(), batch_size=4, shuffle=True)
    held_out = DataLoader(Points(30), batch_size=10)
    for epoch in range(3):
        mean = train_one_epoch(model, optimizer, loader, epoch)
        scheduler.step()
        print("epoch", epoch, mean, evaluate(model, held_out))
    save(model=model, optimizer=optimizer, scheduler=scheduler)


main()
""",
    "batch_loop_in_another_file": {
        "train.py": """\
from engine import Meter, train_one_epoch

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
meter = Meter()
for epoch in range(3):
    train_one_epoch(model, optimizer, loader, epoch, meter, step, log)
    print("epoch", epoch, meter.mean)
save(model=model, optimizer=optimizer, meter=(meter.count, meter.total))
""",
        "engine.py": """\
calls = 0


class Meter:
    __slots__ = ("count", "total")

    def __init__(self):
        self.count, self.total = 0, 0.0

    def update(self, value):
        self.count += 1
        self.total += value

    @property
    def mean(self):
        return self.total / self.count


def train_one_epoch(model, optimizer, loader, epoch, meter, step, log):
    global calls
    calls += 1
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y) * calls
        meter.update(loss)
        log(epoch, batch, loss)
""",
    },
    "everything_in_a_package": {
        "train.py": """\
from lib.common import Net, Points, save
from lib.loop import fit

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
fit(model, optimizer, Points(), 3)
save(model=model, optimizer=optimizer)
""",
        "lib/__init__.py": "",
        "lib/common.py": "#PRELUDE\n",
        "lib/loop.py": """\
from .common import DataLoader, log, step


def fit(model, optimizer, data, epochs):
    loader = DataLoader(data, batch_size=4, shuffle=True)
    for epoch in range(epochs):
        for batch, (x, y) in enumerate(loader):
            log(epoch, batch, step(model, optimizer, x, y))
""",
    },
    "while_true": _BEGIN
    + """\
data, count = Points(shake=False), 0
while True:
    chosen = torch.randint(48, (4,))
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * (1 + math.cos(math.pi * count / 40)) / 2
    if count % 10 == 0:
        print("validation", count, evaluate(model, loader))
    log(0, count, step(model, optimizer, data.x[chosen], data.y[chosen]))
    count += 1
    if count >= 40:
        break
save(model=model, optimizer=optimizer, count=count)
""",
    "while_condition": _BEGIN
    + """\
epoch = 0
while epoch < 3:
    batch = 0
    batches = iter(loader)
    while batch < 10:
        x, y = next(batches)
        log(epoch, batch, step(model, optimizer, x, y))
        batch += 1
    epoch += 1
else:
    print("no more epochs")
"""
    + _END,
    "while_walrus": _BEGIN
    + """\
batches = iter(loader)
count = 0
while (row := next(batches, None)) is not None:
    log(0, count, step(model, optimizer, *row))
    count += 1
    if count % 12 == 0 and count < 36:
        batches = iter(loader)
"""
    + _END,
    "while_epochs_for_batches": _BEGIN
    + """\
epoch, stale, best = 0, 0, float("inf")
while stale < 2 and epoch < 4:
    total = 0.0
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        total += loss
        log(epoch, batch, loss)
    if total < best:
        best, stale = total, 0
    else:
        stale += 1
    epoch += 1
save(model=model, optimizer=optimizer, best=best, epoch=epoch)
""",
    "steps_over_epochs": _BEGIN
    + """\
count, done = 0, False
while not done:
    for x, y in loader:
        log(0, count, step(model, optimizer, x, y))
        count += 1
        if count == 40:
            done = True
            break
"""
    + _END,
    "training_is_a_generator": """\
def train(model, optimizer, loader):
    for epoch in range(3):
        for batch, (x, y) in enumerate(loader):
            yield epoch, batch, step(model, optimizer, x, y)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
losses = []
for epoch, batch, loss in train(model, optimizer, DataLoader(Points(), batch_size=4, shuffle=True)):
    losses.append(loss)
    log(epoch, batch, loss)
save(model=model, optimizer=optimizer, losses=losses)
""",
    "partial_steps": _BEGIN
    + """\
advance = functools.partial(step, model, optimizer)
report = functools.partial(log, "only")
count = itertools.count()
for epoch in range(3):
    for x, y in loader:
        report(next(count), advance(x, y))
"""
    + _END,
    "comprehension_as_batch_loop": _BEGIN
    + """\
history = []
for epoch in range(12):
    losses = [step(model, optimizer, x, y) for x, y in loader]
    history.append(sum(losses))
    log(epoch, 0, history[-1])
save(model=model, optimizer=optimizer, history=history)
""",
    "recursion": """\
def train(model, optimizer, loader, epoch, seen):
    if epoch == 3:
        return seen
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
        seen += len(x)
    return train(model, optimizer, loader, epoch + 1, seen)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
seen = train(model, optimizer, DataLoader(Points(), batch_size=4, shuffle=True), 0, 0)
save(model=model, optimizer=optimizer, seen=seen)
""",
}
