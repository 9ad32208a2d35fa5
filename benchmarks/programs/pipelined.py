"""One rank of a pipeline whose stages take a known time: steps by detrain's pipeline or by PyTorch's.

Rank 0 prints what each stage takes by itself, forward and backward, and what each step takes. Seconds.
"""

import argparse
import json
import statistics
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

import detrain.pipeline
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.schedules import Schedule

WIDTH = 64
_NUM_BEFORE = 3


@torch.library.custom_op("bench::wait", mutates_args=())
def wait(x: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
    """So long for each sample; the cores are free meanwhile, as a device's work would leave them."""
    time.sleep(forward_ms * x.shape[0] / 1e3)
    return x.clone()


@wait.register_fake
def _(x: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx, inputs, output) -> None:
    ctx.backward_ms = inputs[2]


def _back(ctx, gradient: Tensor):
    return wait(gradient, ctx.backward_ms, 0.0), None, None


wait.register_autograd(_back, setup_context=_keep)


class Block(nn.Module):
    """A layer that takes a while."""

    def __init__(self, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.linear, self.forward_ms, self.backward_ms = nn.Linear(WIDTH, WIDTH), forward_ms, backward_ms

    def forward(self, x: Tensor) -> Tensor:
        """Milliseconds for each sample, if there are any."""
        x = self.linear(x)
        return wait(x, self.forward_ms, self.backward_ms) if self.forward_ms else x


def plan_of(model: nn.Module, replicas: list[int], num_stages: int) -> Plan:
    """Stage i has block i; devices one after the other, or over again where there are more stages."""
    layers = [layer.name for layer in detrain.pipeline.profile(model, [torch.randn(4, WIDTH)], num_rounds=1).layers[1:]]
    ends = [sum(replicas[: number + 1]) for number in range(len(replicas))]
    stages = []
    for number in range(num_stages):
        place = number % len(replicas)
        own = tuple(name for name in layers if name.startswith(f"{number}"))
        devices = tuple(range(ends[place] - replicas[place], ends[place]))
        stages.append(Stage(number, number + 1, own, replicas[place], devices))
    return Plan("by hand", tuple(stages), 1, 0.0, 1.0, 1.0)


def ours(model: nn.Sequential, arguments: argparse.Namespace) -> list[float]:
    """Seconds of each step."""
    replicas = list(map(int, arguments.replicas.split("-")))
    is_async = arguments.schedule == "1f1b-async"
    chunks = len(model) // len(replicas) if arguments.schedule == "interleaved" else 1
    schedule = Schedule(arguments.schedule, 1 if is_async else arguments.micro_batches, chunks)
    pipe = detrain.pipeline.Pipeline(
        model,
        plan_of(model, replicas, len(model)),
        torch.optim.SGD(model.parameters(), 1e-3),
        loss_fn=nn.MSELoss(),
        schedule=schedule,
    )
    x = torch.randn(arguments.samples, WIDTH)
    return timed(lambda: pipe.step(x, target=x), arguments.steps)


def theirs(model: nn.Sequential, arguments: argparse.Namespace) -> list[float]:
    """The same by torch.distributed.pipelining, with one block a rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, size = dist.get_rank(), dist.get_world_size()
    block = model[rank]
    optimizer = torch.optim.SGD(block.parameters(), 1e-3)
    stage = PipelineStage(block, rank, size, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[arguments.schedule]
    schedule = kind(stage, arguments.micro_batches, loss_fn=nn.MSELoss())
    x, loss = torch.randn(arguments.samples, WIDTH), torch.zeros(1)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == size - 1:
            losses: list[Tensor] = []
            schedule.step(target=x, losses=losses)
            loss.fill_(torch.stack(losses).mean().item())
        else:
            schedule.step()
        optimizer.step()
        dist.broadcast(loss, size - 1)  # as ours does

    return timed(step, arguments.steps)


def alone(block: Block, num_samples: int, num_rounds: int = 15) -> tuple[float, float]:
    """Medians of a stage's forward and backward pass, in this process alone."""
    forward, backward = [], []
    for _ in range(num_rounds):
        x = torch.randn(num_samples, WIDTH, requires_grad=True)
        began_s = time.perf_counter()
        y = block(x)
        forward.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        torch.autograd.grad([y], [*block.parameters(), x], [torch.ones_like(y)])
        backward.append(time.perf_counter() - began_s)
    return statistics.median(forward), statistics.median(backward)


def timed(step, num_steps: int) -> list[float]:
    """Each step's seconds, without the first ones."""
    found = []
    for _ in range(num_steps + _NUM_BEFORE):
        began_s = time.perf_counter()
        step()
        found.append(time.perf_counter() - began_s)
    return found[_NUM_BEFORE:]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("by", choices=["ours", "theirs"])
    parser.add_argument("schedule")
    parser.add_argument("replicas")
    parser.add_argument("milliseconds", type=json.loads)
    parser.add_argument("micro_batches", type=int)
    parser.add_argument("samples", type=int)
    parser.add_argument("steps", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(forward_ms, backward_ms) for forward_ms, backward_ms in arguments.milliseconds))
    dist.init_process_group("gloo")
    costs = []
    if dist.get_rank() == 0 and arguments.by == "ours":
        replicas = list(map(int, arguments.replicas.split("-")))
        each = arguments.samples if arguments.schedule == "1f1b-async" else arguments.samples // arguments.micro_batches
        for number, block in enumerate(model):
            parts = 1 if arguments.schedule == "1f1b-async" else replicas[number % len(replicas)]
            costs.append(alone(block, -(-each // parts)))
    dist.barrier()
    torch.manual_seed(1)  # rank 0 has drawn more
    found = (ours if arguments.by == "ours" else theirs)(model, arguments)
    if dist.get_rank() == 0:
        print(json.dumps({"stages": costs, "steps": found}), flush=True)
    dist.barrier()  # a rank that ends earlier can have gloo's threads of another abort
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
