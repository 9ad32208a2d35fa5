"""`python long_epoch.py BATCHES WORKERS`: one epoch of a `DataLoader` whose items take their time.

Says when the body of every 200th batch begins. With PAUSE_AT=N in the environment it waits in that batch to be killed.
"""

import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE = 4


class Slow(Dataset):
    """Items (8,) that are worked out, in 50 to 100 µs each."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((8,), float(sum(range(index % 7, 4000)) % 11))


def main():
    num_batches, num_workers = int(sys.argv[1]), int(sys.argv[2])
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(Slow(BATCH_SIZE * num_batches), BATCH_SIZE, shuffle=True, num_workers=num_workers)
    for _epoch in range(1):
        for number, batch in enumerate(loader):  # (B, 8)
            if number % 200 == 0:
                print(number, flush=True)
                if os.environ.get("PAUSE_AT") == str(number):
                    time.sleep(600)
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


main()
