"""`torchrun … ranked.py loop SUMMED COUNT` or `ranked.py cut MEGABYTES BATCHES`: one rank of a job.

`loop`: ten epochs of so many batches, in each of which the numbers below SUMMED are summed, and nothing that the ranks do together; one
batch in a thousand makes a real, tiny optimizer step. Prints nanoseconds of the main thread's processor time per batch, without those of
the sums, for each epoch.
`cut`: a step of DistributedDataParallel over a state of so many megabytes; prints when each batch began, in seconds of the monotonic clock.
Each line begins with the rank.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist


def loop(summed, count):
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    found = []
    for _epoch in range(10):
        inside, began = 0, time.thread_time_ns()
        for number in range(count):
            if number % 1000 == 0:
                optimizer.zero_grad()
                (weight * weight).sum().backward()
                optimizer.step()
            if summed:
                entered = time.thread_time_ns()
                sum(range(summed))
                inside += time.thread_time_ns() - entered
        found.append((time.thread_time_ns() - began - inside) / count)
    return found


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
    measure = {"loop": loop, "cut": cuts}[sys.argv[1]]
    found = measure(int(sys.argv[2]), int(sys.argv[3]))
    rank = 0 if is_alone else dist.get_rank()
    sys.stdout.write(f"{rank} {json.dumps(found)}\n")  # one write, whatever the other ranks write there
    sys.stdout.flush()
    if not is_alone:
        dist.destroy_process_group()


main()
