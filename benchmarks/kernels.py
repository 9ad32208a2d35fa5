"""What the deterministic formulations of torch's operators cost: ours over the plain kernel, operator by operator."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import measure
import torch
from measure import Report, ratios, spread
from torch import Tensor

from detrain.adapters.torch.kernels import indexing, loss, ordering, padding, pooling, resampling

aten = torch.ops.aten


class Inputs:
    """Tensors of one device, the same in every process."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.generator = torch.Generator().manual_seed(0)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self.generator).to(self.device)


#: A row of the table: what it is, torch's operator, ours, and the arguments of both.
Row = tuple[str, Callable[..., object], Callable[..., object], tuple]


def pools(inputs: Inputs) -> list[Row]:
    volume, image = inputs.normal(2, 16, 16, 32, 32), inputs.normal(8, 32, 56, 56)
    quarter, indices = torch.nn.functional.max_pool2d(image.cpu(), 2, return_indices=True)
    unpooling = (quarter.to(inputs.device), indices.to(inputs.device), (56, 56))
    largest = aten.adaptive_max_pool2d(image, (7, 7))
    cubes = aten.max_pool3d_with_indices(volume, 3, 2, 1)
    windows = ([3, 3, 3], [2, 2, 2], [1, 1, 1])
    return [
        ("max_unpool2d, ×2", aten.max_unpool2d, pooling.unpooled, unpooling),
        ("avg_pool3d gradient, 3³ every 2", aten.avg_pool3d_backward, pooling.average_pool3d_gradient,
         (inputs.normal(2, 16, 8, 16, 16), volume, *windows, False, True, None)),
        ("adaptive_avg_pool2d gradient, 56² to 7²", aten._adaptive_avg_pool2d_backward, pooling.adaptive_average2d_gradient,
         (inputs.normal(8, 32, 7, 7), image)),
        ("adaptive_max_pool2d gradient, 56² to 7²", aten.adaptive_max_pool2d_backward, pooling.adaptive_maximum2d_gradient,
         (inputs.normal(8, 32, 7, 7), image, largest[1])),
        ("max_pool3d gradient, 3³ every 2", aten.max_pool3d_with_indices_backward, pooling.maximum3d_gradient,
         (inputs.normal(*cubes[0].shape), volume, *windows, [1, 1, 1], False, cubes[1])),
    ]  # fmt: skip


def pads(inputs: Inputs) -> list[Row]:
    image, sides = inputs.normal(8, 32, 64, 64), [3, 3, 3, 3]
    return [
        ("reflection_pad2d gradient, 3", aten.reflection_pad2d_backward, padding.reflection_gradient,
         (inputs.normal(8, 32, 70, 70), image, sides)),
        ("replication_pad2d gradient, 3", aten.replication_pad2d_backward, padding.replication_gradient,
         (inputs.normal(8, 32, 70, 70), image, sides)),
    ]  # fmt: skip


def resamples(inputs: Inputs) -> list[Row]:
    double, image = inputs.normal(4, 16, 112, 112), inputs.normal(4, 16, 56, 56)
    grid, sample = inputs.normal(4, 56, 56, 2).tanh(), inputs.normal(4, 16, 56, 56)
    sizes = ([112, 112], [4, 16, 56, 56], False)
    cubes = ([16, 32, 32], [2, 8, 8, 16, 16], False)
    return [
        ("bilinear gradient, ×2", aten.upsample_bilinear2d_backward, resampling.linear_gradient, (double, *sizes)),
        ("bicubic gradient, ×2", aten.upsample_bicubic2d_backward, resampling.cubic_gradient, (double, *sizes)),
        ("trilinear gradient, ×2", aten.upsample_trilinear3d_backward, resampling.linear_gradient,
         (inputs.normal(2, 8, 16, 32, 32), *cubes)),
        ("antialiased bilinear gradient, ÷2", aten._upsample_bilinear2d_aa_backward, resampling.smooth_linear_gradient,
         (inputs.normal(4, 16, 28, 28), [28, 28], [4, 16, 56, 56], False)),
        ("grid_sample gradients, bilinear", aten.grid_sampler_2d_backward, resampling.grid_gradients,
         (sample, image, grid, 0, 0, False, [True, True])),
        ("grid_sample gradients, bicubic", aten.grid_sampler_2d_backward, resampling.grid_gradients,
         (sample, image, grid, 2, 0, False, [True, True])),
    ]  # fmt: skip


def losses(inputs: Inputs) -> list[Row]:
    scores, target = inputs.normal(4, 21, 128, 128).log_softmax(1), inputs.whole(21, 4, 128, 128)
    speech, labels = inputs.normal(200, 8, 40).log_softmax(2), inputs.whole(39, 8, 30) + 1
    lengths = ([200] * 8, [30] * 8)
    path = aten._ctc_loss(speech, labels, *lengths)
    return [
        ("nll_loss of images, mean", aten.nll_loss2d_forward, loss.nll2d, (scores, target, None, 1, -100)),
        ("ctc_loss gradient, 200 steps, 30 labels", aten._ctc_loss_backward, loss.ctc_gradient,
         (inputs.normal(8), speech, labels, *lengths, *path, 0)),
    ]  # fmt: skip


def indices(inputs: Inputs) -> list[Row]:
    many, target, source = inputs.whole(100_000, 50_000), inputs.normal(100_000), inputs.normal(50_000)
    table, words, bags = (
        inputs.normal(5000, 64),
        inputs.whole(5000, 4000),
        torch.arange(0, 4000, 10, device=inputs.device),
    )
    found = aten._embedding_bag(table, words, bags, mode=2)
    matrix, ranks = inputs.normal(256, 1000), inputs.whole(256, 256, 1000)
    return [
        ("put_", aten.put_, indexing.put, (target.clone(), many, source)),
        ("bincount with weights", aten.bincount, indexing.counts, (many, source)),
        ("histc, 100 bins", aten.histc, indexing.histogram, (target, 100, -3, 3)),
        ("scatter_reduce prod", lambda *a: aten.scatter_reduce.two(*a, "prod"), lambda *a: indexing.product_at(*a, "prod"),
         (matrix, 0, ranks, matrix)),
        ("embedding_bag max gradient", aten._embedding_bag_dense_backward, indexing.embedding_maximum_gradient,
         (inputs.normal(400, 64), words, *found[1:], 5000, False, 2, None)),
        ("median of rows", aten.median.dim, ordering.median, (matrix, 1)),
        ("kthvalue of rows", aten.kthvalue, ordering.kth_value, (matrix, 10, 1)),
        ("cumsum of 100,000", aten.cumsum, ordering.running_sum, (target, 0)),
        ("cumsum of rows", aten.cumsum, ordering.running_sum, (matrix, 1)),
    ]  # fmt: skip


def measured(function: Callable[..., object], arguments: tuple, device: str, mode: str, count: int) -> float:
    """Seconds a call, the median of `count`; on CUDA with what it has queued."""
    torch.set_deterministic_debug_mode(mode)
    function(*arguments)  # tables of weights are made at the first call
    found = []
    for _ in range(count):
        began_s = time.perf_counter()
        function(*arguments)
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began_s)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="few calls: does it work, and about what comes out")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads for torch (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device, repeats, count = arguments.device, 3 if arguments.quick else 7, 3 if arguments.quick else 9
    report = Report("What deterministic formulations cost")
    where = "" if device == "cpu" else f" Device: {torch.cuda.get_device_name()}."
    report.say(f"{measure.machine(arguments.threads)}.{where} Medians, in parentheses the range.")
    rows = []
    inputs = Inputs(device)
    for name, plain, ours, given in [row for part in (pools, pads, resamples, losses, indices) for row in part(inputs)]:
        found = measure.alternate(
            {
                "plain": lambda f=plain, a=given: measured(f, a, device, "default", count) * 1e6,
                "ours": lambda f=ours, a=given: measured(f, a, device, "warn", count) * 1e6,
            },
            repeats,
        )
        both = [spread(found[one], 0) for one in ("plain", "ours")]
        rows.append([name, *both, spread(ratios(found["ours"], found["plain"]))])
    report.table(["operator, float32", "plain, µs", "ours, µs", "ours / plain"], rows)
    report.say(f"{repeats} rounds, {count} calls in each, plain and ours in turn. On {device}.")
    report.write(arguments.output)


if __name__ == "__main__":
    main()
