"""Trains with distributed tensors or sharded optimizers, as its arguments say, and prints what each rank ends with."""

import hashlib
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WAY = sys.argv[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(12, 24), nn.Linear(24, 12), nn.Linear(12, 3)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        return self.head(self.drop(self.down(torch.relu(self.up(x)))))


def wrapped(net, size):
    if WAY == "tensor":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(net, init_device_mesh("cpu", (size,)), plan)
    if WAY == "hybrid":
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        for layer in (net.up, net.down, net.head):
            fully_shard(layer, mesh=mesh)
        return fully_shard(net, mesh=mesh)
    return nn.parallel.DistributedDataParallel(net)


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = wrapped(Net(), size)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(240, 12, generator=generator)
    y = x[:, :3].argmax(1)
    # Ranks of a tensor-parallel model see the same batches and draw the same masks.
    torch.manual_seed(100 if WAY == "tensor" else 100 + rank)
    random.seed(100 + rank)
    order = torch.Generator().manual_seed(9 if WAY == "tensor" else 9 + rank)
    if WAY == "zero, power":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    if WAY == "zero, power":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=4)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for epoch in range(4):
        for batch in torch.randperm(240, generator=order).split(10):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(0.02)  # for the killer
        if rank == 0:
            print(f"epoch {epoch}", flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(whole.detach().numpy().tobytes())
    sys.stdout.write(f"final {rank} {digest.hexdigest()} {torch.randn(1).item()} {random.random()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
