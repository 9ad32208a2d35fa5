"""How the weights are updated."""

from .program import BEGIN, TORCH, VARIED, program

_WEIGHTS = """\
w = torch.randn(6, 2, requires_grad=True)
b = torch.zeros(2, requires_grad=True)
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True)
"""
_MODEL = """\
model = net()
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True)
"""

UPDATES = [
    program(
        "by_hand_under_no_grad",
        _MODEL
        + """\
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "by_hand_on_data",
        _WEIGHTS
        + """\
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(x @ w + b, y)
        loss.backward()
        w.data -= 0.1 * w.grad  # <update>
        b.data -= 0.1 * b.grad  # <update>
        w.grad, b.grad = None, None
""",
        loaders=(TORCH,),
    ),
    program(
        "by_hand_with_add",
        _MODEL
        + """\
def descend(parameters, rate):
    for p in parameters:
        if p.grad is not None:
            p.data.add_(p.grad, alpha=-rate)  # <update>
            p.grad = None


for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        F.cross_entropy(model(x), y).backward()
        descend(list(model.parameters()), 0.1)
""",
        loaders=(TORCH,),
    ),
    program(
        "by_hand_with_autograd_grad",
        _MODEL
        + """\
parameters = list(model.parameters())
momenta = [torch.zeros_like(p) for p in parameters]
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        with torch.no_grad():
            for p, m, g in zip(parameters, momenta, gradients):
                m.mul_(0.9).add_(g)
                p.sub_(0.1 * m)  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "by_hand_for_all_at_once",
        _MODEL
        + """\
parameters = list(model.parameters())
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-0.1)  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "by_hand_into_a_slice",
        """\
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True)
weights = torch.zeros(7, 2, requires_grad=True)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(x @ weights[:6] + weights[6], y)
        (g,) = torch.autograd.grad(loss, [weights])
        with torch.no_grad():
            weights[:6] -= 0.1 * g[:6]  # <update>
            weights[6] -= 0.05 * g[6]  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "lbfgs_with_a_closure",
        """\
model = nn.Linear(6, 2)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=16)
for epoch in range(3):  # <epoch>
    for x, y in loader:  # <batch> <dl>

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "accumulation_of_four",
        BEGIN
        + """\
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
for epoch in range(3):  # <epoch>
    for batch, (x, y) in enumerate(loader):  # <batch> <dl>
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if (batch + 1) % 4 == 0:
            optimizer.step()  # <update>
            optimizer.zero_grad()
            schedule.step()
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "gradients_of_all_batches_summed",
        BEGIN
        + """\
for epoch in range(4):  # <batch>
    optimizer.zero_grad()
    for x, y in loader:
        F.cross_entropy(model(x), y, reduction="sum").backward()
    optimizer.step()  # <update>
""",
    ),
    program(
        "gradients_of_two_heads",
        BEGIN
        + """\
heads = [nn.Linear(2, 2), nn.Linear(2, 2)]
for head in heads:
    optimizer.add_param_group({"params": list(head.parameters())})
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        optimizer.zero_grad()
        body = model(x)
        for head in heads:
            F.cross_entropy(head(body), y).backward(retain_graph=True)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "optimizers_in_a_loop",
        BEGIN
        + """\
optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[2])]
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for one in optimizers:
            one.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "scaler_on_the_cpu",
        BEGIN
        + """\
scaler = torch.amp.GradScaler("cpu")
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)  # <update>
        scaler.update()
""",
        loaders=(TORCH,),
    ),
    program(
        "clipping_by_hand",
        BEGIN
        + """\
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        norm = sum(p.grad.pow(2).sum() for p in model.parameters()).sqrt().item()
        for p in model.parameters():
            p.grad.mul_(min(1.0, 1.0 / norm))
        for p in model.parameters():
            p.grad += 0.001 * p.detach()
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "step_under_another_name",
        BEGIN
        + """\
advance = optimizer.step
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        advance()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "optimizer_class_of_the_user",
        """\
class Signed(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.sign(), alpha=-group["lr"])  # <update>


"""
        + _MODEL
        + """\
optimizer = Signed(model.parameters(), 0.01)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "optimizer_of_no_known_kind",
        """\
class Descent:
    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate

    def apply(self):
        with torch.no_grad():
            for p in self.parameters:
                p.sub_(self.rate * p.grad)  # <update>
                p.grad.zero_()


"""
        + _MODEL
        + """\
descent = Descent(model.parameters(), 0.1)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        F.cross_entropy(model(x), y).backward()
        descent.apply()
""",
        loaders=(TORCH,),
    ),
    program(
        "optimizer_within_the_backward_pass",
        _MODEL
        + """\
optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}


def update(p):
    optimizers[p].step()  # <update>
    optimizers[p].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        F.cross_entropy(model(x), y).backward()
""",
        loaders=(TORCH,),
    ),
    program(
        "sharpness_aware",
        BEGIN
        + """\
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        with torch.no_grad():
            pushes = [0.05 * p.grad.sign() for p in model.parameters()]
            for p, push in zip(model.parameters(), pushes):
                p.add_(push)  # <update>
        learn(model, optimizer, x, y)
        with torch.no_grad():
            for p, push in zip(model.parameters(), pushes):
                p.sub_(push)  # <update>
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "average_of_the_weights",
        BEGIN
        + """\
average = copy.deepcopy(model)
for _ in range(3):
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters()):
            a.mul_(0.9).add_(p, alpha=0.1)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
        for a, p in zip(average.parameters(), model.parameters()):
            a.data.mul_(0.9).add_(p.data, alpha=0.1)
""",
        loaders=(TORCH,),
        **VARIED,
    ),
]
