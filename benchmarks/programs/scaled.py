"""`python scaled.py MEGABYTES LEAVES BATCHES`: a training of so much state in so many leaves, in one epoch.

Only one leaf of 64 elements is trained, so that a batch takes the same time whatever the rest is: what is measured is detrain. Large
leaves are memory that nobody has written to, which takes none before a resume writes to it. With WAIT_S in the environment it waits so
long in its last batch but one, to be killed there: no argument, since those are part of what a run is, and read only then, since a
variable would be in the checkpoint.
"""

import os
import sys
import time

import numpy as np
import torch

MEGABYTES, LEAVES, BATCHES = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def make(size):
    """A leaf. `torch.zeros` would write to it."""
    return torch.from_numpy(np.zeros(size, np.float32))


def main():
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(64))
    size = max(1, int(MEGABYTES * 1e6 / 4 / LEAVES))
    rest = [make(size) for _ in range(LEAVES)]
    optimizer = torch.optim.SGD([weight], 1e-3)
    for batch in range(BATCHES):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
        if batch == BATCHES - 2 and "WAIT_S" in os.environ:
            print("waiting", flush=True)
            time.sleep(float(os.environ["WAIT_S"]))
    print(len(rest), float(weight.sum()), flush=True)


main()
