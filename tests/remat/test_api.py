"""`detrain.remat`: a memory budget for loops of one's own, and the graph of a module."""

import pytest
import torch

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
