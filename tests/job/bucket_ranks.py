"""One rank of `test_buckets`: a training in one go, and two that are wrapped anew on the way, without and with the cure."""

import json
import os
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from detrain.adapters.torch import buckets

RANKS, STEPS = 3, 8


class Picture(nn.Module):
    """A convolution whose weight lies with its channels last."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 2, 40), nn.Tanh(), nn.Linear(40, 3)
        )
        self.net.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.net(x.reshape(8, 2, 4, 3).to(memory_format=torch.channels_last))


def make(options):
    torch.manual_seed(1)
    options = dict(options)
    net = nn.Sequential(nn.Linear(24, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3))
    if options.pop("picture", False):
        net = Picture()
    model = DistributedDataParallel(net, **options)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def run(rank, model, optimizer, steps):
    for number in steps:
        torch.manual_seed(100 * number + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 24)).square().mean().backward()
        optimizer.step()


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def resumed(rank, saved, layout, begin, options):
    """Weights of a training that goes on with a model wrapped anew, its buckets laid out in this way unless it is None."""
    model, optimizer = make(options)
    if layout == "counted":
        buckets.pass_zeros(model, list(range(len(model._module_parameters))))
        assert buckets._has_counted(model)
        assert not buckets._is_laid_out(model)
    elif layout is not None:
        buckets.lay_out(model, layout)
        assert buckets._is_laid_out(model)
        assert buckets._buckets_of(model) == layout
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), saved[0], strict=True):
            parameter.copy_(value)
            parameter.grad = None
    optimizer.load_state_dict(copy_of(saved[1]))
    run(rank, model, optimizer, range(begin, STEPS))
    return weights(model)


def main(rank, port, options):
    torch.set_num_threads(1)
    buckets.patch()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    begin = options.pop("resumed_at", 4)
    model, optimizer = make(options)
    run(rank, model, optimizer, range(begin))
    saved = weights(model), copy_of(optimizer.state_dict())
    buckets.settle()
    layout = "counted" if buckets._has_counted(model) else None
    if buckets._is_laid_out(model):
        layout = buckets._buckets_of(model)
    run(rank, model, optimizer, range(begin, STEPS))
    expected = weights(model)
    same = [all(map(torch.equal, expected, resumed(rank, saved, chosen, begin, options))) for chosen in (None, layout)]
    print(json.dumps([layout is not None, *same]), flush=True)
    torch.distributed.barrier()
    os._exit(0)  # torch 2.13 aborts now and then where it takes its threads down


def copy_of(state):
    """A copy that no later step changes."""
    return torch.utils._pytree.tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, state)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
