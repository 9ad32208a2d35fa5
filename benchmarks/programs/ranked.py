"""`torchrun … ranked.py step BATCHES` or `ranked.py cut MEGABYTES BATCHES`: one rank of a job.

`step`: a small step in each batch, and nothing that the ranks do together; prints nanoseconds of the main thread's processor time per
batch, for each tenth of the batches. `cut`: a step of DistributedDataParallel over a state of so many megabytes; prints when each batch
began, in seconds of the monotonic clock. Each line begins with the rank.
"""

import json
import os
import sys
import time
from itertools import pairwise

import torch
import torch.distributed as dist


def steps(num_batches):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    data, seen, each = torch.randn(4, 8), [], num_batches // 10
    for number in range(num_batches):
        if number % each == 0:
            seen.append(time.thread_time_ns())
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    seen.append(time.thread_time_ns())
    return [(end - begin) / each for begin, end in pairwise(seen)]


def cuts(megabytes, num_batches):
    width = 512
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(max(1, round(megabytes * 1e6 / 12 / width**2)))]
    for layer in layers:
        torch.nn.init.normal_(layer.weight, std=width**-0.5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), 1e-5)
    data, began = torch.randn(16, width), []
    for _ in range(num_batches):
        began.append(time.monotonic())
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    return began


def main():
    torch.manual_seed(1)
    is_alone = "WORLD_SIZE" not in os.environ
    if not is_alone:
        dist.init_process_group("gloo")
    found = steps(int(sys.argv[2])) if sys.argv[1] == "step" else cuts(float(sys.argv[2]), int(sys.argv[3]))
    rank = 0 if is_alone else dist.get_rank()
    sys.stdout.write(f"{rank} {json.dumps(found)}\n")  # one write, whatever the other ranks write there
    sys.stdout.flush()
    if not is_alone:
        dist.destroy_process_group()


main()
