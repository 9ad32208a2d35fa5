"""Optimizers, schedulers, scalers, parametrizations, and training without any of them."""


def _scheduled(scheduler: str, per_batch: str = "", per_epoch: str = "") -> str:
    return f"""\
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
scheduler = torch.optim.lr_scheduler.{scheduler}
for epoch in range(4):
    total = 0.0
    for batch, (x, y) in enumerate(loader):
        loss = step(model, optimizer, x, y)
        total += loss
        {per_batch or "pass"}
        log(epoch, batch, (loss, optimizer.param_groups[0]["lr"]))
    {per_epoch or "pass"}
numbers = {{k: v for k, v in vars(scheduler).items() if isinstance(v, (int, float))}}
save(model=model, optimizer=optimizer, scheduler=numbers)
"""


_OPTIMIZER = """\
model = Net()
optimizer = {}
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
"""

OPTIMIZERS = {
    "lr_lambda": _scheduled("LambdaLR(optimizer, lambda s: 1 / (1 + 0.1 * s))", per_batch="scheduler.step()"),
    "lr_one_cycle": _scheduled("OneCycleLR(optimizer, 0.2, total_steps=48)", per_batch="scheduler.step()"),
    "lr_plateau": _scheduled("ReduceLROnPlateau(optimizer, patience=0)", per_epoch="scheduler.step(total)"),
    "lr_sequential": _scheduled(
        "SequentialLR(optimizer, [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10), "
        "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 38)], [10])",
        per_batch="scheduler.step()",
    ),
    "lr_warm_restarts": _scheduled(
        "CosineAnnealingWarmRestarts(optimizer, 2, 2)", per_batch="scheduler.step(epoch + batch / len(loader))"
    ),
    "lr_chained": _scheduled(
        "ChainedScheduler([torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "
        "torch.optim.lr_scheduler.StepLR(optimizer, 2)])",
        per_epoch="scheduler.step()",
    ),
    "adam_amsgrad": _OPTIMIZER.format("torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, foreach=True)"),
    "adagrad": _OPTIMIZER.format("torch.optim.Adagrad(model.parameters(), lr=0.05)"),
    "rmsprop": _OPTIMIZER.format("torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.9, centered=True)"),
    "adam_fused": _OPTIMIZER.format("torch.optim.Adam(model.parameters(), lr=0.01, fused=True)"),
    "adam_tensor_lr": _OPTIMIZER.format("torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01))"),
    "rprop": _OPTIMIZER.format("torch.optim.Rprop(model.parameters(), lr=0.01)"),
    "lbfgs": """\
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
loader = DataLoader(Points(), batch_size=16, shuffle=True)
for epoch in range(4):
    for batch, (x, y) in enumerate(loader):
        calls = 0

        def closure():
            global calls
            calls += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        log(epoch, batch, (optimizer.step(closure).item(), calls))
save(model=model, optimizer=optimizer)
""",
    "optimizer_of_the_user": """\
class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.calls = 0

    @torch.no_grad()
    def step(self):
        self.calls += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                parameter.add_(torch.sign(state["momentum"].lerp(parameter.grad, 0.1)), alpha=-group["lr"])
                state["momentum"].lerp_(parameter.grad, 0.01)


model = Net()
optimizer = Lion(model.parameters(), 0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, calls=optimizer.calls)
""",
    "sgd_by_hand": """\
data = Points(shake=False)
w = torch.randn(6, 2, requires_grad=True)
b = torch.zeros(2, requires_grad=True)
for epoch in range(3):
    order = torch.randperm(48)
    for batch in range(12):
        chosen = order[4 * batch : 4 * batch + 4]
        loss = F.cross_entropy(data.x[chosen] @ w + b, data.y[chosen])
        loss.backward()
        with torch.no_grad():
            for parameter in (w, b):
                parameter -= 0.1 * parameter.grad
                parameter.grad.zero_()
        log(epoch, batch, loss.item())
save(w=w, b=b)
""",
    "sgd_by_hand_rebinding": """\
data = Points(shake=False)
w = torch.randn(6, 2, requires_grad=True)
for batch in range(40):
    chosen = torch.randint(48, (4,))
    loss = F.cross_entropy(data.x[chosen] @ w, data.y[chosen])
    (gradient,) = torch.autograd.grad(loss, w)
    w = (w - 0.1 * gradient).detach().requires_grad_()
    log(0, batch, loss.item())
save(w=w)
""",
    "rnn_carried_state": """\
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, state):
        y, state = self.rnn(x, state)
        return self.out(y), state


model = Reader()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = Points(600, shake=False)
for epoch in range(3):
    state = None
    for batch in range(12):
        x = data.x[batch * 40 : batch * 40 + 40].view(4, 10, 6)
        y = data.y[batch * 40 : batch * 40 + 40].view(4, 10)
        out, state = model(x, state)
        state = tuple(part.detach() for part in state)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        log(epoch, batch, loss.item())
save(model=model, optimizer=optimizer, state=state)
""",
    "rnn_detached_at_the_top": """\
cell, out = nn.GRUCell(6, 8), nn.Linear(8, 2)
optimizer = torch.optim.AdamW([*cell.parameters(), *out.parameters()], lr=0.01)
data = Points(shake=False)
hidden = torch.zeros(4, 8)
for epoch in range(3):
    for batch in range(12):
        hidden = hidden.detach()
        x, y = data.x[4 * batch : 4 * batch + 4], data.y[4 * batch : 4 * batch + 4]
        hidden = cell(x, hidden)
        loss = F.cross_entropy(out(hidden), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(epoch, batch, loss.item())
save(cell=cell, out=out, optimizer=optimizer, hidden=hidden)
""",
    "autocast_and_scaler": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=7)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        log(epoch, batch, (loss.item(), scaler.get_scale()))
save(model=model, optimizer=optimizer, scaler=scaler)
""",
    "optimizer_swapped": """\
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(4):
    if epoch == 2:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "unfreezing": """\
model = Net()
for parameter in model.fc1.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(4):
    if epoch == 1:
        for parameter in model.fc1.parameters():
            parameter.requires_grad_(True)
        optimizer.add_param_group({"params": list(model.fc1.parameters()), "lr": 0.001})
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "growing_model": """\
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(4):
    if epoch in (1, 2):
        layer = nn.Linear(8, 8)
        model.insert(2, nn.Sequential(layer, nn.ReLU()))
        optimizer.add_param_group({"params": layer.parameters()})
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
print(model)
save(model=model, optimizer=optimizer)
""",
    "parametrizations": """\
model = nn.Sequential(
    nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)),
    nn.ReLU(),
    nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    nn.ReLU(),
    nn.utils.spectral_norm(nn.Linear(8, 2)),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer)
""",
    "nested_model_lists": """\
class Boost(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([nn.ModuleDict({"a": nn.Linear(6, 8), "b": nn.Linear(8, 2)}) for _ in range(3)])
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])

    def forward(self, x):
        return sum(w * s["b"](F.relu(s["a"](x))) for w, s in zip(self.weights, self.stages))


models = [Boost(), [Net(), {"last": Net()}]]
every = [models[0], models[1][0], models[1][1]["last"]]
optimizers = [torch.optim.Adam(model.parameters(), lr=0.01 * (i + 1)) for i, model in enumerate(every)]
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        losses = []
        for model, optimizer in zip(every, optimizers):
            losses.append(step(model, optimizer, x, y))
        log(epoch, batch, losses)
save(models=models, optimizers=optimizers)
""",
    "hooks_on_the_model": """\
model = Net()
seen = []
model.fc1.register_forward_hook(lambda module, args, out: seen.append(out.detach().abs().mean().item()))
model.fc2.weight.register_hook(lambda gradient: gradient * (1 + 0.001 * len(seen)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer.register_step_post_hook(lambda *_: seen.append("step"))
loader = DataLoader(Points(), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        log(epoch, batch, step(model, optimizer, x, y))
save(model=model, optimizer=optimizer, seen=seen)
""",
}
