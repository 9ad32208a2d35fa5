"""How the loops are written."""

from .program import BEGIN, LIST, TORCH, VARIED, VARIED_BY_32, program

LOOPS = [
    program(
        "for_in_for",
        BEGIN
        + """\
for epoch in range(3):  # <epoch>
    total = 0.0
    for x, y in loader:  # <batch> <dl>
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
        total += loss.item()
    print(epoch, total)
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "main_guard",
        """\
def main():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8)
    for epoch in range(2):  # <epoch>
        for batch, (x, y) in enumerate(loader):  # <batch> <dl>
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()  # <update>


if __name__ == "__main__":
    main()
""",
        loaders=(TORCH,),
    ),
    program(
        "loops_under_the_main_guard",
        """\
if __name__ == "__main__":
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*points(args.n)), batch_size=8)
    for epoch in range(2):  # <epoch>
        for x, y in loader:  # <batch> <dl>
            learn(model, optimizer, x, y)
            optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "one_loop_only",
        BEGIN
        + """\
for x, y in loader:  # <batch> <dl>
    loss = learn(model, optimizer, x, y)
    optimizer.step()  # <update>
print(loss)
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "while_around_for",
        BEGIN
        + """\
step = 0
while step < 20:  # <epoch>
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
        step += 1
        if step == 20:
            break
""",
        loaders=(TORCH,),
    ),
    program(
        "while_with_a_new_iterator_at_its_end",
        BEGIN
        + """\
batches = iter(loader)
step = 0
while step < 20:  # <batch>
    try:
        x, y = next(batches)  # <dl>
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)  # <dl>
    learn(model, optimizer, x, y)
    optimizer.step()  # <update>
    step += 1
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "while_true_with_break",
        BEGIN
        + """\
epoch = 0
while True:  # <epoch>
    batches = iter(loader)
    while True:  # <batch>
        try:
            x, y = next(batches)  # <dl>
        except StopIteration:
            break
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
    epoch += 1
    if epoch == 3:
        break
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "for_range_with_next",
        BEGIN
        + """\
for epoch in range(2):  # <epoch>
    batches = iter(loader)
    for _ in range(len(loader)):  # <batch>
        x, y = next(batches)  # <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "enumerate_of_tqdm",
        "from tqdm import tqdm, trange\n"
        + BEGIN
        + """\
for epoch in trange(2):  # <epoch>
    for batch, (x, y) in enumerate(tqdm(loader, leave=False)):  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "with_tqdm",
        "from tqdm import tqdm\n"
        + BEGIN
        + """\
for epoch in range(2):  # <epoch>
    with tqdm(loader, desc=f"epoch {epoch}") as bar:
        for x, y in bar:  # <batch> <dl>
            loss = learn(model, optimizer, x, y)
            optimizer.step()  # <update>
            bar.set_postfix(loss=loss)
""",
        loaders=(TORCH,),
    ),
    program(
        "zip_with_a_schedule",
        BEGIN
        + """\
rates = [0.1, 0.01, 0.001]
for epoch in range(2):  # <epoch>
    for (x, y), rate in zip(loader, itertools.cycle(rates)):  # <batch> <dl>
        optimizer.param_groups[0]["lr"] = rate
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "islice_of_the_loader",
        BEGIN
        + """\
for epoch in range(3):  # <epoch>
    for x, y in itertools.islice(loader, 5):  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "product_of_epochs_and_rates",
        BEGIN
        + """\
for epoch, rate in itertools.product(range(2), (0.1, 0.01)):  # <epoch>
    optimizer.param_groups[0]["lr"] = rate
    for x, y in loader:  # <batch> <dl>
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "all_epochs_in_one_chain",
        BEGIN
        + """\
for x, y in itertools.chain.from_iterable(loader for epoch in range(3)):  # <batch> <dl>
    learn(model, optimizer, x, y)
    optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "header_over_several_lines",
        BEGIN
        + """\
for epoch in range(  # <epoch>
    2,
):
    for batch, (  # <batch> <dl>
        x,
        y,
    ) in enumerate(
        loader,
        start=1,
    ):
        learn(model, optimizer, x, y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "loop_on_one_line",
        BEGIN
        + """\
def advance(x, y):
    learn(model, optimizer, x, y)
    optimizer.step()  # <update>


for epoch in range(3):  # <epoch>
    for x, y in loader: advance(x, y)  # <batch> <dl>
""",
        loaders=(TORCH,),
    ),
    program(
        "step_in_the_header",
        BEGIN
        + """\
def advance(batch):
    loss = learn(model, optimizer, *batch)
    optimizer.step()  # <update>
    return loss


for epoch in range(2):  # <epoch>
    for loss in map(advance, loader):  # <batch> <dl>
        print(epoch, loss)
""",
        loaders=(TORCH,),
    ),
    program(
        "nested_comprehensions",
        """\
x, y = points(args.n)
batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, args.n, 8)]
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <epoch>
    for xs, ys in batches:  # <batch> <dl>
        rows = [[a * b for b in row] for row, a in zip(xs.tolist(), [0.5] * len(xs))]
        loss = sum([F.cross_entropy(model(row), y) for row, y in zip(torch.tensor(rows), ys)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <update>
        print({name: sum(p.sum().item() for p in [p]) for name, p in model.named_parameters()})
""",
        vary="--n 96",
        diff_size=4,
        loaders=(LIST,),
    ),
    program(
        "loops_within_contexts",
        BEGIN
        + """\
@contextlib.contextmanager
def phase(name):
    print("begin", name)
    try:
        yield name
    finally:
        print("end", name)


try:
    with phase("training"), torch.enable_grad():
        for epoch in range(2):  # <epoch>
            with phase(f"epoch {epoch}"):
                try:
                    for x, y in loader:  # <batch> <dl>
                        with contextlib.ExitStack() as stack:
                            stack.enter_context(phase("batch"))
                            learn(model, optimizer, x, y)
                            optimizer.step()  # <update>
                finally:
                    print("through")
finally:
    print("all")
""",
        loaders=(TORCH,),
    ),
    program(
        "shards_within_epochs",
        """\
x, y = points(args.n)
shards = [TensorDataset(x[i::2], y[i::2]) for i in range(2)]
model = net()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):  # <outer>
    random.shuffle(shards)
    for shard in shards:  # <epoch>
        for xs, ys in DataLoader(shard, batch_size=8, shuffle=True):  # <batch> <dl>
            learn(model, optimizer, xs, ys)
            optimizer.step()  # <update>
""",
        vary="--n 96",
        diff_size=16,
        loaders=(TORCH,),
    ),
]
