"""Operators for which torch has no deterministic kernel: with detrain's a script runs, and gives the same bits."""

import inspect
import re
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from detrain.adapters.torch import kernels
from detrain.adapters.torch.kernels import cuda_only, dispatch

from .operators import CASES, Inputs

BY_NAME = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.strip())
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-2}


@pytest.fixture(autouse=True)
def _as_found():
    """Switches of the process that these tests turn."""
    mode, threads = torch.get_deterministic_debug_mode(), torch.get_num_threads()
    yield
    torch.set_deterministic_debug_mode(mode)
    torch.set_num_threads(threads)


@pytest.fixture
def calls():
    """All formulations, acting on CPU too; counts how often each has answered."""
    answered = Counter()

    def counting(one):
        def function(*args, **kwargs):
            result = one.function(*args, **kwargs)
            answered[one.operator] += result is not None
            return result

        return replace(one, function=function, devices=frozenset({"cpu", "cuda"}))

    libraries = dispatch.install([counting(one) for one in (*kernels.ON_CPU, *cuda_only.ON_CUDA)])
    yield answered
    for library in libraries:
        library._destroy()


def plain(case, dtype, seed=0, device="cpu"):
    """What torch's own kernels give."""
    torch.set_deterministic_debug_mode("default")
    return quietly(case, Inputs(device, dtype, seed))


def ours(case, dtype, seed=0, device="cpu"):
    """What comes out in deterministic mode; what is not replaced raises."""
    torch.set_deterministic_debug_mode("error")
    return quietly(case, Inputs(device, dtype, seed))


def quietly(case, inputs):
    """Run a case; torch gives each of these warnings once in a process, in whichever test comes first."""
    with warnings.catch_warnings():
        # "…use torch.Tensor.scatter_add": `scatter` with `reduce` is on its way out.
        warnings.filterwarnings("ignore", message="The reduce argument of torch.scatter")
        warnings.filterwarnings("ignore", message="index_reduce.. is in beta")
        return case.run(inputs)


def bits(found):
    return [tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() for tensor in found]


def assert_alike(found, expected, dtype):
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(
            mine.cpu(), theirs.cpu(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@BY_NAME
def test_values_and_gradients_agree_with_the_plain_kernels(case, dtype, calls):
    for seed in range(2):
        expected = plain(case, dtype, seed)
        assert not calls
        assert_alike(ours(case, dtype, seed), expected, dtype)
        assert calls.pop(case.operator)
        calls.clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [one for one in CASES if one.has_kernel_in_half], ids=lambda case: case.name.strip())
def test_half_precision_agrees_with_the_plain_kernels(case, dtype, calls):
    expected = plain(case, dtype)
    assert_alike(ours(case, dtype), expected, dtype)
    assert calls[case.operator]


@BY_NAME
def test_what_is_returned_lies_in_memory_as_from_the_plain_kernels(case, calls):
    expected = plain(case, torch.float32)
    assert [one.stride() for one in ours(case, torch.float32)] == [one.stride() for one in expected]


@pytest.mark.parametrize("num_threads", [1, 2])
@BY_NAME
def test_two_calls_give_the_same_bits(case, num_threads, calls):
    torch.set_num_threads(num_threads)
    assert bits(ours(case, torch.float32)) == bits(ours(case, torch.float32))


SPREAD = {
    "bilinear, made larger": lambda x: F.interpolate(x, (9, 11), mode="bilinear"),
    "bilinear, made so much smaller that inputs are left out": lambda x: F.interpolate(x, (1, 2), mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x, (3, 9), mode="bicubic"),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    "reflect": lambda x: F.pad(x, (2, 1, 3, 0), mode="reflect"),
    "grid_sample": lambda x: F.grid_sample(x, torch.linspace(-0.9, 0.9, 24).reshape(1, 3, 4, 2), align_corners=False),
}


@pytest.mark.parametrize("where", [0, -1])
@pytest.mark.parametrize("name", SPREAD)
def test_what_is_not_finite_reaches_no_other_input_than_with_the_plain_kernels(name, where, calls):
    """A weight of 0 for an output that an input has nothing to do with would make infinity not a number."""
    reached = []
    for mode in ("default", "error"):
        torch.set_deterministic_debug_mode(mode)
        x = torch.ones(1, 1, 6, 7, requires_grad=True)
        output = SPREAD[name](x)
        weight = torch.ones_like(output)
        weight.view(-1)[where] = torch.inf
        reached.append(torch.autograd.grad(output, x, weight)[0].isfinite())
    assert sum(calls.values())
    assert reached[1].logical_or(~reached[0]).all()
    assert not reached[1].all()


def test_among_equal_elements_their_order_decides(calls):
    torch.set_deterministic_debug_mode("error")
    ties = torch.ones(3, 5000)
    ties[:, :10] = 0
    assert (
        torch.median(ties, 1).indices.tolist() == [2499] * 3
    )  # the middle of the sorted row, as the sorting keeps order
    assert torch.kthvalue(ties, 11, 1).indices.tolist() == [10] * 3
    assert torch.kthvalue(ties, 1, 1).indices.tolist() == [0] * 3


# --- the order of additions and products, which a checkpoint of an earlier version goes on with ---------------------


def doubled(values, combine):
    """Each element combined with all before it along the last dimension, by doubling."""
    step = 1
    while step < values.shape[-1]:
        values = torch.cat((values[..., :step], combine(values[..., step:], values[..., :-step])), -1)
        step *= 2
    return values


def running_sums(values):
    """As docs/kernels.md has it: over blocks of 32 by doubling, then over the blocks' totals likewise."""
    if values.shape[-1] <= 32:
        return doubled(values, torch.add)
    blocks = F.pad(values, (0, -values.shape[-1] % 32)).unflatten(-1, (-1, 32))
    inside = doubled(blocks, torch.add)
    inside[..., 1:, :] += running_sums(inside[..., -1])[..., :-1, None]
    return inside.flatten(-2)[..., : values.shape[-1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 1024, 1025, 40_000])
def test_running_sums_are_added_up_in_the_order_of_blocks(length, dtype, calls):
    torch.set_deterministic_debug_mode("error")
    x = torch.randn(2, length, generator=torch.Generator().manual_seed(1), dtype=dtype)
    for one in (x, x * -0.0):  # zeros keep their signs
        assert bits([one.cumsum(1)]) == bits([running_sums(one)])
        assert bits([one.T.cumsum(0)]) == bits([running_sums(one).T])


@pytest.mark.filterwarnings("ignore:index_reduce")
def test_products_are_multiplied_from_the_last_source_to_the_first_in_pairs(calls):
    torch.set_deterministic_debug_mode("error")
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(9, (200,), generator=generator).clamp(min=3)  # three without a source, one with many
    source = torch.rand(200, generator=generator) + 0.5
    found = torch.full((9,), 1.5).scatter_reduce(0, index, source, "prod", include_self=True)
    for place in range(9):
        factors = list(reversed(source[index == place].unbind()))
        while len(factors) > 1:
            factors = [torch.stack(factors[n : n + 2]).prod() for n in range(0, len(factors), 2)]
        assert bits([found[place]]) == bits([torch.tensor(1.5) * (factors[0] if factors else 1)])
    columns = torch.full((9, 2), 1.5).index_reduce(0, index, source.unsqueeze(1).expand(-1, 2), "prod")
    assert bits(columns.unbind(1)) == bits([found, found])


def test_among_taps_and_places_the_order_of_additions_is_that_of_single_taps(calls, monkeypatch):
    """However many elements are made at once, the sums have the same bits."""
    cases = [
        case for case in CASES if re.match("grid_sampler|upsample|_upsample|avg_pool|_adaptive_avg", case.operator)
    ]
    at_once = [bits(ours(case, torch.float32)) for case in cases]
    for limit in (0, 200):
        for module in (kernels.resampling, kernels.separable):
            monkeypatch.setattr(module, "AT_ONCE", {"cpu": limit})
        assert [bits(ours(case, torch.float32)) for case in cases] == at_once


def test_a_running_sum_of_single_elements_is_another_tensor(calls):
    torch.set_deterministic_debug_mode("error")
    x = torch.ones(3, 1)
    x.cumsum(1).add_(1)
    assert x.tolist() == [[1.0]] * 3
    assert calls["cumsum"] == 1


@BY_NAME
def test_what_is_returned_keeps_no_more_memory_than_it_has_elements(case, calls):
    for one in ours(case, torch.float32):
        # One row more: an embedding's gradient, whose last row took what has no place.
        room = one.shape[-1] if case.operator == "_embedding_bag_dense_backward" else 0
        assert one.untyped_storage().nbytes() <= (one.numel() + room) * one.element_size()


# --- gradients, and gradients of gradients ---------------------------------------------------------------------------

FORWARD = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2, 1, 1, count_include_pad=False), (1, 1, 2, 3, 3)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 4)), (1, 2, 3, 3)),
    "bilinear": (lambda x: F.interpolate(x, (5, 2), mode="bilinear"), (1, 1, 3, 3)),
    "bicubic": (lambda x: F.interpolate(x, (5, 2), mode="bicubic"), (1, 1, 3, 3)),
    "antialiased": (lambda x: F.interpolate(x, (2, 2), mode="bicubic", antialias=True), (1, 1, 5, 4)),
    "reflect": (lambda x: F.pad(x, (2, 1), mode="reflect"), (1, 2, 4)),
    "replicate": (lambda x: F.pad(x, (2, 1), mode="replicate"), (1, 2, 4)),
    "cumsum": (lambda x: torch.cumsum(x, 0), (40,)),
    "prod": (
        lambda x: torch.zeros(3, dtype=x.dtype).scatter_reduce(
            0, torch.tensor([0, 2, 2, 0, 2]), x, "prod", include_self=False
        ),
        (5,),
    ),
    "grid_sample": (
        lambda x: F.grid_sample(
            torch.arange(9.0, dtype=x.dtype).reshape(1, 1, 3, 3).sin(), x.tanh(), align_corners=False
        ),
        (1, 2, 2, 2),
    ),
    "grid_sample in cubes": (
        lambda x: F.grid_sample(
            torch.arange(27.0, dtype=x.dtype).reshape(1, 1, 3, 3, 3).sin(), x.tanh(), align_corners=True
        ),
        (1, 1, 2, 2, 3),
    ),
    "ctc_loss": (lambda x: F.ctc_loss(x.log_softmax(2), torch.tensor([[1, 1, 2]]), (6,), (3,)), (6, 1, 4)),
}


@pytest.mark.parametrize("name", FORWARD)
def test_gradients_are_those_of_finite_differences(name, calls):
    function, shape = FORWARD[name]
    torch.set_deterministic_debug_mode("error")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))
    assert sum(calls.values())


@pytest.mark.parametrize(
    "name", ["avg_pool3d", "adaptive_avg_pool2d", "bilinear", "bicubic", "reflect", "replicate", "cumsum"]
)
def test_gradients_of_gradients_stay(name, calls):
    function, shape = FORWARD[name]
    torch.set_deterministic_debug_mode("error")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(function, (x,))


def test_per_sample_gradients_stay(calls):
    torch.set_deterministic_debug_mode("error")
    x = torch.randn(3, 2, 4, 4, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def loss(one):
        return F.avg_pool3d(one, 3, 1).sin().sum()

    together = torch.func.vmap(torch.func.grad(loss))(x)
    torch.testing.assert_close(together, torch.stack([torch.func.grad(loss)(one) for one in x]))


# --- which calls are answered ----------------------------------------------------------------------------------------

X = torch.arange(6.0).reshape(2, 3)
INTO = {
    "cumsum": (lambda **k: torch.cumsum(X, 1, **k), 1),
    "cumsum of other type": (lambda **k: torch.cumsum(X.int(), 1, dtype=torch.float32, **k), 1),
    "median": (lambda **k: torch.median(X, 1, **k), 2),
    "kthvalue": (lambda **k: torch.kthvalue(X, 2, **k), 2),
    "histc": (lambda **k: torch.histc(X, 4, **k), 1),
    "scatter_reduce": (lambda **k: torch.scatter_reduce(X, 1, torch.zeros(2, 3).long(), X, "prod", **k), 1),
    "max_unpool2d": (lambda **k: torch._C._nn.max_unpool2d(X[None], torch.arange(6).reshape(1, 2, 3), (3, 3), **k), 1),
}


@pytest.mark.parametrize("name", INTO)
def test_out_and_return_are_the_same(name, calls):
    function, number = INTO[name]
    torch.set_deterministic_debug_mode("error")
    returned = function()
    returned = list(returned) if number > 1 else [returned]
    outs = [torch.empty_like(one) for one in returned]
    given = function(out=tuple(outs) if number > 1 else outs[0])
    assert all(a is b for a, b in zip(list(given) if number > 1 else [given], outs, strict=True))
    assert bits(outs) == bits(returned)
    outs = [torch.empty(0, dtype=one.dtype) for one in returned]  # grows without a warning, being empty
    function(out=tuple(outs) if number > 1 else outs[0])
    assert bits(outs) == bits(returned)
    outs = [torch.empty(7, dtype=one.dtype) for one in returned]
    with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
        function(out=tuple(outs) if number > 1 else outs[0])
    assert bits(outs) == bits(returned)


def test_in_place_and_return_are_the_same(calls):
    torch.set_deterministic_debug_mode("error")
    index = torch.tensor([[0, 2, 0], [1, 1, 1]])
    assert torch.equal(X.clone().cumsum_(1), X.cumsum(1))
    assert torch.equal(X.clone().scatter_reduce_(1, index, X, "prod"), X.scatter_reduce(1, index, X, "prod"))
    target = X.clone()
    version = target._version
    assert target.cumsum_(0) is target
    assert target._version == version + 1  # as from torch's kernel: autograd must see one change
    assert target.put_(torch.tensor([0]), torch.tensor([1.0])) is target
    assert target._version == version + 2


WRONG = {
    "put_ out of range": lambda: torch.zeros(3).put_(torch.tensor([3]), torch.ones(1)),
    "put_ of another type": lambda: torch.zeros(3).put_(torch.tensor([0]), torch.ones(1).double()),
    "put_ of another number": lambda: torch.zeros(3).put_(torch.tensor([0, 1]), torch.ones(1)),
    "put_ with whole 32 bits": lambda: torch.zeros(3).put_(torch.tensor([0]).int(), torch.ones(1)),
    "max_unpool out of range": lambda: F.max_unpool2d(torch.ones(1, 1, 1), torch.tensor([[[9]]]), 2),
    "max_unpool of other shapes": lambda: F.max_unpool2d(torch.ones(1, 1, 1), torch.zeros(1, 1, 2).long(), 2),
    "max_unpool of other types": lambda: F.max_unpool2d(torch.ones(1, 1, 1), torch.zeros(1, 1, 1).int(), 2),
    "kthvalue too large": lambda: torch.kthvalue(torch.ones(3), 4),
    "median of nothing": lambda: torch.median(torch.ones(0), 0),
    "histc from above": lambda: torch.histc(torch.ones(3), 3, 2, 1),
    "histc of infinity": lambda: torch.histc(torch.tensor([1.0, torch.inf])),
    "index_reduce of other shapes": lambda: torch.zeros(3, 4).index_reduce(
        0, torch.tensor([1]), torch.ones(1, 2), "prod"
    ),
    "index_reduce of another dimension": lambda: torch.zeros(3).index_reduce(
        1, torch.tensor([1]), torch.ones(1), "prod"
    ),
    "bincount below 0": lambda: torch.bincount(torch.tensor([-1]), torch.ones(1)),
    "bincount of other shapes": lambda: torch.bincount(torch.tensor([1]), torch.ones(2)),
}


@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation", "ignore:index_reduce")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_get_the_errors_of_torch(name, calls):
    torch.set_deterministic_debug_mode("warn")
    messages = []
    with pytest.raises((RuntimeError, IndexError)) as mine:
        WRONG[name]()
    torch.set_deterministic_debug_mode("default")
    with pytest.raises((RuntimeError, IndexError)) as theirs:
        WRONG[name]()
    assert mine.type is theirs.type
    messages = [str(one.value).splitlines()[0] for one in (mine, theirs)]
    assert messages[0] == messages[1]


EMPTY = {
    "put_": lambda: torch.zeros(3).put_(torch.zeros(0).long(), torch.zeros(0)),
    "max_unpool": lambda: F.max_unpool2d(torch.zeros(0, 2, 2, 2), torch.zeros(0, 2, 2, 2).long(), 2),
    "cumsum": lambda: torch.zeros(0, 3).cumsum(1),
    "histc": lambda: torch.histc(torch.zeros(0), 3),
    "bincount": lambda: torch.bincount(torch.zeros(0).long(), torch.zeros(0)),
    "median": lambda: torch.median(torch.zeros(0, 3), 1).values,
    "scatter_reduce": lambda: torch.zeros(3).scatter_reduce(0, torch.zeros(0).long(), torch.zeros(0), "prod"),
    "nll_loss": lambda: F.nll_loss(torch.zeros(0, 3, 2, 2), torch.zeros(0, 2, 2).long(), reduction="sum"),
}


@pytest.mark.filterwarnings("ignore:.*does not have a deterministic implementation")
@pytest.mark.parametrize("name", EMPTY)
def test_empty_inputs_are_as_from_torch(name, calls):
    torch.set_deterministic_debug_mode("warn")
    mine = EMPTY[name]()
    torch.set_deterministic_debug_mode("default")
    theirs = EMPTY[name]()
    assert (mine.shape, mine.dtype, mine.tolist()) == (theirs.shape, theirs.dtype, theirs.tolist())


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter", "ignore:index_reduce")
def test_without_deterministic_mode_torch_answers(calls):
    torch.set_deterministic_debug_mode("default")
    for case in CASES[:: len(CASES) // 9]:
        case.run(Inputs("cpu", torch.float32, 0))
    assert not calls


def test_other_devices_and_kinds_of_tensors_are_left_to_torch(calls):
    torch.set_deterministic_debug_mode("error")
    assert torch.cumsum(torch.ones(3, device="meta"), 0).device.type == "meta"
    assert torch.cumsum(torch.ones(3, dtype=torch.int32), 0).tolist() == [1, 2, 3]  # torch's own is deterministic
    assert not sum(calls.values())
    assert not dispatch._is_plain(torch.eye(2).to_sparse())
    assert dispatch._is_plain(torch.eye(2))


def test_tracing_modes_see_the_operator_and_nothing_of_what_is_done_for_it(calls):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    torch.set_deterministic_debug_mode("error")
    target, index, source = torch.zeros(4), torch.tensor([1, 1]), torch.ones(2)
    with Log():
        target.put_(index, source)
    assert seen == ["aten.put_.default"]
    assert calls["put_"] == 1


# --- on CPU, as a script meets it ------------------------------------------------------------------------------------


def test_the_last_value_stays_whatever_the_threads():
    """Many values for few cells, in more elements than one thread takes."""
    libraries = dispatch.install(kernels.ON_CPU)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(1, 1, 400, 500, generator=generator)
    indices = torch.randint(0, 300, values.shape, generator=generator)
    torch.set_num_threads(1)
    torch.set_deterministic_debug_mode("default")
    expected = [
        F.max_unpool2d(values, indices, 2, output_size=(800, 1000)), torch.zeros(300).put_(indices, values),
    ]  # fmt: skip
    torch.set_deterministic_debug_mode("error")
    for num_threads in (1, 2):
        torch.set_num_threads(num_threads)
        for _ in range(5):
            found = [
                F.max_unpool2d(values, indices, 2, output_size=(800, 1000)),
                torch.zeros(300).put_(indices, values),
            ]
            assert bits(found) == bits(expected)
    for library in libraries:
        library._destroy()


SCRIPT = """
import torch
from torch.nn import functional as F
model = torch.nn.Conv2d(1, 2, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range(2):
    for batch in torch.ones(3, 1, 1, 4, 4):
        values, indices = F.max_pool2d(model(batch), 2, return_indices=True)
        loss = F.max_unpool2d(values, indices, 2).square().sum()
        loss = loss + torch.zeros(9).put(torch.tensor([1, 1]), values.flatten()[:2]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(repr(loss.item()))
"""


@pytest.mark.full
def test_a_script_is_told_nothing(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-W", "error", "-m", "detrain", "run", "--ckpt-dir", str(tmp_path / "run"), "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert re.fullmatch(
        "detrain: training loop found: .*\ndetrain: first checkpoint: .*\ndetrain: finished after .*\n", done.stderr
    )
    plainly = subprocess.run(
        [sys.executable, "-c", "import torch; torch.manual_seed(0)\n" + SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == plainly.stdout


REGISTRATION = """
import sys, time, torch, warnings
warnings.simplefilter("error")
before = set(sys.modules)
began = time.perf_counter()
from detrain.adapters.torch import kernels
from detrain.adapters.torch.kernels import cuda_only, dispatch
dispatch.install([*kernels.ON_CPU, *cuda_only.ON_CUDA, *cuda_only.STRICT, *cuda_only.LACKING])
print(time.perf_counter() - began)
print([name for name in set(sys.modules) - before if not name.startswith("detrain") and name.startswith("torch")])
print(torch.zeros(3).cumsum(0).sum().item())
"""


def test_registration_is_quiet_and_loads_nothing_of_torch():
    # The adapter itself first: `kernels` lies in its package.
    code = "import detrain.adapters.torch.loading\n" + REGISTRATION
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, loaded, value = done.stdout.split("\n")[:3]
    assert (loaded, value, done.stderr) == ("[]", "0.0", "")
    assert float(seconds) < 0.5  # takes some milliseconds; the bound is for machines under load


# --- what there is, and what there is not ----------------------------------------------------------------------------


def test_every_operator_that_torch_says_it_would_raise_for_has_been_considered():
    """The list in torch's documentation; a version that adds to it fails here."""
    text = torch.use_deterministic_algorithms.__doc__.rpartition("will throw a\n")[2].partition("In addition")[0]
    named = {
        line.split("`")[1].removeprefix("torch.").rpartition(".")[2] for line in text.splitlines() if "* :" in line
    }
    assert named <= {
        "AvgPool3d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "MaxPool3d", "AdaptiveMaxPool2d", "FractionalMaxPool2d",
        "FractionalMaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d", "interpolate", "ReflectionPad1d", "ReflectionPad2d",
        "ReflectionPad3d", "NLLLoss", "CTCLoss", "EmbeddingBag", "put_", "histc", "bincount", "median", "grid_sample", "cumsum",
        "scatter_reduce", "kthvalue", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
        "resize_",  # of quantized tensors: docs/kernels.md says why not
    }  # fmt: skip
    assert len(named) > 20


def test_each_operator_has_a_case():
    replaced = {one.operator for one in (*kernels.ON_CPU, *cuda_only.ON_CUDA)}
    assert replaced - {case.operator for case in CASES} == {"cudnn_grid_sampler_backward"}  # needs cuDNN; below


def test_every_overload_is_torchs():
    torch_has = set(torch._C._dispatch_get_all_op_names())
    for one in (*kernels.ON_CPU, *cuda_only.ON_CUDA, *cuda_only.STRICT):
        for name, _ in dispatch._kernels(one):
            assert f"aten::{name}" in torch_has


def test_every_formulation_takes_what_its_operator_takes():
    """A version of torch that gives an operator another argument fails here."""
    for one in (*kernels.ON_CPU, *cuda_only.ON_CUDA):
        overload = getattr(getattr(torch.ops.aten, one.operator), one.overload or "default")
        arguments = overload._schema.arguments
        keywords = {argument.name: None for argument in arguments if argument.kwarg_only}
        inspect.signature(one.function).bind(*[None] * (len(arguments) - len(keywords)), **keywords)


def test_the_grid_of_cudnn_is_that_of_torch():
    x, grid = torch.randn(2, 3, 5, 6, requires_grad=True), torch.rand(2, 4, 4, 2, requires_grad=True)
    output = F.grid_sample(x, grid, align_corners=True)
    expected = torch.autograd.grad(output, (x, grid), torch.ones_like(output))
    found = kernels.resampling.cudnn_grid_gradients(x.detach(), grid.detach(), torch.ones_like(output))
    assert_alike(list(found), list(expected), torch.float32)


@pytest.fixture
def made_up():
    """An operator of a library, with a kernel for CPU that alerts as torch's do."""
    library = torch.library.Library("detrain_made_up", "DEF")
    library.define("sum(Tensor x) -> Tensor")
    modes = []

    def kernel(x):
        modes.append(torch.get_deterministic_debug_mode())
        if modes[-1] == 2:
            raise RuntimeError("sum does not have a deterministic implementation")
        return x.sum()

    library.impl("sum", kernel, "CPU")
    yield modes
    library._destroy()


def on_cpu(one):
    return dispatch.install([replace(one, devices=frozenset({"cpu"}))])


def test_the_script_is_told_the_line_that_uses_what_has_no_deterministic_kernel(made_up, capsys):
    libraries = on_cpu(dispatch.lacking("sum", "add it up yourself", "detrain_made_up"))
    torch.set_deterministic_debug_mode("warn")
    for _ in range(3):
        line = sys._getframe().f_lineno + 1
        assert torch.ops.detrain_made_up.sum(torch.ones(2)) == 2
    text = f"detrain_made_up::sum has no deterministic kernel; {__file__}:{line} uses it: add it up yourself"
    assert capsys.readouterr().err == f"detrain: warning: {text} [no-deterministic-kernel]\n"  # once
    torch.set_deterministic_debug_mode("error")
    with pytest.raises(RuntimeError, match="sum does not have") as raised:
        torch.ops.detrain_made_up.sum(torch.ones(2))
    assert raised.value.__notes__[0].startswith(
        "detrain: detrain_made_up::sum has no deterministic kernel; " + __file__
    )
    for library in libraries:
        library._destroy()


def test_attention_is_asked_as_if_to_raise_and_the_mode_comes_back(made_up):
    libraries = on_cpu(dispatch.strict("sum", "detrain_made_up"))
    torch.set_deterministic_debug_mode("warn")
    with pytest.raises(RuntimeError, match="does not have"):
        torch.ops.detrain_made_up.sum(torch.ones(2))
    assert torch.get_deterministic_debug_mode() == 1
    torch.set_deterministic_debug_mode("default")
    torch.ops.detrain_made_up.sum(torch.ones(2))
    assert made_up == [2, 0]
    for library in libraries:
        library._destroy()


# --- on CUDA ---------------------------------------------------------------------------------------------------------

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture
def on_cuda(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    kernels.replace()


@pytest.mark.gpu
@needs_cuda
@BY_NAME
def test_on_cuda_every_operator_runs_and_gives_the_same_bits(case, on_cuda):
    torch.set_num_threads(1)  # with several, the last of what goes to one cell is whichever
    expected = plain(case, torch.float32)
    first = ours(case, torch.float32, device="cuda")
    assert_alike(first, expected, torch.float32)
    for _ in range(19):
        assert bits(ours(case, torch.float32, device="cuda")) == bits(first)


@pytest.mark.gpu
@needs_cuda
def test_on_cuda_products_and_ranks_can_be_captured_in_a_graph(on_cuda):
    """Nothing is asked of the device meanwhile."""
    torch.set_deterministic_debug_mode("error")
    x = torch.rand(3, 50, device="cuda")
    index = torch.randint(9, x.shape, generator=torch.Generator().manual_seed(1)).cuda()

    def found():
        product = torch.ones(3, 9, device="cuda").scatter_reduce(1, index, x, "prod")
        return [product, *torch.kthvalue(x, 7), *torch.median(x, 1)]

    expected = found()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = found()
    graph.replay()
    assert bits(captured) == bits(expected)


@pytest.mark.gpu
@needs_cuda
def test_on_cuda_elements_taken_many_times_get_the_same_gradient(on_cuda):
    """`put_` with `accumulate`, which only there needs another formulation."""
    index = torch.randint(0, 50, (100_000,), generator=torch.Generator().manual_seed(1))
    weight = torch.randn(index.shape, generator=torch.Generator().manual_seed(2))

    def gradient(device):
        x = torch.zeros(5, 10, device=device, requires_grad=True)
        return torch.autograd.grad(x.take(index.to(device)), x, weight.to(device))

    torch.set_deterministic_debug_mode("error")
    first = gradient("cuda")
    torch.testing.assert_close(first[0].cpu(), gradient("cpu")[0], rtol=1e-3, atol=1e-2)
    assert all(bits(gradient("cuda")) == bits(first) for _ in range(19))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0), reason="no flash attention"
)
@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION"])
def test_on_cuda_attention_gives_the_same_bits_where_the_mode_is_to_warn(backend, on_cuda):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.set_deterministic_debug_mode("warn")
    query, key, value = torch.randn(3, 2, 8, 2048, 64, device="cuda", dtype=torch.bfloat16)
    tensors = [one.requires_grad_() for one in (query, key, value)]

    def gradients():
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return bits([*torch.autograd.grad(F.scaled_dot_product_attention(*tensors, is_causal=True).sum(), tensors)])

    first = gradients()
    assert all(gradients() == first for _ in range(19))
