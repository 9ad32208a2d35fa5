"""Loops, calls and updates on either side of functions, methods and generators."""

from .program import BEGIN, TORCH, VARIED, program

BOUNDARIES = [
    program(
        "everything_in_functions",
        """\
def train_batch(model, optimizer, x, y):
    learn(model, optimizer, x, y)
    optimizer.step()  # <update>


def train_epoch(model, optimizer, loader):
    for x, y in loader:  # <batch> <dl>
        train_batch(model, optimizer, x, y)


def train(model, optimizer, loader):
    for epoch in range(2):  # <epoch>
        train_epoch(model, optimizer, loader)


def main():
"""
        + "".join(f"    {line}\n" for line in BEGIN.splitlines())
        + """\
    train(model, optimizer, loader)


main()
""",
        loaders=(TORCH,),
    ),
    program(
        "closures",
        """\
def make_trainer(count):
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(*points(count)), batch_size=8)
    seen = 0

    def advance(x, y):
        nonlocal seen
        seen += len(x)
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>

    def train():
        for epoch in range(2):  # <epoch>
            for x, y in loader:  # <batch> <dl>
                advance(x, y)
        return seen

    return train


train = make_trainer(args.n)
print(train())
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "decorated_functions",
        """\
def timed(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        print("begin", function.__name__)
        return function(*args, **kwargs)

    return inner


def tried(times):
    def decorate(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            for attempt in range(times):  # <outer>
                try:
                    return function(*args, **kwargs)
                except OSError:
                    print("again")

        return inner

    return decorate


"""
        + BEGIN
        + """\
@timed
@functools.lru_cache
def train_epoch(epoch):
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>


@tried(3)
@timed
def train():
    for epoch in range(2):  # <epoch>
        train_epoch(epoch)


train()
""",
        loaders=(TORCH,),
    ),
    program(
        "trainer_with_callbacks",
        """\
class Callback:
    def on_epoch_begin(self, trainer):
        pass

    def on_batch_end(self, trainer, loss):
        pass


class History(Callback):
    def __init__(self):
        self.losses = []

    def on_batch_end(self, trainer, loss):
        self.losses.append(loss)


class Check(Callback):
    def on_epoch_begin(self, trainer):
        with torch.no_grad():
            for x, y in trainer.held:
                F.cross_entropy(trainer.model(x), y)


class Trainer:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks
        self.optimizer = torch.optim.Adam(model.parameters())

    def tell(self, event, *details):
        for callback in self.callbacks:
            getattr(callback, event)(self, *details)

    def fit(self, loader, held, epochs):
        self.loader, self.held = loader, held
        for self.epoch in range(epochs):  # <epoch>
            self.tell("on_epoch_begin")
            self.run_epoch()

    def run_epoch(self):
        for batch, (x, y) in enumerate(self.loader):  # <batch> <dl>
            loss = self.training_step(x, y)
            self.tell("on_batch_end", loss)

    def training_step(self, x, y):
        loss = learn(self.model, self.optimizer, x, y)
        self.optimizer.step()  # <update>
        return loss


data = [DataLoader(TensorDataset(*points(count)), batch_size=8) for count in (args.n, args.n // 2)]
Trainer(net(), [History(), Check()]).fit(*data, 2)
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "callbacks_do_the_work",
        BEGIN
        + """\
class Forward:
    def __call__(self, state):
        state["loss"] = F.cross_entropy(model(state["x"]), state["y"])


class Backward:
    def __call__(self, state):
        optimizer.zero_grad()
        state["loss"].backward()


class Step:
    def __call__(self, state):
        optimizer.step()  # <update>


callbacks = [Forward(), Backward(), Step()]
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        state = {"x": x, "y": y}
        for callback in callbacks:
            callback(state)
""",
        loaders=(TORCH,),
    ),
    program(
        "async_main",
        """\
async def train(model, optimizer, loader):
    for epoch in range(2):  # <epoch>
        for x, y in loader:  # <batch> <dl>
            learn(model, optimizer, x, y)
            optimizer.step()  # <update>
            await asyncio.sleep(0)


async def main():
"""
        + "".join(f"    {line}\n" for line in BEGIN.splitlines())
        + """\
    await asyncio.gather(train(model, optimizer, loader), asyncio.sleep(0.01))


asyncio.run(main())
""",
        loaders=(TORCH,),
    ),
    program(
        "training_generator_yields_metrics",
        BEGIN
        + """\
def train(epochs):
    for epoch in range(epochs):  # <epoch>
        for batch, (x, y) in enumerate(loader):  # <batch> <dl>
            loss = learn(model, optimizer, x, y)
            optimizer.step()  # <update>
            yield epoch, batch, loss


for metrics in train(2):  # <outer?>
    print(*metrics)
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "training_generator_yields_epochs",
        BEGIN
        + """\
def train(epochs):
    for epoch in range(epochs):  # <epoch>
        total = 0.0
        for x, y in loader:  # <batch> <dl>
            total += learn(model, optimizer, x, y)
            optimizer.step()  # <update>
        yield total


print(list(train(2)))
""",
        loaders=(TORCH,),
    ),
]
