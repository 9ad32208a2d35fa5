"""`python scaled.py MEGABYTES LEAVES BATCHES [SECONDS]`: a training of so much state in so many leaves, in one epoch.

Only the first leaf is trained, so that a batch takes the same time whatever the rest is: what is measured is detrain. Large states are
memory that nobody has written to, which takes none. SECONDS: wait in the last batch, to be killed.
"""

import sys
import time

import torch

MEGABYTES, LEAVES, BATCHES = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
SECONDS = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0


def main():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(64))
    # Not by `zeros`, which would write to it.
    size = int(MEGABYTES * 1e6 / 4 / LEAVES)
    rest = [torch.from_file("/dev/zero", False, size) if size > 1 << 20 else torch.zeros(size) for _ in range(LEAVES)]
    optimizer = torch.optim.SGD([weight], 1e-3)
    for batch in range(BATCHES):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        if SECONDS and batch == BATCHES - 2:
            print("waiting", flush=True)
            time.sleep(SECONDS)
    print(len(rest), float(weight.sum()), flush=True)


main()
