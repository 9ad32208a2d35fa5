"""
A small character-level GPT, trained by several processes with DistributedDataParallel. Each takes its own part of the text.

$ torchrun --nproc-per-node=2 train.py --epochs 3
"""

import argparse
import os
from contextlib import nullcontext
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

BLOCK = 64  # characters of context


class Text(Dataset):
    """Windows of the text, and the same one character on."""

    def __init__(self, codes):
        self.codes = codes

    def __len__(self):
        return (len(self.codes) - 1) // BLOCK

    def __getitem__(self, number):
        window = self.codes[number * BLOCK : (number + 1) * BLOCK + 1]
        return window[:-1], window[1:]


class GPT(nn.Module):
    def __init__(self, vocab_size, width=64, depth=3, heads=4, dropout=0.1):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab_size, width), nn.Embedding(BLOCK, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)

    def forward(self, idx):  # (B, T) -> (B, T, vocab)
        length = idx.shape[1]
        x = self.tokens(idx) + self.places(torch.arange(length, device=idx.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=idx.device)
        return self.head(self.norm(self.layers(x, mask=mask, is_causal=True)))


@torch.no_grad()
def validate(model, loader, device):
    """Mean loss over all ranks."""
    model.eval()
    total = torch.zeros(2, device=device)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        total += torch.stack((F.cross_entropy(model(x).flatten(0, 1), y.flatten()), torch.ones((), device=device)))
    dist.all_reduce(total)
    model.train()
    return (total[0] / total[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16, help="sequences per rank and micro-step")
    parser.add_argument("--accumulate", type=int, default=2, help="micro-steps per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--characters", type=int, default=120_000, help="of the text, to train on")
    parser.add_argument("--out", default="out")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(1337 + rank)  # dropout differs from rank to rank

    corpus = "\n\n".join(topics[name] for name in sorted(topics))
    chars = sorted(set(corpus))
    codes = torch.tensor([chars.index(c) for c in corpus[: args.characters + 20_000]])
    train, val = Text(codes[: args.characters]), Text(codes[args.characters :])
    sampler = DistributedSampler(train, seed=7)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True)
    val_loader = DataLoader(val, args.batch_size, sampler=DistributedSampler(val, shuffle=False))

    model = DistributedDataParallel(
        GPT(len(chars)).to(device), device_ids=[local_rank] if device.type == "cuda" else None
    )
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.1)
    steps = args.epochs * (len(loader) // args.accumulate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    os.makedirs(args.out, exist_ok=True)
    best = float("inf")

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader, 1):
            x, y = x.to(device), y.to(device)
            is_step = number % args.accumulate == 0
            with nullcontext() if is_step else model.no_sync():
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.accumulate
                loss.backward()
            if not is_step:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            if rank == 0 and number // args.accumulate % 10 == 0:
                print(
                    f"epoch {epoch} step {number // args.accumulate}: loss {loss.item() * args.accumulate:.6f}",
                    flush=True,
                )
        val_loss = validate(model, val_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: validation loss {val_loss:.6f}", flush=True)
            if val_loss < best:
                best = val_loss
                torch.save(model.module.state_dict(), os.path.join(args.out, "best.pt"))
    if rank == 0:
        torch.save(model.module.state_dict(), os.path.join(args.out, "last.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
