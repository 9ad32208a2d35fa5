"""What determinism costs operator by operator: our formulations over torch's plain kernels, and torch's own deterministic mode."""

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
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode

from detrain.adapters.torch import kernels
from detrain.adapters.torch.kernels import indexing, loss, ordering, padding, pooling, resampling, segments

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
        # On CPU torch's own: it is serial in deterministic mode.
        ("put_, accumulate", aten.put_, indexing.put if target.is_cuda else aten.put_, (target.clone(), many, source, True)),
        ("bincount with weights", aten.bincount, indexing.counts, (many, source)),
        ("histc, 100 bins", aten.histc, indexing.histogram, (target, 100, -3, 3)),
        ("scatter_reduce prod", lambda *a: aten.scatter_reduce.two(*a, "prod"), lambda *a: indexing.product_at(*a, "prod"),
         (matrix, 0, ranks, matrix)),
        ("index_reduce prod", lambda *a: aten.index_reduce(*a, "prod"), lambda *a: indexing.reduced_at(*a, "prod"),
         (matrix, 0, ranks[0, :256], matrix)),
        ("embedding_bag max gradient", aten._embedding_bag_dense_backward, indexing.embedding_maximum_gradient,
         (inputs.normal(400, 64), words, *found[1:], 5000, False, 2, None)),
        ("median of rows", aten.median.dim, ordering.median, (matrix, 1)),
        ("kthvalue of rows", aten.kthvalue, ordering.kth_value, (matrix, 10, 1)),
        ("cumsum of 100,000", aten.cumsum, ordering.running_sum, (target, 0)),
        ("cumsum of rows", aten.cumsum, ordering.running_sum, (matrix, 1)),
    ]  # fmt: skip


#: What is read on the clock takes so long at least.
LEAST_S = 5e-5


class Calls(TorchDispatchMode):
    """Counts the operators that are called, but for views: on CUDA each is one kernel at least."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def calls(function: Callable[..., object], arguments: tuple) -> int:
    """How many operators a formulation calls, with the portions that it takes on CUDA."""
    switch("warn")
    limit = segments.AT_ONCE["cpu"]
    segments.AT_ONCE["cpu"] = segments.AT_ONCE["cuda"]
    function(*arguments)
    with Calls() as found:
        function(*arguments)
    segments.AT_ONCE["cpu"] = limit
    return found.count


def is_by_thread(device: str) -> bool:
    """On CPU what counts is the time that this thread had, which others on the machine do not lengthen."""
    return device == "cpu" and torch.get_num_threads() == 1


def on(device: str) -> str:
    """Where, and by which clock."""
    return "On cpu, in time of the processor." if is_by_thread(device) else f"On {device}."


def switch(mode: str) -> None:
    """ "default", "warn" as detrain has it, or "unfilled": the same, and memory that is not initialized stays as it is."""
    torch.set_deterministic_debug_mode("default" if mode == "default" else "warn")
    torch.backends.cudnn.deterministic = mode != "default"
    torch.utils.deterministic.fill_uninitialized_memory = mode != "unfilled"


def measured(function: Callable[..., object], arguments: tuple, device: str, mode: str, count: int) -> float:
    """Microseconds a call, the median of `count` readings; on CUDA with what it has queued."""
    clock = time.thread_time if is_by_thread(device) else time.perf_counter
    switch(mode)
    function(*arguments)  # tables of weights are made at the first call
    found: list[float] = []
    num_calls = 1
    while len(found) < count:
        began_s = clock()
        for _ in range(num_calls):
            function(*arguments)
        if device == "cuda":
            torch.cuda.synchronize()
        took_s = clock() - began_s
        if device == "cpu" and took_s < LEAST_S:  # reading the clock would count
            num_calls *= 2
        else:
            found.append(took_s / num_calls)
    return statistics.median(found) * 1e6


def measure_formulations(report: Report, device: str, repeats: int, count: int) -> None:
    """The first table."""
    rows = []
    inputs = Inputs(device)
    parts = (pools, pads, resamples, losses, indices)
    for name, plain, ours, given in [row for part in parts for row in part(inputs)]:
        found = measure.alternate(
            {
                "plain": lambda f=plain, a=given: measured(f, a, device, "default", count),
                "ours": lambda f=ours, a=given: measured(f, a, device, "warn", count),
            },
            repeats,
        )
        both = [spread(found[one], 0) for one in ("plain", "ours")]
        rows.append([name, *both, spread(ratios(found["ours"], found["plain"])), str(calls(ours, given))])
    report.table(["operator, float32", "plain, µs", "ours, µs", "ours / plain", "calls"], rows)
    report.say(
        f"{repeats} rounds, {count} readings in each, plain and ours in turn. {on(device)} `calls`: how many operators of torch's, "
        "views left out, ours calls for one; on CUDA, where small inputs take as long as kernels take to start, each is a kernel or "
        "several."
    )


# --- torch's own deterministic mode ----------------------------------------------------------------------------------


def gradient(function: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """Only the backward pass, by all inputs."""
    inputs = tuple(one.clone().requires_grad_() for one in inputs)
    output = function(*inputs)
    weight = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, inputs, weight, retain_graph=True)


def indexed(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """Sums and copies at indices."""
    table, rows, values = inputs.normal(5000, 64), inputs.whole(5000, 4000), inputs.normal(4000, 64)
    places = inputs.whole(5000, 4000, 64)
    return {
        "index_add": lambda: table.index_add(0, rows, values),
        "index_put": lambda: table.index_put((rows,), values),
        "index_put, accumulate": lambda: table.index_put((rows,), values, accumulate=True),
        "scatter_add": lambda: table.scatter_add(0, places, values),
        "scatter_reduce amax": lambda: table.scatter_reduce(0, places, values, "amax"),
        "gather, gradient": gradient(lambda t: t.gather(0, places), table),
        "index_select, gradient": gradient(lambda t: t.index_select(0, rows), table),
        "index, gradient": gradient(lambda t: t[rows], table),
        "embedding, gradient": gradient(lambda t: F.embedding(rows, t), table),
    }


def layers(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """What models are made of."""
    image, kernel, matrix = inputs.normal(8, 32, 28, 28), inputs.normal(32, 32, 3, 3), inputs.normal(256, 1000)
    query, key, value = inputs.normal(3, 16, 64, 64)

    def convolved(image: Tensor, kernel: Tensor) -> Tensor:
        return F.conv2d(image, kernel, padding=1)

    return {
        "conv2d": lambda: convolved(image, kernel),
        "conv2d, gradient": gradient(convolved, image, kernel),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "max_pool2d, gradient": gradient(lambda t: F.max_pool2d(t, 2), image),
        "linear": lambda: F.linear(matrix, matrix),
        "bmm": lambda: query @ key,
        "attention": lambda: F.scaled_dot_product_attention(query, key, value),
        "attention, gradient": gradient(F.scaled_dot_product_attention, query, key, value),
        "layer_norm": lambda: F.layer_norm(matrix, (1000,)),
        "layer_norm, gradient": gradient(lambda t: F.layer_norm(t, (1000,)), matrix),
        "batch_norm": lambda: F.batch_norm(image, None, None, training=True),
        "batch_norm, gradient": gradient(lambda t: F.batch_norm(t, None, None, training=True), image),
        "softmax": lambda: matrix.softmax(1),
        "dropout": lambda: F.dropout(matrix),
        "cumsum": lambda: matrix.cumsum(1),
        "sort": lambda: matrix.sort(1),
    }


def copies(inputs: Inputs) -> dict[str, Callable[[], object]]:
    """What allocates memory, and little else."""
    matrix = inputs.normal(256, 1000)
    condition = matrix > 0
    return {
        "add": lambda: matrix + matrix,
        "cat": lambda: torch.cat((matrix, matrix)),
        "where": lambda: torch.where(condition, matrix, matrix),
        "clone": lambda: matrix.clone(),
        "contiguous, of a transposed": lambda: matrix.t().contiguous(),
        "double": lambda: matrix.double(),
        "zeros_like": lambda: torch.zeros_like(matrix),
        "empty, 1 MB": lambda: torch.empty_like(matrix),
        "empty, 256 bytes": lambda: torch.empty(64, device=matrix.device),
    }


def measure_mode(report: Report, device: str, repeats: int, count: int) -> None:
    """The second table."""
    kernels.replace()
    inputs = Inputs(device)
    modes = ("default", "warn", "unfilled")
    rows = []
    for name, function in {**indexed(inputs), **layers(inputs), **copies(inputs)}.items():
        found = measure.alternate(
            {mode: lambda f=function, m=mode: measured(f, (), device, m, count) for mode in modes}, repeats
        )
        over = [spread(ratios(found[mode], found["default"])) for mode in modes[1:]]
        rows.append([name, *(spread(found[mode], 1) for mode in modes[:2]), *over])
    report.table(
        ["operator, float32", "plain, µs", "deterministic, µs", "over plain", "over plain, without filling"], rows
    )
    report.say(
        f"{repeats} rounds, {count} readings in each, in turn in one process, with the settings that detrain makes. {on(device)} "
        "`without filling`: with `torch.utils.deterministic.fill_uninitialized_memory` off, which detrain leaves on."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="few calls: does it work, and about what comes out")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads for torch (default %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.backends.cudnn.benchmark = False
    device, repeats = arguments.device, 3 if arguments.quick else 7
    report = Report("What deterministic formulations cost")
    where = "" if device == "cpu" else f" Device: {torch.cuda.get_device_name()}."
    report.say(f"{measure.machine(arguments.threads)}.{where} Medians, in parentheses the range.")
    measure_formulations(report, device, repeats, 3 if arguments.quick else 9)
    report.say("## Torch's own deterministic mode")
    measure_mode(report, device, repeats, 5 if arguments.quick else 21)
    report.write(arguments.output)


if __name__ == "__main__":
    main()
