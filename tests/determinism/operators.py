"""Every operator that detrain replaces, as a script uses it: small functions of a device, with what they must call.

A case draws its inputs on CPU from a generator, so that each device gets the same, and returns all outputs and gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Found = list[Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    operator: str  # that must have been ours
    run: Callable[["Inputs"], Found]
    #: Torch has a kernel in half precision on CPU, and one that finds its places in single precision as ours does.
    has_kernel_in_half: bool = True


@dataclass
class Inputs:
    """What a case makes its tensors with."""

    device: str
    dtype: torch.dtype
    seed: int

    def __post_init__(self):
        self.generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *shape: int, grad: bool = True, form: torch.memory_format = torch.contiguous_format) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(self.dtype).to(self.device).contiguous(memory_format=form).requires_grad_(grad)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator).to(self.device)


def back(output: Tensor, *inputs: Tensor) -> Found:
    """The output and the gradients for a weight in every cell that differs from its neighbours'."""
    weight = torch.linspace(-1, 1, max(output.numel(), 1), dtype=torch.float64).to(output.dtype).to(output.device)
    return [output, *torch.autograd.grad(output, inputs, weight[: output.numel()].reshape(output.shape))]


CASES: list[Case] = []


def case(operator: str, *, name: str = "", half: bool = True):
    """Register a case; its name is its function's, with spaces."""

    def note(run: Callable[[Inputs], Found]) -> Callable[[Inputs], Found]:
        CASES.append(Case(name or run.__name__.replace("_", " "), operator, run, half))
        return run

    return note


def variants(operator: str, title: str, arguments: list, run: Callable[..., Found], half: bool = True) -> None:
    """One case for each set of arguments."""
    for one in arguments:
        case(operator, name=f"{title} {one}", half=half)(lambda inputs, one=one: run(inputs, *one))


# --- pooling ---------------------------------------------------------------------------------------------------------

variants(
    "avg_pool3d_backward", "avg_pool3d",
    [((3, 2, 2), (1, 2, 2), 0, False, True, None), (3, 2, 1, True, True, None), (3, 2, 1, True, False, None),
     (2, 3, 0, True, True, None), (3, 1, 1, False, True, 5), (2, None, 1, True, False, None)],
    lambda inputs, *rest: back(F.avg_pool3d(x := inputs.normal(2, 3, 5, 6, 7), *rest), x), half=False,
)  # fmt: skip


@case("avg_pool3d_backward", half=False)
def avg_pool3d_without_batch(inputs):
    return back(F.avg_pool3d(x := inputs.normal(3, 4, 4, 4), 2), x)


variants(
    "_adaptive_avg_pool2d_backward", "adaptive_avg_pool2d",
    [((2, 3, 7, 9), (3, 4)), ((2, 3, 4, 5), (7, 11)), ((3, 6, 6), (2, 3)), ((1, 1, 5, 1), (5, 3))],
    lambda inputs, shape, size: back(F.adaptive_avg_pool2d(x := inputs.normal(*shape), size), x),
)  # fmt: skip


@case("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool2d_channels_last(inputs):
    x = inputs.normal(2, 3, 7, 9, form=torch.channels_last)
    return back(F.adaptive_avg_pool2d(x, (2, 5)), x)


variants(
    "_adaptive_avg_pool3d_backward", "adaptive_avg_pool3d",
    [((2, 3, 4, 5, 6), (2, 3, 4)), ((2, 3, 2, 3, 2), (3, 4, 5)), ((3, 4, 4, 4), (2, 1, 2))],
    lambda inputs, shape, size: back(F.adaptive_avg_pool3d(x := inputs.normal(*shape), size), x),
)  # fmt: skip

variants(
    "adaptive_max_pool2d_backward", "adaptive_max_pool2d",
    [((2, 3, 7, 9), (3, 4)), ((2, 3, 4, 5), (7, 11)), ((3, 6, 6), (2, 3))],
    lambda inputs, shape, size: back(F.adaptive_max_pool2d(x := inputs.normal(*shape), size), x),
)  # fmt: skip


@case("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_of_ties(inputs):
    x = inputs.whole(0, 2, 2, 3, 7, 7).to(inputs.dtype).requires_grad_()
    return back(F.adaptive_max_pool2d(x, (4, 5)), x)


@case("adaptive_max_pool2d_backward")
def adaptive_max_pool2d_channels_last(inputs):
    x = inputs.normal(2, 3, 7, 9, form=torch.channels_last)
    return back(F.adaptive_max_pool2d(x, (4, 5)), x)


@case("adaptive_max_pool3d_backward")
def adaptive_max_pool3d(inputs):
    return back(F.adaptive_max_pool3d(x := inputs.normal(2, 3, 4, 5, 6), (3, 4, 4)), x)


@case("fractional_max_pool2d_backward")
def fractional_max_pool2d(inputs):
    samples = torch.tensor([[[0.1, 0.7]] * 3] * 2, dtype=inputs.dtype, device=inputs.device)
    return back(F.fractional_max_pool2d(x := inputs.normal(2, 3, 9, 8), 3, (5, 4), _random_samples=samples), x)


@case("fractional_max_pool3d_backward")
def fractional_max_pool3d(inputs):
    samples = torch.tensor([[[0.1, 0.7, 0.4]] * 3] * 2, dtype=inputs.dtype, device=inputs.device)
    return back(F.fractional_max_pool3d(x := inputs.normal(2, 3, 6, 7, 8), 2, (4, 4, 5), _random_samples=samples), x)


variants(
    "max_pool3d_with_indices_backward", "max_pool3d",
    [(3, 2, 1, 1, False), (2, 1, 0, 2, False), (3, 2, 1, 1, True)],
    lambda inputs, *rest: back(torch.max_pool3d(x := inputs.normal(2, 3, 6, 7, 8), *rest), x),
)  # fmt: skip


def unpooled(inputs, dims, shape, form=torch.contiguous_format):
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[dims]
    unpool = {1: F.max_unpool1d, 2: F.max_unpool2d, 3: F.max_unpool3d}[dims]
    features = inputs.normal(*shape, grad=False).cpu()
    values, indices = pool(features, 2, 2, return_indices=True)
    values = values.to(inputs.device).contiguous(memory_format=form).requires_grad_()
    indices = indices.to(inputs.device).contiguous(memory_format=form)
    return back(unpool(values, indices, 2, 2, output_size=shape[-dims:]), values)


variants("max_unpool2d", "max_unpool of", [(1, (2, 3, 9)), (2, (2, 3, 6, 7)), (2, (3, 6, 7))], unpooled)
variants("max_unpool3d", "max_unpool of", [(3, (2, 3, 4, 5, 6)), (3, (3, 4, 5, 6))], unpooled)


@case("max_unpool2d")
def max_unpool2d_channels_last(inputs):
    return unpooled(inputs, 2, (2, 3, 6, 8), torch.channels_last)


@case("max_unpool2d")
def max_unpool2d_of_overlapping_windows_keeps_the_last(inputs):
    features = inputs.whole(0, 3, 1, 2, 6, 6).to(inputs.dtype)
    indices = F.max_pool2d(features.cpu(), 3, 1, return_indices=True)[1].to(inputs.device)
    values = inputs.normal(1, 2, 4, 4)
    return back(F.max_unpool2d(values, indices, 3, 1, output_size=(6, 6)), values)


# --- padding ---------------------------------------------------------------------------------------------------------

PADDED = [((2, 3, 6), (2, 3)), ((3, 5), (4, 0)), ((2, 3, 5, 6), (1, 2, 3, 4)), ((3, 5, 6), (0, 0, 2, 1)),
          ((2, 2, 3, 4, 5), (1, 2, 3, 0, 1, 2)), ((2, 3, 4, 5), (1, 1, 1, 1, 1, 1)), ((2, 3, 8), (-2, 3)),
          ((2, 3, 8), (3, -2)), ((2, 3, 6, 7), (-1, 2, 1, -1))]  # fmt: skip

for mode, operator in (("reflect", "reflection_pad"), ("replicate", "replication_pad")):
    for shape, sides in PADDED:
        if mode == "reflect" and len(sides) == 6 and len(shape) == 4:
            continue  # three dimensions of a volume without a batch
        variants(
            f"{operator}{len(sides) // 2}d_backward", f"pad {mode}", [(shape, sides, mode)],
            lambda inputs, shape, sides, mode: back(getattr(torch._C._nn, {
                "reflect": "reflection_pad", "replicate": "replication_pad"}[mode] + f"{len(sides) // 2}d")(
                    x := inputs.normal(*shape), sides), x),
        )  # fmt: skip


# --- resampling ------------------------------------------------------------------------------------------------------

SIZES = {"linear": (7,), "bilinear": (7, 5), "bicubic": (7, 5), "trilinear": (4, 3, 5)}
OTHERS = {"linear": [(13,), (3,), (1,)], "bilinear": [(15, 8), (3, 2), (1, 11)], "bicubic": [(15, 8), (3, 2), (1, 11)],
          "trilinear": [(7, 2, 9)]}  # fmt: skip
NAMES = {"linear": "linear1d", "bilinear": "bilinear2d", "bicubic": "bicubic2d", "trilinear": "trilinear3d"}


def resized(inputs, mode, size, is_aligned, scales=None, form=torch.contiguous_format):
    x = inputs.normal(2, 3, *SIZES[mode], form=form)
    scales = scales or (None,) * len(size)
    # Not `F.interpolate`: on CUDA in deterministic mode it goes another, slower way.
    return back(getattr(torch._C._nn, f"upsample_{NAMES[mode]}")(x, size, is_aligned, *scales), x)


for mode, sizes in OTHERS.items():
    variants(
        f"upsample_{NAMES[mode]}_backward",
        "interpolate",
        [(mode, size, a) for size in sizes for a in (False, True)],
        resized,
    )
variants("upsample_bilinear2d_backward", "interpolate by",
         [("bilinear", (17, 12), False, (2.5, 2.5)), ("bilinear", (14, 10), True, (2.0, 2.0))], resized)  # fmt: skip
variants("upsample_bicubic2d_backward", "interpolate by", [("bicubic", (11, 8), False, (1.7, 1.7))], resized)


@case("upsample_bilinear2d_backward")
def interpolate_channels_last(inputs):
    return resized(inputs, "bilinear", (13, 9), False, form=torch.channels_last)


@case("upsample_bilinear2d_backward")
def interpolate_a_single_cell(inputs):
    return back(torch._C._nn.upsample_bilinear2d(x := inputs.normal(2, 3, 1, 1), (9, 7), False, None, None), x)


variants(
    "_upsample_bilinear2d_aa_backward", "antialias", [("bilinear", size, a) for size in ((3, 2), (9, 11)) for a in (False, True)],
    lambda inputs, mode, size, aligned: back(
        torch._C._nn._upsample_bilinear2d_aa(x := inputs.normal(2, 3, 8, 7), size, aligned, None, None), x), half=False,
)  # fmt: skip
variants(
    "_upsample_bicubic2d_aa_backward", "antialias", [("bicubic", size, a) for size in ((3, 2), (9, 11)) for a in (False, True)],
    lambda inputs, mode, size, aligned: back(
        torch._C._nn._upsample_bicubic2d_aa(x := inputs.normal(2, 3, 8, 7), size, aligned, None, None), x), half=False,
)  # fmt: skip


def sampled(inputs, dims, mode, padding, is_aligned):
    shape, places = ((2, 3, 5, 6), (4, 7)) if dims == 2 else ((2, 3, 3, 4, 5), (2, 3, 4))
    x = inputs.normal(*shape)
    # Beyond the edges too, and no place a hair from where rounding decides.
    grid = (inputs.whole(-37, 38, 2, *places, dims).to(inputs.dtype) / 23 + 0.013).requires_grad_()
    return back(F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=is_aligned), x, grid)


variants(
    "grid_sampler_2d_backward", "grid_sample",
    [(2, mode, padding, a) for mode in ("bilinear", "nearest", "bicubic") for padding in ("zeros", "border", "reflection")
     for a in (False, True)], sampled, half=False,
)  # fmt: skip
variants(
    "grid_sampler_3d_backward", "grid_sample",
    [(3, mode, padding, a) for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection")
     for a in (False, True)], sampled, half=False,
)  # fmt: skip


@case("grid_sampler_2d_backward", half=False)
def grid_sample_without_gradient_of_the_grid(inputs):
    x, grid = inputs.normal(2, 3, 5, 6), inputs.normal(2, 4, 4, 2, grad=False)
    return back(F.grid_sample(x, grid, align_corners=False), x)


@case("grid_sampler_2d_backward", half=False)
def grid_sample_without_gradient_of_the_input(inputs):
    x, grid = inputs.normal(2, 3, 5, 6, grad=False), inputs.normal(2, 4, 4, 2)
    return back(F.grid_sample(x, grid, align_corners=False), grid)


@case("grid_sampler_2d_backward", half=False)
def grid_sample_far_outside(inputs):
    x = inputs.normal(1, 2, 4, 4)
    grid = torch.tensor([[[[1e30, 0.1], [-1e30, 5.0], [0.3, float("nan")]]]], dtype=inputs.dtype, device=inputs.device)
    return back(F.grid_sample(x, grid, align_corners=False), x)[1:]  # what is seen there is another on each device


# --- losses ----------------------------------------------------------------------------------------------------------


def likelihood(inputs, reduction, has_weight, has_ignored):
    x = inputs.normal(2, 4, 5, 6)
    target = inputs.whole(0, 4, 2, 5, 6)
    weight = inputs.normal(4, grad=False).abs() if has_weight else None
    ignored = 2 if has_ignored else -100
    if has_ignored:
        target[0, 0] = 2
    return back(F.nll_loss(F.log_softmax(x, 1), target, weight, reduction=reduction, ignore_index=ignored), x)


variants("nll_loss2d_forward", "nll_loss",
         [(r, w, i) for r in ("mean", "sum") for w in (False, True) for i in (False, True)], likelihood)  # fmt: skip


@case("nll_loss2d_forward")
def cross_entropy_of_images_with_smoothing(inputs):
    return back(F.cross_entropy(x := inputs.normal(2, 4, 5, 6), inputs.whole(0, 4, 2, 5, 6), label_smoothing=0.1), x)


@case("nll_loss2d_forward")
def nll_loss_of_nothing_but_ignored_cells(inputs):
    return back(
        F.nll_loss(x := inputs.normal(1, 3, 2, 2), inputs.whole(1, 2, 1, 2, 2), ignore_index=1, reduction="sum"), x
    )


def temporal(inputs, layout, reduction="mean", zero_infinity=False, lengths=(3, 5, 0, 1), ends=(12, 9, 7, 12), blank=0):
    x = inputs.normal(12, 4, 6)
    labels = inputs.whole(0, 5, 4, 6) + 1
    labels[1, 1] = labels[1, 0]  # a repetition, between which the path must be blank
    labels = torch.where(labels == blank, 0, labels)
    if layout == "concatenated":
        labels = torch.cat([row[:length] for row, length in zip(labels, lengths, strict=True)])
    loss = F.ctc_loss(F.log_softmax(x, 2), labels, ends, lengths, blank, reduction, zero_infinity)
    return back(loss, x)


variants("_ctc_loss_backward", "ctc_loss", [
    ("rows",), ("concatenated",), ("rows", "none"), ("concatenated", "sum", True), ("rows", "mean", False, (3, 5, 0, 1), (12, 9, 7, 12), 4),
    ("rows", "mean", True, (6, 5, 2, 1), (3, 9, 7, 12)), ("concatenated", "none", False, (6, 5, 2, 1), (3, 9, 7, 12)),
    ("rows", "sum", False, (0, 0, 0, 0), (12, 1, 2, 3)),
], temporal, half=False)  # fmt: skip


@case("_ctc_loss_backward", half=False)
def ctc_loss_with_lengths_in_tensors(inputs):
    x = inputs.normal(9, 2, 5)
    return back(
        F.ctc_loss(F.log_softmax(x, 2), inputs.whole(1, 5, 2, 3), torch.tensor([9, 7]), torch.tensor([3, 2])), x
    )


@case("_ctc_loss_backward", half=False)
def ctc_loss_of_a_long_sequence(inputs):
    x = inputs.normal(200, 2, 20)
    return back(F.ctc_loss(F.log_softmax(x, 2), inputs.whole(1, 20, 2, 60), (200, 180), (60, 50)), x)


# --- indexing --------------------------------------------------------------------------------------------------------


@case("put_")
def put_keeps_the_last(inputs):
    target, source = inputs.normal(4, 5), inputs.normal(30)
    return back(target.put(inputs.whole(-20, 20, 30), source), target)


@case("put_")
def put_into_a_transposed_tensor(inputs):
    target, source = inputs.normal(4, 5, 3, grad=False).permute(2, 0, 1), inputs.normal(7, grad=False)
    target.put_(inputs.whole(-60, 60, 7), source)
    return [target]


@case("bincount")
def bincount_with_weights(inputs):
    weights = inputs.normal(50, grad=False)
    return [
        torch.bincount(inputs.whole(0, 9, 50), weights, minlength=12),
        torch.bincount(inputs.whole(0, 9, 50).byte(), weights),
    ]


@case("histc", half=False)
def histc(inputs):
    x = inputs.normal(200, grad=False)
    return [torch.histc(x, 7, -1, 1.3), torch.histc(x, 9), torch.histc(x * 0 + 1.5, 4)]


def multiplied(inputs, shape, dim, include_self):
    target = inputs.normal(*shape)
    index = inputs.whole(0, shape[dim], *shape)
    source = inputs.normal(*shape)
    return back(torch.scatter_reduce(target, dim, index, source, "prod", include_self=include_self), target, source)


variants("scatter_reduce", "scatter_reduce prod",
         [((5,), 0, True), ((3, 6), 1, False), ((3, 6), 0, True), ((4, 70), 1, True)], multiplied)  # fmt: skip


@case("scatter_reduce")
def scatter_reduce_prod_where_the_index_is_smaller(inputs):
    # Values only: torch's own gradient takes no smaller index.
    target, source, index = (
        inputs.normal(4, 5, 3, grad=False),
        inputs.normal(4, 6, 3, grad=False),
        inputs.whole(0, 5, 2, 6, 3),
    )
    return [torch.scatter_reduce(target, 1, index, source, "prod")]


@case("scatter_reduce")
def scatter_reduce_prod_of_whole_numbers(inputs):
    target, source = inputs.whole(1, 4, 6), inputs.whole(1, 4, 20)
    return [target.clone().scatter_reduce_(0, inputs.whole(0, 6, 20), source, "prod")]


@case("scatter")
def scatter_multiply(inputs):
    target, source = inputs.normal(3, 4, grad=False), inputs.normal(3, 4, grad=False)
    return [target.scatter(1, inputs.whole(0, 4, 3, 4), source, reduce="multiply"),
            target.scatter(1, inputs.whole(0, 4, 3, 4), source, reduce="add")]  # fmt: skip


variants(
    "index_reduce", "index_reduce", [(reduce, s) for reduce in ("prod", "mean", "amax", "amin") for s in (True, False)],
    lambda inputs, reduce, include_self: back(
        torch.index_reduce(t := inputs.normal(4, 3), 0, inputs.whole(0, 4, 6), s := inputs.normal(6, 3), reduce, include_self=include_self),
        t, s),
)  # fmt: skip


@case("_embedding_bag_dense_backward")
def embedding_bag_max(inputs):
    table = inputs.normal(6, 3)
    offsets = torch.tensor([0, 4, 4, 9], device=inputs.device)
    return back(F.embedding_bag(inputs.whole(0, 6, 12), table, offsets, mode="max"), table)


@case("_embedding_bag_dense_backward")
def embedding_bag_max_with_padding(inputs):
    table = inputs.normal(6, 3)
    return back(F.embedding_bag(inputs.whole(0, 6, 5, 4), table, mode="max", padding_idx=2), table)


# --- ordering --------------------------------------------------------------------------------------------------------


def checked(values, found, dim, keepdim):
    """Values, and what the indices point at: which of equal elements is named differs between kernels."""
    value, index = found
    return [value, values.gather(dim, index if keepdim else index.unsqueeze(dim))]


def middle(inputs, which, dim, keepdim, has_missing):
    x = inputs.normal(4, 5, 6, grad=False)
    if has_missing:
        x[0, 1, 2] = x[0, 3, 2] = float("nan")
        x[1] = float("nan")
    return checked(x, getattr(torch, which)(x, dim, keepdim), dim, keepdim)


for which in ("median", "nanmedian"):
    variants(which, "", [(which, dim, keep, missing) for dim, keep, missing in
                         ((1, False, False), (-1, True, True), (0, False, True))], middle)  # fmt: skip


def ranked(inputs, k, dim, keepdim):
    x = inputs.normal(4, 5, 6, grad=False)
    return checked(x, torch.kthvalue(x, k, dim, keepdim), dim, keepdim)


variants("kthvalue", "kthvalue", [(1, 0, False), (3, 1, True), (6, -1, False)], ranked)


@case("median")
def gradient_of_a_median(inputs):
    return back(torch.median(x := inputs.normal(4, 7), 1).values, x)


variants("cumsum", "cumsum", [((5,), 0), ((33,), 0), ((1100,), 0), ((3, 70, 2), 1), ((4, 5), -1), ((), 0)],
         lambda inputs, shape, dim: back(torch.cumsum(x := inputs.normal(*shape), dim), x))  # fmt: skip


@case("cumsum")
def cumsum_of_whole_numbers_as_floats(inputs):
    return [torch.cumsum(inputs.whole(0, 9, 3, 40), 1, dtype=inputs.dtype)]
