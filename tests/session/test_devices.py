"""What lies on a device, for which the processor would have to wait.

Here, in the memory of the processor, each tensor is taken for one on a device: the ways are the same. `gpu`: on a real one.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.adapters.torch import ADAPTER, devices, updates
from detrain.session.losses import Losses
from detrain.state.digests import PIECE_BYTES, DeviceLeaf, Leaf, leaves
from detrain.state.walk import Walk


@pytest.fixture(params=["taken for a device", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA device")
        return "cuda"
    monkeypatch.setattr(devices, "is_on_device", lambda tensor: True)
    monkeypatch.setattr(updates, "_common", lambda output: None)  # which is quick with what lies in host memory
    return "cpu"


def leaf_of(value):
    walk = Walk()
    walk.root("value", value)
    found = leaves(walk.run())
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_leaf_on_a_device_has_the_digest_that_it_has_in_memory(device, monkeypatch, dtype):
    plain = torch.arange(PIECE_BYTES // dtype.itemsize + 7).to(dtype)
    moved = plain.to(device)

    def told(leaf):
        return [leaf.digest(), leaf.digest(PIECE_BYTES), leaf.sketch()]

    there = leaf_of(moved)
    found = told(there)
    monkeypatch.setattr(devices, "is_on_device", lambda tensor: False)
    here = leaf_of(plain)
    assert (type(there), type(here)) == (DeviceLeaf, Leaf)
    assert found == told(here)
    assert 0 not in found


def test_leaf_that_looks_into_a_larger_storage_is_read_where_it_lies(device):
    whole = torch.arange(30.0, device=device)
    part = whole[10:20]
    copy = part.clone()
    one, other = leaf_of(part), leaf_of(copy)
    assert one.digest() == other.digest()
    part[3] = 7.0
    assert one.digest() != other.digest()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_state_on_a_device_is_copied_once_and_to_locked_memory(dtype):
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    value = torch.arange(100_000, device="cuda").to(dtype)
    walk = Walk()
    walk.root("value", value)
    (array,) = walk.run().tree.arrays
    assert array.is_copy
    assert torch.from_numpy(array.data).is_pinned()
    before = value.cpu()
    value.zero_()
    assert bytes(array.octets()) == bytes(before.view(torch.uint8).numpy().data)


def test_leaf_that_is_gone_or_has_moved_tells_nothing(device):
    model = torch.nn.Linear(2, 2, bias=False, device=device)
    leaf = leaf_of(model)
    assert leaf.digest()
    model.weight.data = model.weight.data.clone()
    assert leaf.digest() == leaf.sketch() == 0


def test_loss_is_read_later_and_is_what_it_was(device):
    weight = torch.ones(3, device=device, requires_grad=True)
    loss = (weight * 0.1).sum()
    (reading,) = ADAPTER.losses([loss])
    with torch.no_grad():
        loss.zero_()
    bits, values = reading()
    assert values == [pytest.approx(0.3)]
    assert bits == torch.tensor(values[0]).numpy().tobytes()


def test_modes_of_the_script_see_nothing_of_it(device):
    seen = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    loss = torch.ones((), device=device, requires_grad=True) * 2
    with Operations(), Functions():
        readings = ADAPTER.losses([loss])
        readings[0]()
    assert [str(one) for one in seen] == []


class Watching(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(func)


class WatchingOperations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(func)


@pytest.mark.parametrize("mode", [contextlib.nullcontext, Watching, WatchingOperations])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_a_loss_in_host_memory_is_on_record_with_its_bits_and_unseen(mode, dtype, shape):
    loss = torch.full(shape, 0.1, dtype=dtype, requires_grad=True) * 3
    losses, same = Losses(), Losses()
    with mode():
        found = ADAPTER.losses((loss,))
    losses.add(found)
    losses.end_batch(1, counts=True)
    raw = loss.detach().reshape(1).view(torch.uint8).numpy().tobytes()
    same.add([lambda: (raw, [loss.item()])])
    same.end_batch(1, counts=True)
    assert losses.digest(1, 2) == same.digest(1, 2) != Losses().digest(1, 2)
    assert losses.take_curve() == [(1, 0, loss.item())]


@pytest.mark.parametrize(
    "output",
    [torch.ones(2), torch.ones((), device="meta"), torch.ones(1).to_sparse()],
    ids=["vector", "meta", "sparse"],
)
def test_what_is_no_loss_is_not_read(output):
    assert ADAPTER.losses((output,)) == []


def test_an_output_within_a_transform_is_not_read():
    def loss(x):
        value = (x * x).sum()
        assert ADAPTER.losses((value,)) == []
        return value

    torch.func.grad(loss)(torch.ones(2))


@pytest.mark.gpu
def test_loss_that_another_stream_computes_is_waited_for():
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(50_000_000)
        loss = torch.ones((), device="cuda", requires_grad=True) * 3
        (reading,) = ADAPTER.losses([loss])
    assert reading()[1] == [3.0]


def given(*values):
    return [lambda value=value: (bytes([value]), [float(value)]) for value in values]


def test_losses_are_read_when_a_record_asks_for_them():
    read = []

    def reading():
        read.append(1)
        return b"x", [1.0]

    losses = Losses()
    losses.add([reading])
    losses.end_batch(1, counts=True)
    assert read == []
    assert losses.digest(1, 2) == losses.digest(1, 2) != 0
    assert losses.take_curve() == [(1, 0, 1.0)]
    assert losses.take_curve() == []
    assert read == [1]


def test_digest_of_losses_is_of_their_order_and_not_of_where_headers_lay():
    one, other, third = Losses(), Losses(), Losses()
    for losses, order in ((one, (1, 2, 3)), (other, (1, 2, 3)), (third, (2, 1, 3))):
        losses.add(given(order[0]))
        if losses is not other:
            losses.end_batch(1, counts=True)
        losses.add(given(order[1]))
        losses.end_batch(1, counts=True)
        losses.add(given(order[2]))
        losses.end_batch(2, counts=True)
    assert one.digest(1, 3) == other.digest(1, 3) != third.digest(1, 3)
    assert one.digest(1, 2) != one.digest(1, 3)
    assert one.digest(1, 1) == 0


def test_losses_before_the_first_header_are_on_the_curve_only():
    losses = Losses()
    losses.add(given(5))
    losses.end_batch(0, counts=False)
    losses.add(given(6))
    losses.end_batch(1, counts=True)
    assert losses.take_curve() == [(0, 0, 5.0), (1, 0, 6.0)]
    assert losses.digest(0, 2) == losses.digest(1, 2)
