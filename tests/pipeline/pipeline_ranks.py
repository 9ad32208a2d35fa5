"""Run by `torch.distributed.run` with four ranks: several plans over ranks, each beside one process that plays all of them.

The argument has a digit for each of the `CASES` that are to be run.
"""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

import detrain.pipeline
from detrain.adapters.torch.pipeline import live
from detrain.errors import UsageError
from tests.pipeline.pipelined import batches, layers_of, loss_of, made, piped, plan_of

#: Model, replicas, schedule, micro-batches, chunks, dropout.
CASES = [
    ("gpt", (1, 1, 1), "1f1b", 3, 1, 0.1),
    ("gpt", (2, 1, 1), "1f1b", 3, 1, 0.1),
    ("dense", (3, 1), "gpipe", 3, 1, 0.0),
    ("recurrent", (1, 1), "interleaved", 2, 2, 0.1),
    ("gpt", (2, 1, 1), "1f1b-async", 1, 1, 0.1),
    ("recurrent", (1, 2), "2bw", 4, 1, 0.1),
]


def pipeline_of(case, **options):
    """The pipeline of a case."""
    name, replicas, schedule, num_micro_batches, chunks, dropout = case
    model, optimizer = made(name, dropout)
    return detrain.pipeline.Pipeline(
        model, plan_of(layers_of(name, dropout), replicas, chunks), optimizer, loss_fn=loss_of, schedule=schedule,
        num_micro_batches=num_micro_batches, max_norm=0.05 if name == "dense" else None, **options,
    )  # fmt: skip


def refuses_unlike_batches(group):
    """Rank 0 hears of a last stage that is given another batch; the steps before are as they should be."""
    rank = dist.get_rank()
    for schedule, at in (("1f1b", 2), ("1f1b-async", 0)):
        if rank > 1:
            return
        pipeline = pipeline_of(("gpt", (1, 1), schedule, 1 if at == 0 else 2, 1, 0.0), group=group)
        said = ""
        try:
            for step, (x, y) in enumerate(batches("gpt", 4, 6)):
                other = rank == 1 and step == at
                pipeline.step(x + 1 if other and at == 0 else x, target=y.flip(0) if other else y)
                if step == at:
                    break
        except UsageError as error:
            said = str(error)
        # Under the asynchronous schedule the batch is compared with that of rank 0, and rank 1 is told.
        is_told = rank == (0 if at else 1)
        expected = (
            f"the batch of step {at + 1} is not the same on the pipeline's ranks {'0 and 1' if at else '1 and 0'}: "
        )
        assert said.startswith(expected) if is_told else not said, (rank, schedule, said)


def main():
    """Prints a line for each case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for number in map(int, sys.argv[1]):
        case = CASES[number]
        count = sum(case[1])
        group = dist.new_group(list(range(count)))
        if dist.get_rank() < count:
            # Another takes its place, that has no more than what a checkpoint holds.
            def replaced(step, pipeline, group=group):
                live.take_in()
                return copy.deepcopy(pipeline, {id(group): group}) if step in (2, 4) else pipeline

            found, losses = piped(pipeline_of(case, group=group), case[0], 6, on_step=replaced)
            is_same = True
            if dist.get_rank() == 0:
                expected, expected_losses = piped(pipeline_of(case, emulate=True), case[0], 6)
                is_same = found == expected and losses in (expected_losses, [])
            digests: list[str] = [""] * count
            dist.all_gather_object(digests, found, group=group)
            if dist.get_rank() == 0:
                print("case", number, "same" if is_same and len(set(digests)) == 1 else "other", flush=True)
    refuses_unlike_batches(dist.new_group([0, 1]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
