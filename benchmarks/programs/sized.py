"""`python sized.py MEGABYTES BATCHES`: a training whose parameters and Adam moments take so much memory.

Prints when each batch began, in seconds of the monotonic clock.
"""

import json
import sys
import time

import torch

BATCH_SIZE, WIDTH = 64, 1024


def prepare(num_bytes):
    """Returns what does a batch."""
    width = min(WIDTH, int((num_bytes / 12) ** 0.5))
    torch.manual_seed(1)
    # Each layer's weight is of float32, and so are its two moments.
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(max(1, round(num_bytes / 12 / width**2)))]
    for layer in layers:  # else what has passed 80 of them is subnormal, which is slow
        torch.nn.init.normal_(layer.weight, std=width**-0.5)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    data = torch.randn(BATCH_SIZE, width)

    def step():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    return step


def main():
    step = prepare(float(sys.argv[1]) * 1e6)
    began = []
    for _ in range(int(sys.argv[2])):
        began.append(time.monotonic())
        step()
    print(json.dumps(began), flush=True)


if __name__ == "__main__":
    main()
