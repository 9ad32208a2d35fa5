"""Training from a loader of the script's own."""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=512)
args = parser.parse_args()
torch.manual_seed(0)


class Rows:
    """Rows at random offsets."""

    def __init__(self, count: int) -> None:
        self.rows = torch.randn(count, 64)

    def grab(self, size: int) -> torch.Tensor:
        """A batch."""
        return self.rows[torch.randint(len(self.rows), (size,))]


rows = Rows(args.n)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters())
for _epoch in range(4):
    for _batch in range(args.n // 8):
        loss = model(rows.grab(8)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
