"""Training on a CUDA device, killed twice: the same bits.

The generators of the device, what other streams have yet to do, what a CUDA graph works on, moments in half precision.
"""

import pytest
import torch

from .harness import Moment
from .programs import Program
from .programs.prelude import PRELUDE
from .test_examples import example

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CUDA = {
    "mixed_precision": """\
model = Net().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 36)
scaler = torch.amp.GradScaler("cuda", init_scale=1024, growth_interval=5)
loader = DataLoader(Points(), batch_size=4, shuffle=True, num_workers=2, pin_memory=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        log(epoch, batch, loss.item())
save(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, cuda=torch.cuda.get_rng_state())
""",
    "prefetcher_on_a_stream": """\
class Prefetcher:
    def __init__(self, loader):
        self.loader, self.stream = iter(loader), torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = self.y = None
            return
        with torch.cuda.stream(self.stream):
            self.x, self.y = self.x.to("cuda", non_blocking=True), self.y.to("cuda", non_blocking=True)
            self.x = self.x + 0.01 * torch.randn_like(self.x)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        self.preload()
        return x, y


model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    prefetcher = Prefetcher(DataLoader(Points(), batch_size=4, shuffle=True))
    x, y = prefetcher.next()
    batch = 0
    while x is not None:
        log(epoch, batch, step(model, optimizer, x, y))
        x, y = prefetcher.next()
        batch += 1
save(model=model, optimizer=optimizer, cuda=torch.cuda.get_rng_state())
""",
    "whole_step_in_a_graph": """\
data = Points(shake=False)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2)).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
still_x, still_y = torch.zeros(4, 6, device="cuda"), torch.zeros(4, dtype=torch.long, device="cuda")
aside = torch.cuda.Stream()
aside.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(aside):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(still_x), still_y).backward()
        optimizer.step()
torch.cuda.current_stream().wait_stream(aside)
graph = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(graph):
    still_loss = F.cross_entropy(model(still_x), still_y)
    still_loss.backward()
    optimizer.step()
for epoch in range(3):
    order = torch.randperm(48)
    for batch in range(12):
        chosen = order[4 * batch : 4 * batch + 4]
        still_x.copy_(data.x[chosen])
        still_y.copy_(data.y[chosen])
        graph.replay()
        log(epoch, batch, still_loss.item())
save(model=model, optimizer=optimizer, cuda=torch.cuda.get_rng_state())
""",
    "convolutions_channels_last": """\
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1),
    nn.Conv2d(16, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2),
).to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
images = torch.randn(48, 3, 32, 32)
targets = (images.mean((1, 2, 3)) > 0).long()
loader = DataLoader(TensorDataset(images, targets), batch_size=4, shuffle=True)
for epoch in range(3):
    for batch, (x, y) in enumerate(loader):
        x = x.to("cuda", memory_format=torch.channels_last) + 0.1 * torch.randn(3, 1, 1, device="cuda")
        log(epoch, batch, step(model, optimizer, x, y.to("cuda")))
save(model=model, optimizer=optimizer, cuda=torch.cuda.get_rng_state())
""",
}


@pytest.mark.parametrize("name", CUDA)
def test_training_on_a_device_killed_twice_gives_the_same_bits(name, killed):
    life = killed(Program(name, PRELUDE + CUDA[name]), [Moment(batches=24), Moment(batches=3, is_whole_group=False)])
    assert life.num_kills == 2
    assert len(life.resumes) == 2


@pytest.mark.parametrize(
    ("program", "text"),
    [
        pytest.param(example("torch_digits", "--device", "cuda", "--epochs", "5"), "epoch 2 batch", id="torch_digits"),
        pytest.param(
            example("torch_char_lm", "--device=cuda", "--max_iters=60", "--eval_interval=20"),
            "step 30",
            id="torch_char_lm",
        ),
    ],
)
def test_example_on_a_device_killed_in_the_middle_saves_the_same_files(killed, program, text):
    life = killed(program, [Moment(text=text), Moment(delay_s=4.0, is_whole_group=False)], every="5batches")
    assert life.resumes
