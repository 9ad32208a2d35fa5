"""A resume runs none of the skipped bodies and, where the position can be set, loads none of their data."""

import re

import pytest

from tests.tiers import full_but

from .harness import Moment
from .programs import Program
from .programs.prelude import PRELUDE

SCRIPT = (
    PRELUDE
    + """\
class Noted(Points):
    def __getitem__(self, index):
        os.write(2, f"loaded {int(index)}\\n".encode())
        return super().__getitem__(index)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = Noted(48)
SETUP
for epoch in range(3):
    for batch, (x, y) in LOOP:
        log(epoch, batch, step(model, optimizer, x, y))
"""
)

EVEN = """\
class Even(Sampler):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 48

    def __iter__(self):
        return iter(torch.randperm(48).tolist())
"""

#: Set-up, and what the batch loop runs over.
SHAPES = {
    "enumerate": ("loader = DataLoader(data, 4, shuffle=True, num_workers=N)", "enumerate(loader)"),
    "zip": ("loader = DataLoader(data, 4, shuffle=True, num_workers=N)", "zip(range(12), loader)"),
    "tqdm": ("loader = DataLoader(data, 4, shuffle=True, num_workers=N)", "enumerate(tqdm(loader))"),
    "tqdm around enumerate": ("loader = DataLoader(data, 4, shuffle=True, num_workers=N)", "tqdm(enumerate(loader))"),
    "islice": ("loader = DataLoader(data, 4, shuffle=True, num_workers=N)", "enumerate(itertools.islice(loader, 11))"),
    "BatchSampler": (
        "order = torch.utils.data.RandomSampler(data)\n"
        "loader = DataLoader(data, batch_sampler=BatchSampler(order, 4, True), num_workers=N)",
        "enumerate(loader)",
    ),
    "Sampler of the user": (EVEN + "loader = DataLoader(data, 4, sampler=Even(), num_workers=N)", "enumerate(loader)"),
    "persistent workers": (
        "loader = DataLoader(data, 4, shuffle=True, num_workers=N, persistent_workers=N > 0)",
        "enumerate(loader)",
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shape", full_but(["persistent workers"], SHAPES))
def test_data_of_skipped_batches_is_not_loaded_again(shape, workers, killed):
    setup, loop = SHAPES[shape]
    script = SCRIPT.replace("SETUP", setup).replace("LOOP", loop)
    script = script.replace("=N > 0", f"={workers > 0}").replace("num_workers=N", f"num_workers={workers}")
    life = killed(Program(f"skipping {shape} {workers}", script), [Moment(batches=18)])
    again = life.attempts[-1]
    assert again.resumed
    # On standard error and anywhere in a line: workers write while the main process is between a text and its newline.
    loaded = re.findall(r"loaded \d+", again.stderr)
    # A worker loads ahead; where the loop stops before the loader does, that is one batch in each epoch too many.
    ahead = 2 * 4 if workers and shape == "islice" else 0
    assert len(again.batches) < 2 * 12
    assert 4 * len(again.batches) <= len(loaded) <= 4 * len(again.batches) + ahead


@pytest.mark.full
def test_bodies_of_skipped_batches_and_epochs_do_not_run_again(killed):
    script = SCRIPT.replace("SETUP", "loader = DataLoader(data, 4, shuffle=True)").replace("LOOP", "enumerate(loader)")
    script = script.replace("        log(", '        os.write(2, f"body {epoch} {batch}\\n".encode())\n        log(')
    life = killed(Program("bodies", script, environment={"DETRAIN_WAIT_FOR_DISK": "1"}), [Moment(batches=30)])
    bodies = re.findall(r"body \d+ \d+", life.attempts[-1].stderr)
    assert len(bodies) == len(life.attempts[-1].batches) <= 7
