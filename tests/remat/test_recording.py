"""A training step that really runs, as a graph of operators."""

import hashlib

import pytest
import torch
from torch import nn

from detrain.adapters.loaded import Frameworks
from detrain.adapters.numpy import NumpyAdapter
from detrain.adapters.torch.adapter import TorchAdapter
from detrain.adapters.torch.remat.recording import StepRecorder, names_of_parameters
from detrain.errors import GraphError, NotSupported
from detrain.remat import dtrlog, graphfile, rewrites
from detrain.remat.graph import GraphBuilder
from detrain.remat.simulator import floor_bytes, peak_bytes


class Training:
    """A model with what makes graphs hard: batch statistics, changes in place, dropout, views, tied weights."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Flatten(),
            nn.Linear(8 * 36, 16), nn.Tanh(), nn.Linear(16, 16),
        )  # fmt: skip
        self.net[7].bias = self.net[5].bias
        self.optimizer = torch.optim.AdamW(self.net.parameters(), 1e-3)

    def step(self, size: int = 4) -> float:
        x, y = torch.randn(size, 3, 6, 6), torch.randint(0, 16, (size,))
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def digest(self) -> str:
        bits = b"".join(tensor.numpy().tobytes() for tensor in self.net.state_dict().values())
        return hashlib.sha256(bits + torch.get_rng_state().numpy().tobytes()).hexdigest()


def recorded(sizes: tuple[int, ...] = (4, 4, 4)):
    training = Training()
    log = StepRecorder(names_of_parameters([training.net]))
    for size in sizes:
        log.begin_step()
        training.step(size)
    return log.end(), training


def test_a_recorded_step_has_the_bits_of_any_other():
    _, training = recorded()
    plain = Training()
    for _ in range(3):
        plain.step()
    assert training.digest() == plain.digest()


def test_operators_of_forward_backward_and_update_are_there():
    graph, _ = recorded()
    by_name = {operator.name: operator for operator in graph.operators}
    assert not by_name["aten::convolution"].is_backward
    assert by_name["aten::convolution_backward"].is_backward
    assert not by_name["aten::addcdiv_"].is_backward
    assert {operator.name for operator in graph.operators if operator.is_random} >= {"aten::randn", "aten::bernoulli_"}
    assert all(operator.cost_ns > 0 for operator in graph.operators if not operator.is_constant)
    assert graphfile.decode(graphfile.encode(graph)) == graph


def test_what_is_changed_in_place_is_one_storage():
    graph, _ = recorded()
    relu = next(operator for operator in graph.operators if operator.name == "aten::relu_")
    (made,) = relu.outputs
    assert relu.mutates == (0,)
    assert graph.tensors[made].base == graph.tensors[relu.inputs[0]].base
    assert graph.tensors[made].size_bytes == 0
    norm = next(operator for operator in graph.operators if operator.name == "aten::native_batch_norm")
    assert [graph.tensors[norm.inputs[position]].name for position in norm.mutates] == [
        "1.running_mean",
        "1.running_var",
    ]


def test_a_view_is_no_memory_and_a_number_that_is_read_holds_what_it_is_read_of():
    graph, _ = recorded()
    view = next(operator for operator in graph.operators if operator.name == "aten::view")
    assert graph.tensors[view.outputs[0]].size_bytes == 0
    read = [operator for operator in graph.operators if operator.name == "aten::_local_scalar_dense"][-1]
    loss = next(operator for operator in graph.operators if operator.name == "aten::nll_loss_forward").outputs[0]
    assert [graph.tensors[tensor].base for tensor in read.inputs] == [loss]


def test_parameters_have_their_names_and_tied_ones_are_one():
    graph, training = recorded()
    names = {tensor.name for tensor in graph.tensors}
    assert {name for name, _ in training.net.named_parameters()} <= names
    assert "7.bias" not in names  # the same as 5.bias


def test_memory_of_the_state_and_of_the_peak():
    graph, training = recorded()
    parameters = sum(one.nbytes for one in training.net.parameters())
    assert graph.constant_bytes >= 3 * parameters  # Adam's two moments
    seen = torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU])
    with seen:
        training.step()
    # What the allocator gave out during a step, above what was there: the profiler's own events, in their order.
    now = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    assert peak_bytes(graph) - graph.constant_bytes == pytest.approx(peak, rel=0.05)


def test_the_graph_is_that_of_the_most_frequent_kind():
    graph, _ = recorded((4, 9, 4, 4, 7))
    drawn = next(operator for operator in graph.operators if operator.name == "aten::randn").outputs[0]
    assert graph.tensors[drawn].size_bytes == 4 * 3 * 36 * 4


def test_a_log_of_the_prototype_says_the_same_operators_and_times():
    graph, _ = recorded()
    said = rewrites.as_log_says(graph)
    read = dtrlog.parse(dtrlog.lines_of(said))
    assert read.cost_ns == said.cost_ns == graph.cost_ns
    assert [operator.name for operator in read.operators] == [operator.name for operator in graph.operators]
    assert peak_bytes(read) == peak_bytes(graph)


def test_a_step_without_operators_is_no_graph():
    log = StepRecorder()
    log.begin_step()
    with pytest.raises(GraphError, match="no operator"):
        log.end()


class Other(NumpyAdapter):
    """A framework that a library has loaded beside torch."""

    name, can_train = "other", True


def test_the_framework_that_can_be_recorded_is():
    with pytest.raises(NotSupported, match="without a framework"):
        Frameworks({"numpy": NumpyAdapter()}).record_steps()
    with pytest.raises(NotSupported, match="other cannot record"):
        Frameworks({"other": Other(), "numpy": NumpyAdapter()}).record_steps()
    assert isinstance(Frameworks({"other": Other(), "torch": TorchAdapter()}).record_steps(), StepRecorder)


def test_a_constant_that_the_program_gives_back_is_no_part_of_the_floor():
    builder = GraphBuilder()
    left, weight = builder.constant("left", 100), builder.constant("weight", 10)
    (x,) = builder.compute("read", 1, [left, weight], [("x", 20, -1)])
    builder.release(left)
    (y,) = builder.compute("make", 1, [x, weight], [("y", 70, -1)])
    graph = builder.build([y])
    assert floor_bytes(graph) == peak_bytes(graph) == 130
    assert graph.constant_bytes == 110
