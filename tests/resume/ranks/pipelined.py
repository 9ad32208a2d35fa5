"""Trains by a plan over the ranks. Arguments: the model, replicas of each stage, schedule, micro-batches."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))

import detrain.pipeline
from tests.pipeline.pipelined import batches, digest, layers_of, loss_of, made, plan_of

model_name, written_replicas, schedule, num_micro_batches = sys.argv[1:]
replicas = tuple(map(int, written_replicas.split("-")))
torch.set_num_threads(1)
dist.init_process_group("gloo")
model, optimizer = made(model_name, 0.1)
pipe = detrain.pipeline.Pipeline(
    model, plan_of(layers_of(model_name, 0.1), replicas), optimizer, loss_fn=loss_of, schedule=schedule,
    num_micro_batches=int(num_micro_batches),
)  # fmt: skip
losses = []
for epoch in range(6):
    for x, y in batches(model_name, 24, 12):
        loss = pipe.step(x, target=y)
        if loss is not None:
            losses.append(loss.item())
    losses += pipe.losses()
    print(f"epoch {epoch}\n", end="", flush=True)
final = digest(pipe.gather())
losses += pipe.losses()
print(f"final {dist.get_rank()} {final} {len(losses)} {sum(losses)!r}\n", end="", flush=True)
dist.destroy_process_group()
