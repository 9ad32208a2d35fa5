"""
Handwritten digits by a small VGG or ResNet whose layers are divided into pipeline stages, as in PipeDream's image classification.

$ torchrun --nproc-per-node=4 train.py --module resnet --config_path plan.json
"""

import argparse
import csv
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import detrain.pipeline


class VGG(nn.Module):
    """Convolutions of 3x3 and pooling, and a classifier that has most of the weights."""

    def __init__(self, widths=((16, 16), (32, 32), (64, 64)), hidden=1024, dropout=0.5):
        super().__init__()
        layers, before = [], 1
        for block in widths:
            for width in block:
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(before * 2 * 2, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, 10),
        )  # fmt: skip

    def forward(self, x):  # (B, 1, 16, 16)
        x = self.features(x)  # (B, 64, 2, 2)
        return self.classifier(x.flatten(1))  # (B, 10)


class Block(nn.Module):
    """Two convolutions, and what goes past them; at the first of a block that halves the image, through a convolution of 1x1."""

    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.past = nn.Identity()
        if stride > 1 or before != width:
            self.past = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.past(x))


class ResNet(nn.Module):
    """As ResNet-18 for small images: a convolution, blocks of two convolutions, the mean over the image, one linear layer."""

    def __init__(self, widths=(16, 32, 64), blocks=2):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        layers, before = [], widths[0]
        for number, width in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(before, width, 2 if number and not block else 1))
                before = width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(before, 10)

    def forward(self, x):  # (B, 1, 16, 16)
        x = self.layers(self.stem(x))  # (B, 64, 4, 4)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))  # (B, 10)


def made(args):
    return VGG(hidden=args.hidden, dropout=args.dropout) if args.module == "vgg" else ResNet()


def load(data_dir):
    """Images (N, 1, 16, 16) and labels (N,): 1,497 to train on and 300 to test with."""
    if data_dir:
        found = torch.load(Path(data_dir) / "digits.pt")
        images, labels = found["images"], found["labels"]
    else:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32) / 16.0  # (1797, 8, 8)
        labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images = F.interpolate(images[order, None], scale_factor=2, mode="bilinear", align_corners=False)
    labels = labels[order]
    return TensorDataset(images[:-300], labels[:-300]), (images[-300:], labels[-300:])


class OneProcess:
    """Does what a pipeline does, without one: the gradients of the micro-batches are added up."""

    def __init__(self, model, optimizer, num_micro_batches):
        self.model, self.optimizer, self.num_micro_batches = model, optimizer, num_micro_batches

    def step(self, x, target):
        self.optimizer.zero_grad()
        total = 0.0
        parts = x.tensor_split(self.num_micro_batches), target.tensor_split(self.num_micro_batches)
        for part, labels in zip(*parts, strict=True):
            loss = F.cross_entropy(self.model(part), labels) * (len(part) / len(x))
            loss.backward()
            total = total + loss.detach()
        self.optimizer.step()
        return total

    def gather(self):
        return self.model

    def losses(self):
        return []


def rate_in(epoch, args):
    """Of learning, as in PipeDream."""
    if args.lr_policy == "polynomial":
        return args.lr * (1.0 - epoch / args.epochs) ** 2
    return args.lr * 0.1 ** (epoch // 30)


def summed(losses, is_distributed):
    """Over all ranks: without a flush, only those of the last stage know losses."""
    total = torch.tensor(sum(losses), dtype=torch.float64)
    if is_distributed:
        dist.all_reduce(total)
    return total.item()


@torch.no_grad()
def evaluate(model, images, labels):
    """Mean loss and accuracy."""
    model.eval()
    logits = model(images)  # (N, 10)
    model.train()
    return F.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()


def append_row(path, row):
    """Append one row to a CSV file; the first row brings the header."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--module", "--arch", choices=["vgg", "resnet"], default="vgg")
    parser.add_argument("--config_path", default="", help="the plan; none: one process, no stages")
    parser.add_argument(
        "--data_dir", default="", help="with digits.pt: images (N, 8, 8) in 0..1, labels (N,) [scikit-learn's]"
    )
    parser.add_argument(
        "-b", "--batch_size", type=int, default=64, help="samples of a step; of a mini-batch with 1f1b-async"
    )
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr_policy", choices=["step", "polynomial"], default="polynomial")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", "--weight_decay", type=float, default=1e-4)
    parser.add_argument("-p", "--print-freq", type=int, default=10, help="steps between two lines of progress")
    parser.add_argument(
        "-v", "--verbose_frequency", type=int, default=0, help="steps after which each rank says how long they take"
    )
    parser.add_argument(
        "--distributed_backend", choices=["gloo", "nccl"], help="[nccl if each rank can have a device of its own]"
    )
    parser.add_argument("--schedule", choices=["1f1b", "gpipe", "1f1b-async", "2bw"], default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=4, help="parts of a step; 1f1b-async has none")
    parser.add_argument("--hidden", type=int, default=1024, help="width of vgg's classifier")
    parser.add_argument("--dropout", type=float, default=0.5, help="of vgg")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def main():
    args = parsed()
    is_distributed, rank = "RANK" in os.environ, int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if is_distributed:
        has_devices = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
        if (args.distributed_backend or ("nccl" if has_devices else "gloo")) == "nccl":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    torch.manual_seed(args.seed)  # the same on every rank: so are the weights and the order of the samples

    train_set, (test_images, test_labels) = load(args.data_dir)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    model = made(args).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.weight_decay)
    if args.config_path:
        pipe = detrain.pipeline.Pipeline(
            model, args.config_path, optimizer, loss_fn=nn.CrossEntropyLoss(), schedule=args.schedule,
            num_micro_batches=args.micro_batches, emulate=not is_distributed,
        )  # fmt: skip
    else:
        pipe = OneProcess(model, optimizer, args.micro_batches)
    if rank == 0:
        args.out.mkdir(parents=True, exist_ok=True)

    for epoch in range(args.epochs):
        for group in optimizer.param_groups:
            group["lr"] = rate_in(epoch, args)
        losses, start = [], time.perf_counter()
        for step, (x, y) in enumerate(loader, 1):  # (B, 1, 16, 16), (B,)
            loss = pipe.step(x.to(device), target=y.to(device))
            if loss is None:  # without a flush: some steps later, and only the last stage's ranks know it
                losses += pipe.losses()
            elif rank == 0:
                losses.append(loss.item())
            if rank == 0 and step % args.print_freq == 0:
                known = f": loss {loss.item():.6f}" if loss is not None else ""
                print(f"  epoch {epoch} step {step}/{len(loader)}{known}", flush=True)
            if args.verbose_frequency and step % args.verbose_frequency == 0:
                print(f"  rank {rank}: {(time.perf_counter() - start) / step * 1e3:.1f} ms a step", flush=True)
        pipe.gather()  # all weights, on every rank; without a flush, what is under way goes back first
        losses += pipe.losses()
        row = {"epoch": epoch, "lr": rate_in(epoch, args), "train_loss": summed(losses, is_distributed) / len(loader)}
        if rank == 0:
            row["test_loss"], row["test_accuracy"] = evaluate(model, test_images.to(device), test_labels.to(device))
            print(
                f"epoch {epoch}: train loss {row['train_loss']:.4f}, test loss {row['test_loss']:.4f}, "
                f"test accuracy {row['test_accuracy']:.2%}, {time.perf_counter() - start:.2f} s",
                flush=True,
            )
            append_row(args.out / "log.csv", row)
    if rank == 0:
        torch.save(model.state_dict(), args.out / "last.pt")
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
