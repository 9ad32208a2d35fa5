"""Trains with `DistributedDataParallel` or `fully_shard`, as its arguments say, and prints what each rank ends with."""

import hashlib
import os
import random
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WAYS = set(sys.argv[1:])
#: How each model is wrapped and trained.
KINDS = [{"--static"}, {"--unused"}, {"--accumulate"}] if "--several" in WAYS else [WAYS]
#: All ranks on one: gloo has them share it, and NCCL refuses.
DEVICE = torch.device("cuda" if "--cuda" in WAYS else "cpu")


class Data(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(384, 24, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        noise = 0.01 * random.random() if "--workers" in WAYS else 0.0  # an augmentation
        return self.x[number] + noise, int(self.x[number, :4].argmax())


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.has_unused = "--unused" in kind
        self.body = nn.Sequential(nn.Linear(24, 50), nn.ReLU(), nn.Dropout(0.2), nn.Linear(50, 50), nn.Tanh())
        self.head, self.spare = nn.Linear(50, 4), nn.Linear(50, 4)

    def forward(self, x, spares=False):
        h = self.body(x)
        return self.head(h) + self.spare(h) if not self.has_unused or spares else self.head(h)


def wrapped(net, kind):
    if "--shard" in kind:
        from torch.distributed.fsdp import fully_shard

        for layer in (*net.body, net.head, net.spare):
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(net)
    return DistributedDataParallel(net, find_unused_parameters="--unused" in kind, static_graph="--static" in kind)


def train(model, optimizer, kind, x, y, number):
    is_step = "--accumulate" not in kind or number % 2
    with nullcontext() if is_step else model.no_sync():
        loss = nn.functional.cross_entropy(model(x + 0.01 * torch.randn_like(x)), y)
        loss.backward()
    if is_step:
        optimizer.step()
        optimizer.zero_grad()
    return loss


def main():
    if "SLURM_PROCID" in os.environ:  # as scripts do that are started by srun
        os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
    dist.init_process_group("nccl" if "--nccl" in WAYS else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    models = [wrapped(Net(kind).to(DEVICE), kind) for kind in KINDS]
    torch.manual_seed(100 + rank)
    random.seed(100 + rank)
    sampler = DistributedSampler(Data(), size, rank, seed=3)
    workers = 1 if "--workers" in WAYS else 0
    loader = DataLoader(Data(), batch_size=8, sampler=sampler, num_workers=workers)
    optimizers = [torch.optim.AdamW(model.parameters(), 1e-3) for model in models]
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            x, y = x.to(DEVICE), y.to(DEVICE)
            for model, optimizer, kind in zip(models, optimizers, KINDS, strict=True):
                loss = train(model, optimizer, kind, x, y, number)
            time.sleep(0.02)
        if rank == 0:
            print(f"epoch {epoch} {loss.item():.10f}", flush=True)
    digest = hashlib.sha256()
    for parameter in (parameter for model in models for parameter in model.parameters()):
        whole = parameter.full_tensor() if "--shard" in WAYS else parameter
        digest.update(whole.detach().cpu().numpy().tobytes())
    # One write a line, whatever else writes there.
    sys.stdout.write(f"final {rank} {digest.hexdigest()} {torch.randn(1, device=DEVICE).item()} {random.random()}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


main()
