"""Shapes that are seldom written and still must come out right."""

_BEGIN = """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
"""
_END = "save(model=model, optimizer=optimizer)\n"

UNUSUAL = {
    "reseeded_each_epoch": _BEGIN
    + """\
for epoch in range(3):
    torch.manual_seed(epoch)
    random.seed(epoch)
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "one_long_epoch": _BEGIN.replace("Points()", "Points(200)")
    + """\
for batch, (x, y) in enumerate(loader):
    log(0, batch, step(model, optimizer, x, y))
"""
    + _END,
    "one_batch_per_epoch": _BEGIN.replace("batch_size=4", "batch_size=48")
    + """\
for epoch in range(30):
    for x, y in loader:
        log(epoch, 0, step(model, optimizer, x, y))
"""
    + _END,
    "epochs_without_batches": _BEGIN
    + """\
data = Points(shake=False)
for epoch in range(40):
    log(epoch, 0, step(model, optimizer, data.x + torch.randn_like(data.x), data.y))
"""
    + _END,
    "train_and_eval_switched_in_batch": _BEGIN
    + """\
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        if batch % 4 == 0:
            model.eval()
        if batch % 4 == 2:
            model.train()
        log(epoch, batch, loss)
"""
    + _END,
    "named_tuples_and_enums": _BEGIN
    + """\
import enum


class Stage(enum.Enum):
    WARM = 1
    MAIN = 2


Record = collections.namedtuple("Record", "stage loss")
stage, records = Stage.WARM, []
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        records.append(Record(stage, loss))
        if len(records) > 15:
            stage = Stage.MAIN
        log(epoch, batch, (loss, records[-1].stage.name))
save(model=model, optimizer=optimizer, records=[tuple(r) for r in records], stage=stage.name)
""",
    "lru_cache_filled": _BEGIN
    + """\
@functools.lru_cache(maxsize=None)
def rate(epoch):
    print("rate of epoch", epoch, "computed")
    return 0.01 / (epoch + 1)


for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        optimizer.param_groups[0]["lr"] = rate(epoch)
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "cached_property_and_properties": """\
class Trainer:
    def __init__(self):
        self.model = Net()
        self._best = None

    @functools.cached_property
    def optimizer(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)

    @property
    def best(self):
        return self._best

    @best.setter
    def best(self, value):
        self._best = value if self._best is None else min(value, self._best)

    @staticmethod
    def rows():
        return DataLoader(Points(), batch_size=4, shuffle=True)

    def run(self):
        for epoch in range(3):
            for batch, (x, y) in enumerate(self.rows()):
                self.best = step(self.model, self.optimizer, x, y)
                log(epoch, batch, self.best)


trainer = Trainer()
trainer.run()
save(model=trainer.model, optimizer=trainer.optimizer, best=trainer.best)
""",
    "functional_training": """\
from torch.func import functional_call, grad

model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
params = {name: p.detach() for name, p in model.named_parameters()}
data = Points(shake=False)


def loss_of(params, x, y):
    return F.cross_entropy(functional_call(model, params, (x,)), y)


for epoch in range(3):
    order = torch.randperm(48)
    for batch in range(12):
        chosen = order[4 * batch : 4 * batch + 4]
        gradients = grad(loss_of)(params, data.x[chosen], data.y[chosen])
        params = {name: p - 0.1 * gradients[name] for name, p in params.items()}
        log(epoch, batch, loss_of(params, data.x[chosen], data.y[chosen]).item())
save(params=params)
""",
    "jit_script_and_hessian": _BEGIN
    + """\
probe = torch.zeros(6, requires_grad=True)
weights = torch.linspace(1, 2, 6)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        energy = ((probe * weights + x.mean(0)) ** 2).sum()
        (first,) = torch.autograd.grad(energy, probe, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), probe)
        with torch.no_grad():
            probe -= 0.1 * first / second
        log(epoch, batch, (loss, energy.item()))
save(model=model, probe=probe)
""",
    "exception_ends_training": _BEGIN
    + """\
class Enough(Exception):
    pass


best = None
try:
    for epoch in range(6):
        for batch, (x, y) in enumerate(loader):
            loss = step(model, optimizer, x, y)
            best = loss if best is None else min(best, loss)
            log(epoch, batch, loss)
            if epoch == 3 and batch == 4:
                raise Enough(best)
except Enough as enough:
    print("ended by", enough)
save(model=model, optimizer=optimizer, best=best)
""",
    "evaluation_draws_random_numbers": _BEGIN
    + """\
def monte_carlo(model, data):
    with torch.no_grad():
        return torch.stack([model(data.x).softmax(1) for _ in range(3)]).var(0).mean().item()


for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
        if batch % 5 == 4:
            print("spread", epoch, batch, monte_carlo(model, loader.dataset))
"""
    + _END,
    "seconds_measured": _BEGIN
    + """\
began, slowest = time.perf_counter(), 0.0
for epoch in range(3):
    last = time.time()
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        now = time.time()
        slowest, last = max(slowest, now - last), now
        log(epoch, batch, loss)
assert slowest < 60 and time.perf_counter() - began < 600
"""
    + _END,
    "deletes_its_variables": _BEGIN
    + """\
for epoch in range(3):
    scratch = {"epoch": epoch}
    for batch, (x, y) in enumerate(loader):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        log(epoch, batch, loss.item())
        del out, loss, x
    del scratch
    assert "x" not in globals() and "scratch" not in globals()
"""
    + _END,
    "checkpointed_activations": _BEGIN
    + """\
from torch.utils.checkpoint import checkpoint

for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        hidden = checkpoint(nn.Sequential(model.fc1, model.drop), x, use_reentrant=False)
        loss = F.cross_entropy(model.fc2(F.relu(hidden)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(epoch, batch, loss.item())
"""
    + _END,
    "threads_prefetching": _BEGIN
    + """\
import queue, threading


def prefetched(batches):
    waiting = queue.Queue(2)

    def fill():
        for row in batches:
            waiting.put(row)
        waiting.put(None)

    threading.Thread(target=fill, daemon=True).start()
    while (row := waiting.get()) is not None:
        yield row


still = Points(shake=False)
for epoch in range(3):
    order = torch.randperm(48).view(12, 4)
    for batch, (x, y) in enumerate(prefetched((still.x[i], still.y[i]) for i in order)):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "names_that_mislead": {
        "train.py": """\
def scaled(factor):
    class Scale(nn.Module):
        def forward(self, x):
            return x * factor

    return Scale


def late(value):
    import tally

    tally.total += value
    return tally.total


Small, Large = scaled(0.9), scaled(1.1)
First, Second = collections.namedtuple("Pair", "a"), collections.namedtuple("Pair", "b")
__steps__, chosen, pair = 0, None, First(0)
model = nn.Sequential(nn.Linear(6, 8), Small(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model[1] = (Small, Large)[epoch % 2]()
    chosen = (lambda v: v * 2) if epoch % 2 == 0 else (lambda v: v * 3)
    pair = (First, Second)[epoch % 2](epoch)
    for batch, (x, y) in enumerate(DataLoader(Points(), batch_size=4, shuffle=True)):
        __steps__ += 1
        loss = step(model, optimizer, x, y)
        log(epoch, batch, (chosen(loss), late(loss), __steps__, pair))
save(model=model, optimizer=optimizer, steps=__steps__, pair=repr(pair), total=late(0))
""",
        "tally.py": "total = 0.0\n",
    },
    "given_to_torch_for_everything": """\
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode


def install():
    seen = {"relu": 0, "steps": 0}

    def louder(module, inputs, output):
        if isinstance(module, nn.ReLU):
            seen["relu"] += 1
            return output * (1 + 0.001 * (seen["relu"] % 7))

    def slower(optimizer, args, kwargs):
        seen["steps"] += 1
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + seen["steps"] % 5)

    nn.modules.module.register_module_forward_hook(louder)
    register_optimizer_step_post_hook(slower)


class Counting(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen += function is F.linear
        result = function(*args, **(kwargs or {}))
        return result * (1 + 0.001 * (self.seen % 3)) if function is F.linear else result


class Watched(torch.Tensor):
    seen = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_function__(function, types, args, kwargs or {})


install()
watched = torch.ones(3).as_subclass(Watched)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Counting():
    for epoch in range(3):
        for batch, (x, y) in enumerate(DataLoader(Points(), batch_size=4, shuffle=True)):
            watched = watched * 1.01
            log(epoch, batch, (step(model, optimizer, x, y), Watched.seen))
save(model=model, optimizer=optimizer, seen=Watched.seen)
""",
    "second_stage_made_in_the_loop": """\
model = Net()
optimizer, scheduler = torch.optim.SGD(model.parameters(), lr=0.1), None
for epoch in range(3):
    if epoch == 1:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        torch.set_printoptions(precision=2)
    for batch, (x, y) in enumerate(DataLoader(Points(), batch_size=4, shuffle=True)):
        loss = step(model, optimizer, x, y)
        if scheduler is not None:
            scheduler.step()
        log(epoch, batch, (loss, optimizer.param_groups[0]["lr"], str(torch.tensor([loss]))))
save(model=model, optimizer=optimizer, scheduler=scheduler)
""",
    "evolution_strategy": _BEGIN
    + """\
data = Points(shake=False)
deviations = {}
for generation in range(30):
    estimates = [torch.zeros_like(parameter) for parameter in model.parameters()]
    with torch.no_grad():
        for _ in range(3):
            noise = [torch.randn_like(parameter) for parameter in model.parameters()]
            losses = []
            for sign in (1, -1):
                for parameter, direction in zip(model.parameters(), noise):
                    parameter.add_(sign * 0.1 * direction)
                losses.append(F.cross_entropy(model(data.x), data.y).item())
                for parameter, direction in zip(model.parameters(), noise):
                    parameter.sub_(sign * 0.1 * direction)
            for estimate, direction in zip(estimates, noise):
                estimate.add_((losses[0] - losses[1]) * direction)
    for parameter, estimate in zip(model.parameters(), estimates):
        parameter.grad = estimate
    optimizer.step()
    log(0, generation, losses)
"""
    + _END,
    "progress_bar_of_rich": _BEGIN
    + """\
from rich.console import Console
from rich.progress import track

for epoch in range(3):
    batch = 0
    for x, y in track(loader, console=Console(stderr=True)):
        log(epoch, batch, step(model, optimizer, x, y))
        batch += 1
"""
    + _END,
    "data_sets_in_a_chain": _BEGIN
    + """\
class Stream(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            yield torch.randn(6), number % 2


loader = DataLoader(torch.utils.data.ChainDataset([Stream(20), Stream(9), Stream(15)]), batch_size=4)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
"""
    + _END,
    "distributed_of_one": """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
sampler = DistributedSampler(Points(), seed=4)
loader = DataLoader(Points(), batch_size=4, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch, (x, y) in enumerate(loader):
        loss = torch.tensor(step(model, optimizer, x, y))
        dist.all_reduce(loss)
        log(epoch, batch, loss.item())
    dist.barrier()
save(model=model.module, optimizer=optimizer)
dist.destroy_process_group()
""",
    "inference_tensors_and_profiler": """\
from torch.profiler import ProfilerActivity, profile, record_function, schedule

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
kept = collections.deque(maxlen=3)
plan = schedule(wait=2, warmup=2, active=3, repeat=2)
with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=lambda one: print("trace")) as profiler:
    for epoch in range(3):
        for batch, (x, y) in enumerate(loader):
            with record_function("step"):
                loss = step(model, optimizer, x, y)
            with torch.inference_mode():
                kept.append(model(x).softmax(-1))
            log(epoch, batch, (loss, kept[0].sum().item(), kept[0].is_inference(), profiler.step_num))
            profiler.step()
save(model=model, optimizer=optimizer)
""",
    "objects_sent_back_by_spawned_processes": """\
import multiprocessing

class Scale:
    def __init__(self, factor):
        self.factor = factor

def work(number):
    return Scale(1 + number / 10)

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        scales = [one.factor for one in pool.map(work, range(3))]
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Points(), batch_size=4, shuffle=True)
    for epoch, scale in enumerate(scales):
        for batch, (x, y) in enumerate(loader):
            log(epoch, batch, step(model, optimizer, x * scale, y))
    save(model=model, optimizer=optimizer)
""",
}
