"""`python loops.py CASE COUNT PASSES`: a loop with next to nothing in its body; prints the ns per iteration of each pass.

One iteration in a thousand makes a real, tiny optimizer step, so that the loop is one that trains. The cases `in_*` time
what stands inside a batch; those that begin with `dormant` train nothing and load no framework.
"""

import json
import sys
import time

CASE, COUNT, PASSES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
found = []  # ns per iteration, one per pass
clock_ns = time.perf_counter_ns

if not CASE.startswith("dormant"):
    import torch
    from torch.utils.data import DataLoader

    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)


def step():
    optimizer.zero_grad()
    (weight * weight).sum().backward()
    optimizer.step()


def note(start_ns):
    found.append((clock_ns() - start_ns) / COUNT)


def over(batches):
    """A nest of an epoch loop and a batch loop."""
    for _epoch in range(PASSES):
        start_ns = clock_ns()
        for number in batches:
            if number % 1000 == 0:
                step()
        note(start_ns)


def with_while():
    """The same with a `while` for the batch loop."""
    for _epoch in range(PASSES):
        number = 0
        start_ns = clock_ns()
        while number < COUNT:
            if number % 1000 == 0:
                step()
            number += 1
        note(start_ns)


def with_steps():
    """A step in every iteration: what reporting updates and gradients costs as well."""
    for _epoch in range(PASSES):
        start_ns = clock_ns()
        for _number in range(COUNT):
            step()
        note(start_ns)


def enter(number):
    for _ in ():
        pass
    return number


def in_batch_entry():
    """Inside a batch a loop is entered again and again."""
    for _batch in range(PASSES):
        step()
        start_ns = clock_ns()
        sum(map(enter, range(COUNT)))
        note(start_ns)


def in_batch_while():
    """Inside a batch a `while` loop runs."""
    for _batch in range(PASSES):
        step()
        number = 0
        start_ns = clock_ns()
        while number < COUNT:
            number += 1
        note(start_ns)


def dormant_for():
    for _ in range(PASSES):
        total = 0
        start_ns = clock_ns()
        for number in range(COUNT):
            total += number
        note(start_ns)


def dormant_while():
    for _ in range(PASSES):
        number = 0
        start_ns = clock_ns()
        while number < COUNT:
            number += 1
        note(start_ns)


def dormant_entry():
    for _ in range(PASSES):
        start_ns = clock_ns()
        sum(map(enter, range(COUNT)))
        note(start_ns)


if CASE == "range":
    over(range(COUNT))
elif CASE == "list":
    over(list(range(COUNT)))
elif CASE == "loader":
    over(DataLoader(range(COUNT), batch_size=None))
elif CASE == "while":
    with_while()
elif CASE == "steps":
    with_steps()
else:
    globals()[CASE]()
print(json.dumps(found))
