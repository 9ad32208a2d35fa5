"""Schemes of training: adversaries, agents, learners of learners, phases, folds."""

from .program import BEGIN, TORCH, VARIED, VARIED_BY_32, called, program

_GAN = """\
maker = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))
critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
of_maker = torch.optim.Adam(maker.parameters(), lr=0.01)
of_critic = torch.optim.Adam(critic.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(points(args.n)[0]), batch_size=8, shuffle=True)
"""
_WORLD = """\
class World:
    def reset(self):
        self.place, self.age = 0.0, 0
        return self.look()

    def look(self):
        return torch.tensor([self.place, self.age / 10])

    def act(self, action):
        self.place += 0.3 if action else -0.3
        self.age += 1
        return self.look(), -abs(self.place), self.age >= 8 or abs(self.place) > 1


world = World()
policy = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
"""

SCHEMES = [
    program(
        "adversaries_with_two_optimizers",
        _GAN
        + """\
for epoch in range(2):  # <epoch>
    for (x,) in loader:  # <batch> <dl>
        fake = maker(torch.randn(len(x), 3))
        loss = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()  # <update>
        loss = F.softplus(-critic(fake)).mean()
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED_BY_32,
    ),
    program(
        "adversaries_with_two_data_sets",
        _GAN
        + """\
class Styles:
    def __init__(self, count):
        self.rows = [torch.randn(3) for _ in range(count)]

    def pick(self, size):
        return torch.stack(random.choices(self.rows, k=size))


styles = Styles(args.n)
for epoch in range(2):  # <epoch>
    for (x,) in loader:  # <batch> <dl>
        fake = maker(styles.pick(len(x)))  # <dl>
        loss = F.softplus(-critic(x)).mean() + F.softplus(critic(fake.detach())).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()  # <update>
        loss = F.softplus(-critic(fake)).mean()
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()  # <update>
""",
        loaders=(TORCH, called("train.Styles.pick")),
        **VARIED,
    ),
    program(
        "critic_steps_in_a_loop",
        _GAN
        + """\
for epoch in range(2):  # <epoch>
    for (x,) in loader:  # <batch> <dl>
        for _ in range(5):
            fake = maker(torch.randn(len(x), 3)).detach()
            loss = critic(fake).mean() - critic(x).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()  # <update>
            for p in critic.parameters():
                p.data.clamp_(-0.1, 0.1)  # <update>
        loss = -critic(maker(torch.randn(len(x), 3))).mean()
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()  # <update>
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "adversaries_take_turns",
        _GAN
        + """\
for step, (x,) in enumerate(itertools.chain(loader, loader)):  # <batch> <dl>
    fake = maker(torch.randn(len(x), 3))
    if step % 3:
        loss = critic(fake.detach()).mean() - critic(x).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()  # <update>
        continue
    of_maker.zero_grad()
    (-critic(fake).mean()).backward()
    of_maker.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "agent_with_a_replay_buffer",
        _WORLD
        + """\
target = copy.deepcopy(policy)
buffer = collections.deque(maxlen=100)
for episode in range(8):  # <epoch>
    state, done = world.reset(), False
    while not done:  # <batch>
        with torch.no_grad():
            action = random.randrange(2) if random.random() < 0.3 else policy(state).argmax().item()
        after, reward, done = world.act(action)
        buffer.append((state, action, reward, after, done))
        state = after
        if len(buffer) < 12:
            continue
        s, a, r, t, d = zip(*random.sample(buffer, 6))
        with torch.no_grad():
            aim = torch.tensor(r) + 0.9 * target(torch.stack(t)).max(1)[0] * (1 - torch.tensor(d).float())
        guess = policy(torch.stack(s)).gather(1, torch.tensor(a)[:, None])[:, 0]
        optimizer.zero_grad()
        F.mse_loss(guess, aim).backward()
        optimizer.step()  # <update>
        for slow, fast in zip(target.parameters(), policy.parameters()):
            slow.data.copy_(0.9 * slow.data + 0.1 * fast.data)
""",
    ),
    program(
        "agent_from_recorded_steps",
        """\
class Replay:
    def __init__(self, count):
        self.steps = collections.deque(maxlen=count)
        for place in range(count):
            self.steps.append((torch.randn(2), place % 2, random.random()))

    def sample(self, size):
        states, actions, rewards = zip(*random.sample(self.steps, size))
        return torch.stack(states), torch.tensor(actions), torch.tensor(rewards)


"""
        + _WORLD
        + """\
replay = Replay(args.n)
for step in range(20):  # <batch>
    states, actions, rewards = replay.sample(8)  # <dl>
    values = policy(states).gather(1, actions[:, None])[:, 0]
    optimizer.zero_grad()
    F.smooth_l1_loss(values, rewards).backward()
    optimizer.step()  # <update>
""",
        loaders=(called("train.Replay.sample"),),
        **VARIED_BY_32,
    ),
    program(
        "policy_gradient_by_episodes",
        _WORLD
        + """\
for episode in range(10):  # <batch>
    state, done, logs, rewards = world.reset(), False, [], []
    while not done:
        choice = torch.distributions.Categorical(logits=policy(state))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        state, reward, done = world.act(action.item())
        rewards.append(reward)
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + 0.9 * total
        returns.insert(0, total)
    loss = -sum(log * value for log, value in zip(logs, returns))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <update>
""",
    ),
    program(
        "agent_that_learns_from_its_last_steps",
        _WORLD
        + """\
for update in range(3):  # <outer>
    states, actions, rewards = [], [], []
    state = world.reset()
    with torch.no_grad():
        while len(states) < 32:
            action = torch.multinomial(policy(state).softmax(0), 1).item()
            states.append(state)
            actions.append(action)
            state, reward, done = world.act(action)
            rewards.append(reward)
            if done:
                state = world.reset()
    for epoch in range(4):  # <epoch>
        for rows in torch.randperm(32).split(8):  # <batch>
            logits = policy(torch.stack([states[i] for i in rows]))
            weight = torch.tensor([rewards[i] for i in rows])
            loss = (weight * F.cross_entropy(logits, torch.tensor([actions[i] for i in rows]), reduction="none")).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # <update>
""",
    ),
    program(
        "inner_steps_then_interpolation",
        """\
class Tasks:
    def __init__(self, count):
        self.slopes = [random.uniform(-1, 1) for _ in range(count)]

    def choose(self):
        x = torch.randn(8, 1)
        return x, x * random.choice(self.slopes)


model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tasks = Tasks(args.n)
for episode in range(20):  # <batch>
    before = [p.detach().clone() for p in model.parameters()]
    x, y = tasks.choose()  # <dl>
    for inner in range(5):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()  # <update>
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old + 0.5 * (p - old))  # <update>
""",
        loaders=(called("train.Tasks.choose"),),
        **VARIED_BY_32,
    ),
    program(
        "inner_steps_into_new_weights",
        """\
weights = [torch.randn(6, 2, requires_grad=True), torch.zeros(2, requires_grad=True)]
optimizer = torch.optim.Adam(weights, lr=0.01)
loader = DataLoader(TensorDataset(*points(args.n)), batch_size=16, shuffle=True)
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        total = 0.0
        for task in range(2):
            fast = weights
            for inner in range(3):
                loss = F.cross_entropy(x[task::2] @ fast[0] + fast[1], y[task::2])
                gradients = torch.autograd.grad(loss, fast, create_graph=True)
                fast = [w - 0.1 * g for w, g in zip(fast, gradients)]
            total = total + F.cross_entropy(x @ fast[0] + fast[1], y)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "attacked_inputs",
        BEGIN
        + """\
for epoch in range(2):  # <epoch>
    for x, y in loader:  # <batch> <dl>
        push = torch.zeros_like(x, requires_grad=True)
        for _ in range(3):
            (g,) = torch.autograd.grad(F.cross_entropy(model(x + push), y), [push])
            push.data.add_(0.02 * g.sign()).clamp_(-0.05, 0.05)  # <update>
        learn(model, optimizer, x + push.detach(), y)
        optimizer.step()  # <update>
""",
        loaders=(TORCH,),
    ),
    program(
        "sequences_cut_into_chunks",
        """\
sequences = [torch.randn(40, 1, 6) for _ in range(4)]
cell, head = nn.GRU(6, 8), nn.Linear(8, 6)
optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
for epoch in range(2):  # <outer>
    for sequence in sequences:  # <epoch>
        state = torch.zeros(1, 1, 8)
        for begin in range(0, 30, 10):  # <batch>
            out, state = cell(sequence[begin : begin + 10], state.detach())
            loss = F.mse_loss(head(out), sequence[begin + 1 : begin + 11])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()  # <update>
""",
    ),
    program(
        "two_phases",
        BEGIN
        + """\
def pretrain(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):  # <epoch>
        for x, _ in loader:  # <batch> <dl>
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()  # <update>


pretrain(model, loader)
for epoch in range(2):
    for x, y in loader:
        learn(model, optimizer, x, y)
        optimizer.step()
""",
        loaders=(TORCH,),
        **VARIED,
    ),
    program(
        "folds",
        """\
data = TensorDataset(*points(args.n))
order = torch.randperm(args.n).tolist()
for fold in range(4):  # <outer>
    held = order[fold::4]
    kept = [i for i in order if i not in held]
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):  # <epoch>
        for x, y in DataLoader(Subset(data, kept), batch_size=8, shuffle=True):  # <batch> <dl>
            learn(model, optimizer, x, y)
            optimizer.step()  # <update>
        with torch.no_grad():
            for x, y in DataLoader(Subset(data, held), batch_size=8):
                print(fold, epoch, F.cross_entropy(model(x), y).item())
""",
        vary="--n 96",
        diff_size=24,
        loaders=(TORCH,),
    ),
    program(
        "seeds_and_folds_through_functions",
        """\
def train(seed, fold):
    torch.manual_seed(seed)
    x, y = points(args.n)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):  # <epoch>
        for xs, ys in DataLoader(TensorDataset(x[fold::2], y[fold::2]), batch_size=8):  # <batch> <dl>
            learn(model, optimizer, xs, ys)
            optimizer.step()  # <update>
    return model[0].bias[0].item()


results = {}
for seed in (10, 20):  # <outer1>
    fold = 0
    while fold < 2:  # <outer2>
        results[seed, fold] = train(seed, fold)
        fold += 1
print(results)
""",
        loaders=(TORCH,),
    ),
]
