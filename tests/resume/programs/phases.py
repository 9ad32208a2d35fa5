"""More than one training loop: phases, folds, two loops per epoch, loops within a batch."""

PHASES = {
    "trainer_generator_used_twice": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)


def train(first, last):
    for epoch in range(first, last):
        for batch, (x, y) in enumerate(loader):
            yield epoch, batch, step(model, optimizer, x, y)


for told in train(0, 2):
    log(*told)
print("second stage", sum(p.sum().item() for p in model.parameters()))
again = train(2, 4)
while (told := next(again, None)) is not None:
    log(*told)
save(model=model, optimizer=optimizer)
""",
    "warm_up_before_the_epochs": """\
model = Net()
loader = DataLoader(Points(), batch_size=4, shuffle=True)


def run(epoch, optimizer):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))


run(0, torch.optim.SGD(model.parameters(), lr=0.001))
for rate in (0.01, 0.001):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for epoch in range(1, 3):
        run(epoch, optimizer)
        print("epoch", epoch, "of", rate)
save(model=model, optimizer=optimizer)
""",
    "phases": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(2):
    for batch, (x, y) in enumerate(loader):
        log(f"warm{epoch}", batch, step(model, optimizer, x, y))
print("between")
torch.save(model.state_dict(), "phase1.pt")
first = evaluate(model, loader)
for name, parameter in model.named_parameters():
    parameter.requires_grad_(name.startswith("fc2"))
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=first / 10, momentum=0.9)
for epoch in range(2):
    for batch, (x, y) in enumerate(loader):
        log(f"fine{epoch}", batch, step(model, optimizer, x, y))
model.load_state_dict(torch.load("phase1.pt"))
for batch, (x, y) in enumerate(loader):
    log("last", batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, first=first)
""",
    "phases_in_functions": """\
def pretrain(model, data):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(2):
        for batch, (x, _) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
            loss = (model(x).sum(1) - x.sum(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log(f"pre{epoch}", batch, loss.item())
    return optimizer


def finetune(model, data, scale):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * scale)
    for epoch in range(2):
        for batch, (x, y) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
            log(f"fine{epoch}", batch, step(model, optimizer, x, y))
    return optimizer


model, data = Net(), Points()
first = pretrain(model, data)
scale = float(sum(p.abs().sum() for p in model.parameters()))
second = finetune(model, data, scale)
save(model=model, first=first, second=second, scale=scale)
""",
    "same_function_twice": """\
def fit(model, lr, epochs, name):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    loader = DataLoader(Points(), batch_size=4, shuffle=True)
    for epoch in range(epochs):
        for batch, (x, y) in enumerate(loader):
            log(f"{name}{epoch}", batch, step(model, optimizer, x, y))
    return evaluate(model, loader)


model = Net()
coarse = fit(model, 0.01, 2, "coarse")
fine = fit(model, coarse / 100, 2, "fine")
save(model=model, coarse=coarse, fine=fine)
""",
    "folds_with_classes_of_their_own": """\
import torch.fx
from torch.nn.utils import parametrizations, parametrize, prune


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


def make(fold):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = parametrizations.spectral_norm(nn.Linear(8, 2))

        def forward(self, x):
            return self.fc(x) * (fold + 1)

    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 8), Head())
    parametrize.register_parametrization(net[2], "weight", Doubled())
    prune.l1_unstructured(net[2], "bias", 0.3)
    return net


data, scores = Points(), []
for fold in range(3):
    Score = collections.namedtuple("Score", "fold loss")
    Settings = dataclasses.make_dataclass("Settings", ["rate", ("seen", list, dataclasses.field(default_factory=list))])
    settings, model = Settings(0.01 * (fold + 1)), make(fold)
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    optimizer = torch.optim.SGD([*model.parameters(), *traced.parameters()], lr=settings.rate, momentum=0.9)
    loader = DataLoader(data, batch_size=6, shuffle=True)
    for epoch in range(2):
        for batch, (x, y) in enumerate(loader):
            value = step(lambda x: traced(model(x)), optimizer, x, y)
            settings.seen.append(Score(fold, value))
            log(f"{fold}-{epoch}", batch, value)
    scores.append(settings.seen[-1]._replace(fold=fold + 1))
    print("fold", fold, len(settings.seen), repr(settings)[:20])
save(model=dict(model.named_parameters()), buffers=dict(model.named_buffers()), scores=[list(one) for one in scores])
""",
    "folds": """\
data = Points(60)
scores = []
for fold in range(3):
    held = list(range(fold * 20, fold * 20 + 20))
    kept = [i for i in range(60) if i not in held]
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(torch.utils.data.Subset(data, kept), batch_size=5, shuffle=True)
    for epoch in range(2):
        for batch, (x, y) in enumerate(loader):
            log(f"{fold}-{epoch}", batch, step(model, optimizer, x, y))
    scores.append(evaluate(model, DataLoader(torch.utils.data.Subset(data, held), batch_size=10)))
    print("fold", fold, scores)
save(model=model, optimizer=optimizer, scores=scores)
""",
    "seeds_and_folds_in_functions": """\
def train(seed, fold, lr):
    torch.manual_seed(seed)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for epoch in range(2):
        for batch, (x, y) in enumerate(DataLoader(Points(40 + 5 * fold), batch_size=5, shuffle=True)):
            log(f"{seed}-{fold}-{epoch}", batch, step(model, optimizer, x, y))
    return model


results = {}
for seed in (10, 20):
    for fold in range(2):
        lr = 0.01 if not results else 0.001 + abs(results[max(results)])
        model = train(seed, fold, lr)
        results[seed, fold] = model.fc2.bias[0].item() / 100
        print("result", seed, fold, results[seed, fold])
save(model=model, results=results)
""",
    "two_loops_per_epoch": """\
generator, critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)), Net()
of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    weight = 0.0
    for batch, (x, y) in enumerate(loader):
        fake = generator(torch.randn(len(x), 3)).detach()
        loss = F.cross_entropy(critic(torch.cat([x, fake])), torch.cat([y, torch.zeros_like(y)]))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        weight += loss.item()
        log(f"critic{epoch}", batch, loss.item())
    print("between", epoch, weight)
    for batch in range(8):
        loss = F.cross_entropy(critic(generator(torch.randn(4, 3))), torch.ones(4, dtype=torch.long)) * weight
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
        log(f"generator{epoch}", batch, loss.item())
    print("epoch", epoch, "done")
save(generator=generator, critic=critic, of_generator=of_generator, of_critic=of_critic)
""",
    "gan_in_one_loop": """\
generator, critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)), Net()
of_generator = torch.optim.Adam(generator.parameters(), lr=0.01)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        for _ in range(2):
            fake = generator(torch.randn(len(x), 3)).detach()
            loss = F.cross_entropy(critic(torch.cat([x, fake])), torch.cat([y, torch.zeros_like(y)]))
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
        gain = F.cross_entropy(critic(generator(torch.randn(4, 3))), torch.ones(4, dtype=torch.long))
        of_generator.zero_grad()
        gain.backward()
        of_generator.step()
        log(epoch, batch, (loss.item(), gain.item()))
save(generator=generator, critic=critic, of_generator=of_generator, of_critic=of_critic)
""",
    "meta_learning": """\
model = Net()
outer = torch.optim.Adam(model.parameters(), lr=0.01)
data = Points(shake=False)
for epoch in range(3):
    for batch in range(10):
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=0.1)
        for _ in range(3):
            chosen = random.sample(range(48), 4)
            loss = step(learner, inner, data.x[chosen], data.y[chosen])
        outer.zero_grad()
        for mine, learned in zip(model.parameters(), learner.parameters()):
            mine.grad = mine.detach() - learned.detach()
        outer.step()
        log(epoch, batch, loss)
save(model=model, outer=outer)
""",
    "accumulation_inner": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = Points(shake=False)
for epoch in range(3):
    for batch in range(12):
        total = 0.0
        for micro in range(3):
            chosen = torch.randint(48, (4,))
            loss = F.cross_entropy(model(data.x[chosen]), data.y[chosen]) / 3
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        log(epoch, batch, total)
save(model=model, optimizer=optimizer)
""",
    "accumulation_modulo": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y) / 5
        loss.backward()
        if (batch + 1) % 5 == 0:
            optimizer.step()
            optimizer.zero_grad()
        log(epoch, batch, loss.item())
save(model=model, optimizer=optimizer)
""",
    "evaluation_at_the_top": """\
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
held_out = DataLoader(Points(30, shake=False), batch_size=10)
last = None
for epoch in range(4):
    score = evaluate(model, held_out)
    print("before epoch", epoch, score)
    with open(f"score{epoch}.txt", "w") as file:
        file.write(f"{score!r}\\n")
    lr = 0.1 if last is None else 0.1 * score / last
    for group in optimizer.param_groups:
        group["lr"] = lr
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
    last = score
save(model=model, optimizer=optimizer, last=last)
""",
    "curriculum": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
size, data = 16, Points()
for epoch in range(4):
    subset = torch.utils.data.Subset(data, random.sample(range(48), size))
    total = 0.0
    for batch, (x, y) in enumerate(DataLoader(subset, batch_size=4, shuffle=True)):
        loss = step(model, optimizer, x, y)
        total += loss
        log(epoch, batch, loss)
    size = min(48, size + (12 if total / (batch + 1) < 0.8 else 8))
    print("size", size)
save(model=model, optimizer=optimizer, size=size)
""",
}
