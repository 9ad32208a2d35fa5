"""What a memory budget costs: the time of a training step within it over that of a plain one, beside `torch.utils.checkpoint`.

Each variant trains in a process of its own; they take their steps in turn.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import Report, machine, spread
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from detrain.adapters.torch import kernels
from detrain.adapters.torch.remat.budget import budget
from detrain.errors import OverBudget

UNBOUNDED = 1 << 60
MOST_PLANNING_S = 120.0
#: Blocks that the script checkpoints by hand.
BY_HAND = {"checkpoint every block": 1, "checkpoint every second block": 2}


class Blocks(nn.Module):
    """Blocks one after the other; every so many are checkpointed, none if that is 0."""

    def __init__(self, blocks: Sequence[nn.Module], every: int) -> None:
        super().__init__()
        self.blocks, self.every = nn.ModuleList(blocks), every

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            is_hand = self.every and number % self.every == 0
            x = checkpoint(block, x, use_reentrant=False) if is_hand else block(x)
        return x


class Attention(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.into(self.norms[0](x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1), -1e9)
        mixed = F.dropout(scores.softmax(-1), 0.1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.wide(self.norms[1](x))


class Residual(nn.Module):
    """A block of a residual network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(y)) + x, inplace=True)


class Unet(nn.Module):
    """Two levels down and up, with connections across."""

    def __init__(self, width: int, every: int) -> None:
        super().__init__()
        self.into, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 1, 1)
        self.levels = nn.ModuleList(Blocks([Residual(width) for _ in range(2)], every) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        first = self.levels[0](self.into(x))
        second = self.levels[1](F.max_pool2d(first, 2))
        third = self.levels[2](F.max_pool2d(second, 2))
        up = self.levels[3](F.interpolate(third, scale_factor=2, mode="nearest") + second)
        return self.out(self.levels[4](F.interpolate(up, scale_factor=2, mode="nearest") + first))


def gpt(every: int, device: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    width, depth, batch, length = (256, 6, 8, 256) if device == "cpu" else (768, 12, 8, 512)
    blocks = Blocks([Attention(width, width // 64) for _ in range(depth)], every)
    net = nn.Sequential(nn.Embedding(512, width), blocks, nn.LayerNorm(width), nn.Linear(width, 512))

    def loss_of(net: nn.Module) -> Tensor:
        tokens = torch.randint(0, 512, (batch, length + 1), device=device)
        return F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return net, loss_of


def resnet(every: int, device: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    width, depth, batch, size = (32, 9, 32, 32) if device == "cpu" else (128, 24, 32, 64)
    blocks = Blocks([Residual(width) for _ in range(depth)], every)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    net = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), blocks, *head)
    return net, lambda net: F.cross_entropy(
        net(torch.randn(batch, 3, size, size, device=device)), torch.randint(0, 10, (batch,), device=device)
    )


def unet(every: int, device: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    width, batch, size = (24, 8, 64) if device == "cpu" else (64, 16, 256)
    return Unet(width, every), lambda net: net(torch.randn(batch, 3, size, size, device=device)).square().mean()


MODELS = {"gpt": gpt, "resnet": resnet, "unet": unet}


def train(model: str, device: str, variant: str, limit_bytes: int, planner: str) -> None:
    """In a process of its own: a step for each line that comes; tells what it took. With a planner, the first waits for its plan."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if device != "cpu":  # as detrain does
        torch.backends.cudnn.deterministic = True
        torch.set_deterministic_debug_mode("warn")
        kernels.replace()
    net, loss_of = MODELS[model](BY_HAND.get(variant, 0), device)
    net.to(device)
    updates = torch.optim.AdamW(net.parameters(), 1e-4)
    with budget(limit_bytes, planner=planner) if limit_bytes else contextlib.nullcontext() as runtime:
        for _ in sys.stdin:
            began_s, again_s = time.perf_counter(), runtime.again_ns / 1e9 if runtime else 0.0
            try:
                loss = loss_of(net)
                updates.zero_grad()
                loss.backward()
                updates.step()
                value = loss.item()
            except OverBudget as error:
                print(json.dumps({"over": str(error)}), flush=True)
                return
            found: dict[str, Any] = {"seconds": time.perf_counter() - began_s, "loss": value}
            if device != "cpu":
                found["allocated"] = torch.cuda.max_memory_allocated()
            if runtime:
                found |= {"peak": runtime.space.peak_bytes, "again": runtime.again_ns / 1e9 - again_s}
                plan = runtime.space.follower.plan if runtime.space.follower is not None else None
                found |= {"planned": plan.overhead, "planner": plan.planner} if plan is not None else {}
            print(json.dumps(found), flush=True)


class Trainer:
    """One variant's process."""

    def __init__(self, model: str, device: str, variant: str, limit_bytes: int, planner: str = "") -> None:
        words = [sys.executable, __file__, "--train", model, "--device", device, "--variant", variant]
        self._process = subprocess.Popen(
            [*words, "--limit", str(limit_bytes), "--planner", planner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.steps: list[dict[str, Any]] = []
        self.over = ""
        #: Seconds and steps until it followed a plan; None if it has none.
        self.first_plan: tuple[float, int] | None = None

    def step(self) -> None:
        """Take one."""
        if self.over:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        if "over" in found:
            self.over = found["over"]
        else:
            self.steps.append(found)

    def end(self) -> None:
        """Wait for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(model: str, device: str, shares: Sequence[float], rounds: int, warm_up: int, report: Report) -> None:
    """One model's table."""
    seen = Trainer(model, device, "seen", UNBOUNDED)
    trainers = {"plain": Trainer(model, device, "plain", 0), "seen, never evicted": seen}
    trainers |= {variant: Trainer(model, device, variant, UNBOUNDED) for variant in BY_HAND}
    for _ in range(warm_up):
        for trainer in trainers.values():
            trainer.step()
    peak = seen.steps[-1]["peak"]
    budgets = {f"budget {share}, online": Trainer(model, device, "budget", int(peak * share)) for share in shares}
    limits = {f"budget {share}": int(peak * share) for share in shares}
    limits |= {
        f"budget of {variant.replace('checkpoint ', '')}": trainers[variant].steps[-1]["peak"] for variant in BY_HAND
    }
    for name, limit_bytes in limits.items():  # each plans alone
        planned = budgets[f"{name}, planned"] = Trainer(model, device, "budget", limit_bytes, "auto")
        began_s = time.monotonic()
        while not planned.over and time.monotonic() - began_s < MOST_PLANNING_S:
            planned.step()
            if planned.steps and "planned" in planned.steps[-1]:
                planned.first_plan = time.monotonic() - began_s, len(planned.steps)
                break
    for _ in range(warm_up):
        for trainer in budgets.values():
            trainer.step()
    trainers |= budgets
    for _ in range(rounds):
        for trainer in trainers.values():
            trainer.step()
    losses = {trainer.steps[warm_up]["loss"] for trainer in trainers.values() if not trainer.over}
    rows = []
    for name, trainer in trainers.items():
        trainer.end()
        if trainer.over:
            rows.append([name, "no room", "", "", "", "", ""])
            continue
        pairs = zip(trainer.steps[-rounds:], trainers["plain"].steps[-rounds:], strict=True)
        slower = [one["seconds"] / plain["seconds"] for one, plain in pairs]
        plain_s = statistics.median(step["seconds"] for step in trainers["plain"].steps[-rounds:])
        again = statistics.median(step.get("again", 0.0) for step in trainer.steps[-rounds:]) / plain_s
        last = trainer.steps[-1]
        rows.append([
            name,
            f"{last['peak'] / peak:.3f}" if "peak" in last else "",
            spread(slower),
            f"{last['planned']:.3f}, {last['planner']}" if "planned" in last else "",
            "{:.0f} s, {} steps".format(*trainer.first_plan) if trainer.first_plan is not None else "",
            f"{again:.2f}" if name.startswith("budget") else "",
            f"{last['allocated'] / 2**20:,.0f}" if "allocated" in last else "",
        ])  # fmt: skip
    report.say(
        f"## {model}\n\nAll kept it takes {peak / 2**20:,.0f} MiB. At the same step the variants have {len(losses)} different "
        f"loss{'es' if len(losses) > 1 else ''}."
    )
    report.table(
        [
            "variant",
            "peak over that of all kept",
            "step over a plain one",
            "as planned",
            "to the first plan",
            "of it run again",
            "MiB allocated",
        ],
        rows,
    )


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="gpt,resnet,unet")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shares", default="0.8,0.5,0.3")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--planner", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.device, given.variant, given.limit, given.planner)
        return
    report = Report("What a memory budget costs")
    device = f" On {torch.cuda.get_device_name()}." if given.device != "cpu" else ""
    report.say(
        f"{machine(1)}.{device} {given.rounds} steps of each variant, in turn, each in a process of its own, after {given.warm_up}. "
        "Medians, in parentheses the range. Run again: what the operators that ran again had taken when they first ran."
    )
    for model in given.models.split(","):
        shares = [float(share) for share in given.shares.split(",")]
        compare(model, given.device, shares, given.rounds, given.warm_up, report)
    report.write(given.output)


if __name__ == "__main__":
    main()
