"""`detrain.remat`: a memory budget for loops of one's own, and the graph of a module."""

import gc
import random
import weakref

import numpy
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import detrain.remat
from detrain.errors import NotSupported, OverBudget, UsageError
from tests.remat.test_running import states_of_generators, there_before


def net_of(depth=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *(part for _ in range(depth) for part in (torch.nn.Linear(32, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh()))
    )


def bits(net):
    return [one.clone() for one in net.state_dict().values()] + states_of_generators()


def same(these, those):
    return all(map(torch.equal, these, those))


def train(net, steps=4, budgeted=None):
    updates = torch.optim.AdamW(net.parameters(), 1e-2)
    for _ in range(steps):
        updates.zero_grad()
        (budgeted or net)(torch.randn(512, 32)).square().mean().backward()
        updates.step()
    return bits(net)


@pytest.mark.parametrize("limit", [0.6, "0.6"])
def test_within_a_budget_a_loop_ends_with_the_same_bits(limit):
    expected = train(net_of())
    net = net_of()
    with detrain.remat.budget(limit, planner="online") as held:
        found = train(net)
    assert same(found, expected)
    assert held.use.num_again
    assert 0 < held.use.peak_bytes <= held.use.budget_bytes


def test_a_module_that_keeps_to_a_budget_is_called_as_ever():
    expected = train(net_of())
    net = net_of()
    before = bits(net)
    one = detrain.remat.Budgeted(
        net, torch.randn(512, 32, generator=torch.Generator().manual_seed(1)), 0.7, planner="online"
    )
    try:
        assert same(bits(net), before)  # the sample has left no trace
        assert all(parameter.grad is None for parameter in net.parameters())
        found = train(net, budgeted=one)
        use = one.held.use
    finally:
        one.end()
    assert same(found, expected)
    assert use.num_again
    assert use.peak_bytes <= use.budget_bytes


def test_tensors_can_be_evicted_and_pinned():
    x = torch.randn(64, 64, requires_grad=True)
    with detrain.remat.budget("100MB", planner="online") as held:
        y = x.exp()
        expected = y.detach().clone()
        assert held.evict(y)
        assert not held.is_there(y)
        assert not held.evict(x)  # nobody can make it again
        held.pin(y)
        assert held.is_there(y)
        assert not held.evict(y)
        assert torch.equal(y, expected)


@pytest.mark.parametrize("limit", ["much", "1.5", "3", -1, 0])
def test_what_is_no_limit(limit):
    with pytest.raises(UsageError, match="expected bytes"), detrain.remat.budget(limit):
        pass


def test_one_budget_at_a_time():
    with (
        detrain.remat.budget("1GiB"),
        pytest.raises(NotSupported, match="within another"),
        detrain.remat.budget("1GiB"),
    ):
        pass
    with detrain.remat.budget("1GiB"):  # the first has ended
        pass
    with pytest.raises(UsageError, match="there is no planner"), detrain.remat.budget("1GiB", planner="best"):
        pass


def test_what_does_not_fit_is_named():
    net = net_of()
    limit = there_before() + 10_000_000
    with pytest.raises(OverBudget, match="the memory budget is"), detrain.remat.budget(limit, planner="online"):
        net(torch.randn(1 << 20, 32))


def test_a_module_is_recorded_without_a_trace():
    net = net_of(2)
    before = bits(net)
    graph = detrain.remat.record(net, torch.randn(16, 32, generator=torch.Generator().manual_seed(1)))
    assert same(bits(net), before)
    names = [one.name for one in graph.operators if not one.is_constant]
    assert names.count("aten::addmm") == 2
    assert any(one.is_backward for one in graph.operators)
    assert {"0.weight", "4.running_mean"} <= {one.name for one in graph.tensors}
    with pytest.raises(AttributeError):
        detrain.remat.unknown  # noqa: B018


class Counting(TorchDispatchMode):
    """A mode of the script's own."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


def test_a_budget_may_begin_and_end_within_a_mode_of_the_scripts_own():
    expected = train(net_of())
    net = net_of()
    with Counting() as counting:
        held = detrain.remat.Budgeted(net, torch.randn(512, 32), 0.7, planner="online")
        torch.manual_seed(0)
        net.load_state_dict(net_of().state_dict())
    outside = counting.seen
    found = train(net, budgeted=held)
    assert counting.seen == outside > 0
    assert same(found, expected)
    assert held.held.use.num_again
    with Counting() as counting:
        held.end()
        torch.ones(2).add(1)
    assert counting.seen >= 2
    assert not torch._C._len_torch_dispatch_stack()


def test_at_the_end_all_is_there_and_nothing_is_kept():
    net, outputs = net_of(), []
    with detrain.remat.budget(there_before() + 2_000_000, planner="online") as held:
        x = torch.randn(4096, 32)
        for part in net:  # the program holds them all, and there is no room for them
            x = part(x) if not isinstance(part, torch.nn.BatchNorm1d) else x
            outputs.append(x)
    assert held.use.num_evictions
    assert all(one.untyped_storage().nbytes() for one in outputs)
    assert not held.evict(outputs[-1])
    expected = outputs[-2].detach().tanh()
    assert torch.equal(outputs[-1], expected)
    runtime = weakref.ref(held._budget.runtime)
    del held, x, part
    gc.collect()
    assert runtime() is None


class Strange(torch.nn.Module):
    """Gives a buffer another tensor, and draws from every generator."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.detach().mean(0) + random.random() + numpy.random.rand()
        return x * self.mean


def test_recording_leaves_buffers_and_generators_as_they_were():
    net, before = Strange(), (random.getstate(), numpy.random.get_state()[1].tolist())
    mean = net.mean
    detrain.remat.record(net, torch.ones(3, 4, requires_grad=True))
    assert net.mean is mean
    assert not mean.any()
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == before
