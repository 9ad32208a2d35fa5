"""Handwritten digits: a small convolutional network on the 8x8 images that ship with scikit-learn."""

import argparse
import csv
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Images (N, 8, 8) with values 0..16 and labels (N,); each look at an image is augmented anew when asked."""

    def __init__(self, images, labels, augment=False):
        self.images = images.astype(np.float32) / 16.0  # (N, 8, 8) in 0..1
        self.labels = labels  # (N,)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]  # (8, 8)
        if self.augment:
            dy, dx = random.randint(-1, 1), random.randint(-1, 1)  # shift by up to one pixel
            image = np.pad(image, 1)[1 + dy : 9 + dy, 1 + dx : 9 + dx]  # (8, 8)
            image = image * np.random.uniform(0.8, 1.2)  # contrast
            image = image + np.random.normal(0.0, 0.05, image.shape)  # noise
        x = torch.tensor(image, dtype=torch.float32)[None]  # (1, 8, 8)
        if self.augment and torch.rand(()) < 0.5:  # cutout: blank a 2x2 square
            top, left = torch.randint(0, 7, (2,)).tolist()
            x[:, top : top + 2, left : left + 2] = 0.0
        return x, int(self.labels[index])


class Net(nn.Module):
    def __init__(self, width=32, dropout=0.3):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.drop = nn.Dropout(dropout)
        self.fc1 = nn.Linear(2 * width * 2 * 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):  # (B, 1, 8, 8)
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)  # (B, width, 4, 4)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)  # (B, 2 width, 2, 2)
        x = self.drop(F.relu(self.fc1(x.flatten(1))))  # (B, 128)
        return self.fc2(x)  # (B, 10)


def warmup_cosine(num_warmup, num_steps):
    """Factor on the learning rate: linear up to 1 over the first steps, then half a cosine down to 0."""

    def factor(step):
        if step < num_warmup:
            return (step + 1) / num_warmup
        return 0.5 * (1.0 + math.cos(math.pi * (step - num_warmup) / max(1, num_steps - num_warmup)))

    return factor


@torch.no_grad()
def evaluate(model, loader, device):
    """Mean loss and accuracy over a loader."""
    model.eval()
    loss_sum, num_right, num_seen = 0.0, 0, 0
    for x, y in loader:  # (B, 1, 8, 8), (B,)
        x, y = x.to(device), y.to(device)
        logits = model(x)  # (B, 10)
        loss_sum += F.cross_entropy(logits, y, reduction="sum").item()
        num_right += (logits.argmax(1) == y).sum().item()
        num_seen += len(y)
    return loss_sum / num_seen, num_right / num_seen


def append_row(path, row):
    """Append one row to a CSV file; the first row brings the header."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--patience", type=int, default=15, help="stop after this many epochs without a better loss")
    parser.add_argument("--print-every", type=int, default=20, help="batches between two lines of progress")
    args = parser.parse_args()

    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)

    images, labels = load_digits(return_X_y=True)  # (1797, 64), (1797,)
    order = np.random.permutation(len(labels))
    images, labels = images.reshape(-1, 8, 8)[order], labels[order]
    train_set = Digits(images[:1197], labels[:1197], augment=True)
    val_loader = DataLoader(Digits(images[1197:1497], labels[1197:1497]), batch_size=256)
    test_loader = DataLoader(Digits(images[1497:], labels[1497:]), batch_size=256)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)

    model = Net().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    num_steps = args.epochs * len(train_loader)
    scheduler = LambdaLR(optimizer, warmup_cosine(num_steps // 10, num_steps))

    best_loss, num_stale = float("inf"), 0
    for epoch in range(args.epochs):
        start = time.time()
        model.train()
        running = 0.0
        for step, (x, y) in enumerate(train_loader):  # (B, 1, 8, 8), (B,)
            loss = F.cross_entropy(model(x.to(args.device)), y.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
            if (step + 1) % args.print_every == 0:
                print(f"  epoch {epoch} batch {step + 1}/{len(train_loader)}: loss {loss.item():.4f}", flush=True)

        train_loss, lr = running / len(train_loader), scheduler.get_last_lr()[0]
        val_loss, accuracy = evaluate(model, val_loader, args.device)
        print(
            f"epoch {epoch}: train loss {train_loss:.4f}, val loss {val_loss:.4f}, val accuracy {accuracy:.2%}, "
            f"lr {lr:.2e}, {time.time() - start:.2f} s",
            flush=True,
        )
        row = {"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss, "val_accuracy": accuracy, "lr": lr}
        append_row(args.out / "log.csv", row)

        if val_loss < best_loss:
            best_loss, num_stale = val_loss, 0
            torch.save(model.state_dict(), args.out / "best.pt")
        else:
            num_stale += 1
            if num_stale >= args.patience:
                print(f"no better for {num_stale} epochs, stopping")
                break

    torch.save(model.state_dict(), args.out / "last.pt")
    model.load_state_dict(torch.load(args.out / "best.pt"))
    loss, accuracy = evaluate(model, test_loader, args.device)
    print(f"best model: test loss {loss:.4f}, test accuracy {accuracy:.2%}")


if __name__ == "__main__":
    main()
