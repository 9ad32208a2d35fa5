"""Loops that look like training and are not, and scripts that do not train at all."""

from .program import BEGIN, TORCH, VARIED, called, program

_TRAIN = """\
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
"""
_HELD = "held = DataLoader(TensorDataset(*points(args.n // 2)), batch_size=8, shuffle=True)\n"

LOOKALIKES = [
    program(
        "validation_before_and_after",
        BEGIN
        + _HELD
        + """\
for epoch in range(2):
    for x, y in held:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        print(loss.item())
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
    for x, y in held:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
for epoch in range(2):
    for x, y in held:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        print(loss.item())
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "validation_within_the_batch_loop",
        BEGIN
        + _HELD
        + """\
for epoch in range(2):  # <epoch>
    for batch, (x, y) in enumerate(loader):  # <batch> <dl>
        if batch % 3 == 0:
            for x_held, y_held in held:
                loss = F.cross_entropy(model(x_held), y_held)
                optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "validation_with_gradients_of_the_inputs",
        BEGIN
        + """\
def robustness(model):
    found = []
    for x, y in DataLoader(TensorDataset(*points(24)), batch_size=8):
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            found.append(F.cross_entropy(model(x + 0.1 * x.grad.sign()), y).item())
    model.zero_grad()
    return sum(found)


print(robustness(model))
"""
        + _TRAIN
        + "    print(epoch, robustness(model))\n",
        loaders=(TORCH,),
    ),
    program(
        "one_function_for_training_and_validation",
        BEGIN
        + _HELD
        + """\
def sweep(model, loader, optimizer=None):
    total = 0.0
    for x, y in loader:  # <batch> <dl>
        with torch.set_grad_enabled(optimizer is not None):
            loss = F.cross_entropy(model(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # <update>
        total += loss.item()
    return total


for epoch in range(2):  # <epoch>
    before = sweep(model, held)
    print(epoch, before, sweep(model, loader, optimizer), sweep(model, held))
""",
        loaders=(TORCH,),
    ),
    program(
        "loop_over_phases",
        BEGIN
        + _HELD
        + """\
loaders = {"held": held, "train": loader}
for epoch in range(2):  # <outer>
    for phase in ["held", "train"]:  # <epoch>
        model.train(phase == "train")
        for x, y in loaders[phase]:  # <batch> <dl>
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                loss = F.cross_entropy(model(x), y)
                if phase == "train":
                    loss.backward()
                    optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "warm_up_with_backward_and_no_step",
        BEGIN
        + """\
for size in (2, 4, 8):
    for trial in range(2):
        model(torch.randn(size, 6)).sum().backward()
        model.zero_grad()
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
    optimizer.zero_grad()
"""
        + _TRAIN,
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "preparation_in_many_loops",
        """\
rows = []
for number in range(args.n):
    row = torch.zeros(6)
    for place in range(6):
        row[place] += (number * (place + 3)) % 7
    rows.append(row)
for sweep in range(2):
    for row in rows:
        row -= row.mean()
        row.div_(row.std() + 1e-3)
mean = torch.zeros(6)
while len(rows) % 8:
    rows.pop()
for row in rows:
    mean.add_(row / len(rows))
for i in range(0, len(rows), 8):
    for row in rows[i : i + 8]:
        row.sub_(mean)
labels = [int(row[0] > row[1]) for row in rows]
data = list(zip(rows, labels))
model = net()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(data, batch_size=8, shuffle=True)
"""
        + _TRAIN,
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "weights_set_in_loops",
        BEGIN
        + """\
for layer in model:
    for p in layer.parameters():
        with torch.no_grad():
            p.uniform_(-0.5, 0.5)
for sweep in range(3):
    for p in model.parameters():
        p.data.sub_(p.data.mean())
        p.data -= 0.1 * p.data
for p in model.parameters():
    if p.dim() > 1:
        nn.init.xavier_uniform_(p)
"""
        + _TRAIN,
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "squared_gradients_gathered_before",
        BEGIN
        + """\
fisher = [torch.zeros_like(p) for p in model.parameters()]
for x, y in loader:
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    for f, p in zip(fisher, model.parameters()):
        f += p.grad.pow(2)
"""
        + _TRAIN,
        loaders=(TORCH,),
    ),
    program(
        "saliency_before",
        BEGIN
        + """\
x, y = points(16)
x.requires_grad_()
salience = torch.zeros(6)
for target in range(2):
    for row in range(16):
        (g,) = torch.autograd.grad(model(x)[row, target], x)
        salience += g.abs().sum(0)
"""
        + _TRAIN,
        loaders=(TORCH,),
    ),
    program(
        "statistics_of_norms_refreshed",
        """\
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8, shuffle=True)
for sweep in range(2):
    for x, _ in loader:
        model(x)
"""
        + _TRAIN,
        loaders=(TORCH,),
    ),
    program(
        "confusion_counted_in_the_batch_loop",
        """\
class Data:
    def __init__(self, count):
        self.x, self.y = points(count)

    def draw(self):
        rows = torch.randint(len(self.x), (8,))
        return self.x[rows], self.y[rows]


model = net()
optimizer = torch.optim.Adam(model.parameters())
data = Data(args.n)
confusion = torch.zeros(2, 2)
for epoch in range(2):  # <epoch>
    for batch in range(8):  # <batch>
        x, y = data.draw()  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
        for guess, label in zip(model(x).argmax(1), y):
            confusion[guess, label] += 1
        for row in range(2):
            for column in range(2):
                confusion[row, column] *= 0.9
""",
        loaders=(called("train.Data.draw"),),
        **VARIED,
    ),
    program(
        "rate_finder_comes_first",
        BEGIN
        + """\
def find_rate():
    model = net()
    finder = torch.optim.SGD(model.parameters(), lr=1e-4)
    best = (float("inf"), 0.0)
    for x, y in loader:  # <batch> <dl>
        best = min(best, (learn(model, finder, x, y), finder.param_groups[0]["lr"]))
        finder.step()  # <update>
        finder.param_groups[0]["lr"] *= 2
    return best[1]


optimizer.param_groups[0]["lr"] = find_rate()
for epoch in range(2):
    for x, y in loader:
        learn(model, optimizer, x, y)
        optimizer.step()
""",
        loaders=(TORCH,),
    ),
    program(
        "only_validation",
        BEGIN
        + """\
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        print(epoch, loss.item())
""",
        is_training=False,
    ),
    program(
        "only_gradients",
        BEGIN
        + """\
for epoch in range(2):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in loader:
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for t, p in zip(total, model.parameters()):
            t += p.grad
    print(epoch, sum(t.sum().item() for t in total))
""",
        is_training=False,
    ),
    program(
        "only_preparation",
        """\
model, average = net(), net()
for sweep in range(3):
    for p, a in zip(model.parameters(), average.parameters()):
        with torch.no_grad():
            p.normal_()
            a.mul_(0.9).add_(p, alpha=0.1)
print(sum(a.sum().item() for a in average.parameters()))
""",
        is_training=False,
    ),
]
