"""Scripts' own loops over a pipeline: what they would have been without one, in one process that plays all devices, and over processes."""

import contextlib
import gc
import random
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from detrain.adapters.protocol import PipelineOrder
from detrain.adapters.torch.pipeline import script, shipping
from detrain.adapters.torch.pipeline.splitting import split
from detrain.adapters.torch.pipeline.tracing import trace
from detrain.errors import GraphError, PipelineError
from tests.pipeline.pipelined import MODELS, batches, digest, layers_of, loss_of, made, plan_of
from tests.tiers import full_but


@contextlib.contextmanager
def over(layers, replicas, num_micro_batches=1, *, is_emulated=True):
    """Calls within go over a pipeline."""
    order = PipelineOrder(plan_of(layers, replicas), num_micro_batches, is_emulated)
    pipeline = script.ScriptPipeline(order, contextlib.nullcontext)
    pipeline.begin()
    try:
        yield pipeline
    finally:
        pipeline.end()


def trained(model, optimizer, data):
    """As a script does: clips, evaluates, and keeps losses. Digest of the weights, and what was seen."""
    seen = []
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        model.eval()
        with torch.no_grad():
            seen.append((loss.item(), norm.item(), model(x).sum().item()))
        model.train()
    return digest(model), seen


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("replicas", full_but([(1, 1, 1)], [(1,), (1, 1), (1, 1, 1)]))
def test_with_one_micro_batch_a_straight_plan_has_the_bits_of_the_script_alone(name, replicas):
    alone = trained(*made(name), batches(name))
    layers = layers_of(name)
    with over(layers, replicas):
        assert trained(*made(name), batches(name)) == alone


@pytest.mark.parametrize("name", MODELS)
def test_the_cuts_do_not_change_the_bits(name):
    """Dropout, batches that do not come out even, and statistics of micro-batches."""
    layers = layers_of(name, 0.2)
    found = set()
    for replicas in [(1,), (1, 1), (1, 1, 1)]:
        with over(layers, replicas, 4):
            found.add(repr(trained(*made(name, 0.2), batches(name, size=11))))
    assert len(found) == 1


def test_gradients_are_those_of_micro_batches_from_the_last_to_the_first():
    layers = layers_of("recurrent")
    model, _ = made("recurrent")
    x, y = next(batches("recurrent"))
    parts = [model(part) for part in x.tensor_split(3)]
    output = torch.cat([part.detach() for part in parts]).requires_grad_()
    loss = loss_of(output, y)
    loss.backward()
    for part, gradient in reversed(list(zip(parts, output.grad.tensor_split(3), strict=True))):
        part.backward(gradient)
    expected = [one.grad for one in model.parameters()]
    other, _ = made("recurrent")
    with over(layers, (1, 1), 3):
        found = loss_of(other(x), y)
        found.backward()
    assert torch.equal(found, loss)
    assert all(torch.equal(one.grad, grad) for one, grad in zip(other.parameters(), expected, strict=True))


def test_replicas_split_each_micro_batch():
    """Sums go over the micro-batches of each replica first, then over the replicas."""
    layers = layers_of("recurrent")
    x, y = next(batches("recurrent", size=8))
    model, _ = made("recurrent")
    rows = [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    outputs = {span: model(x[slice(*span)]) for own in rows for span in own}
    output = torch.cat([outputs[span].detach() for span in sorted(outputs)]).requires_grad_()
    loss_of(output, y).backward()
    totals = None
    for own in rows:
        model.zero_grad()
        for span in reversed(own):
            outputs[span].backward(output.grad[slice(*span)])
        grads = [one.grad for one in model.parameters()]
        totals = grads if totals is None else [a + b for a, b in zip(totals, grads, strict=True)]
    other, _ = made("recurrent")
    with over(layers, (2,), 2):
        loss_of(other(x), y).backward()
    assert all(torch.equal(one.grad, total) for one, total in zip(other.parameters(), totals, strict=True))


def test_calls_may_wait_for_each_other_add_up_and_be_left():
    """Two inputs of one loss, gradients over several batches, and an output that nothing comes of."""

    def train(model, optimizer):
        for number, (x, y) in enumerate(batches("recurrent", 6)):
            loss = (loss_of(model(x), y) + loss_of(model(x.flip(0)), y)) / 2
            model(x).sum()
            loss.backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
        return digest(model)

    alone = train(*made("recurrent"))
    layers = layers_of("recurrent")
    with over(layers, (1, 1)) as pipeline:
        model, optimizer = made("recurrent")
        assert train(model, optimizer) == alone
        gc.collect()
        pipeline._crew._tell_dropped()
        (known,) = [one for kinds in pipeline._known.values() for found in kinds.values() for one in found]
        assert all(not worker.own.flights for worker in known.trained.workers.values())
        del model, optimizer
        gc.collect()
        assert not pipeline._known


class Named(nn.Module):
    """Is given things by name, some of them plain, and returns a dict; its last part can be frozen."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, *, given, scale=1.0, extra=None):
        y = self.drop(torch.relu(self.first(given["x"]))) * scale
        return {"scores": self.last(y), "hidden": y if extra is None else y + extra}


def test_inputs_by_name_and_outputs_in_a_dict():
    torch.manual_seed(0)
    model, x = Named(), torch.randn(6, 4)
    model.drop.p = 0.0
    layers = [layer.name for layer in trace(model, [], {"given": {"x": x}, "scale": 2.0}).layers]
    expected = model(given={"x": x}, scale=2.0)
    with over(layers, (1, 1), 3):
        found = model(given={"x": x}, scale=2.0)
        found["scores"].sum().backward()
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[key], expected[key]) for key in found)
    assert model.first.weight.grad is not None


def test_what_is_changed_between_calls_holds_from_then_on():
    torch.manual_seed(0)
    model, x = Named(), torch.randn(600, 4)
    layers = [layer.name for layer in trace(model, [], {"given": {"x": x}}).layers]
    with over(layers, (1, 1)):
        for rate in (0.5, 0.0, 0.9):
            model.drop.p = rate
            hidden = model(given={"x": x})["hidden"]
            active = torch.relu(model.first(x)) > 0
            assert (hidden[active] == 0).float().mean().item() == pytest.approx(rate, abs=0.05)
        model.first.weight.requires_grad_(False)
        model(given={"x": x})["scores"].sum().backward()
        assert model.first.weight.grad is None
        assert model.first.bias.grad is not None


class Mixes(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.first(x) - x.mean(0))


class OneByOne(Mixes):
    """What takes it through its samples is unrolled as it is traced."""

    def forward(self, x):
        return torch.stack([self.last(self.first(one)) for one in x])


def test_a_model_that_takes_samples_one_by_one_is_traced_for_each_number_of_them():
    torch.manual_seed(0)
    model = OneByOne()
    layers = [layer.name for layer in trace(model, [torch.randn(2, 4)]).layers]
    assert trace(model, [torch.randn(3, 4)]).most_samples == 3
    with over(layers, (1, 1)):
        x = torch.randn(2, 4)
        assert torch.allclose(model(x), model.last(model.first(x)))
        with pytest.raises(GraphError, match="a plan for another model"):
            model(torch.randn(3, 4))


class Losses(Mixes):
    def forward(self, x):
        return self.last(self.first(x)).square().mean()


class Causal(Mixes):
    """The first samples are the same without those behind them."""

    def forward(self, x):
        return self.last(self.first(x).cumsum(0))


class MixesInTraining(Mixes):
    def forward(self, x):
        y = self.first(x)
        return self.last(y - y.mean(0) if self.training else y)


class Counts(Mixes):
    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return self.last(self.first(x))


class Keeps(Counts):
    """For a loss of its own, say."""

    def forward(self, x):
        self.hidden = self.first(x)
        return self.last(self.hidden)


class Averages(Mixes):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        y = self.first(x)
        self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
        return self.last(y - self.average)


class Notes(Mixes):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(len(self.seen))
        return self.last(self.first(x))


class DrawsByItself(Mixes):
    def __init__(self):
        super().__init__()
        self.generator = random.Random(0)

    def forward(self, x):
        return self.last(self.first(x) * self.generator.random())


class Renormalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.first(x.abs().long() % 9))


class Draws(Mixes):
    def forward(self, x):
        y = self.first(x)
        return self.last(y) if random.random() < 2 else y


class Plain(Mixes):
    def forward(self, x):
        return self.last(self.first(x))


def hooked():
    model = Plain()
    model.first.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "num_micro_batches", "said"),
    [
        (Mixes, 2, "not independent"),
        (Losses, 2, "has no samples in it"),
        (Causal, 2, "not independent"),
        (MixesInTraining, 2, "not independent"),
        (Counts, 1, "keeps something in count"),
        (Keeps, 1, "keeps something in hidden"),
        (Averages, 1, "keeps something in _buffers"),
        (Notes, 1, "keeps something in seen"),
        (Draws, 1, "draws from a generator of Python's"),
        (DrawsByItself, 1, "draws from a generator of Python's"),
        (Renormalised, 1, "first.weight, a parameter, is changed in place"),
        (hooked, 1, "first has hooks"),
    ],
)
def test_what_a_pipeline_would_do_in_another_way_is_refused(make, num_micro_batches, said):
    model, x = make(), torch.randn(4, 4)
    own = {Mixes: 1, Losses: 1, Causal: 1, MixesInTraining: 1, Averages: 1, DrawsByItself: 1, Renormalised: 1}.get(
        make, 0
    )
    layers = ["first", "last", *[make.__name__][:own]]
    with over(layers, (1,), num_micro_batches), pytest.raises(GraphError, match=re.escape(said)):
        model(x)


def test_what_the_model_returns_may_be_changed_in_place():
    model, x = Plain(), torch.randn(4, 4)
    with over(["first", "last"], (1, 1)):
        found = model(x)
        found /= 2
        found.sum().backward()
    assert torch.equal(model.last.bias.grad, torch.full((4,), 2.0))


FACTOR = {"all": 1.0}


class Decided(nn.Module):
    """By more than its plain attributes."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 4)
        self.factors, self.config, self.shift = [1.0, 2.0], SimpleNamespace(scale=1.0), torch.zeros(4)

    def forward(self, x):
        y = self.act(self.first(x)) * self.factors[1] * self.config.scale * FACTOR["all"]
        return self.last(y + self.shift)


def _in_list(model):
    model.factors[1] = 5.0


def _in_config(model):
    model.config.scale = 5.0


def _act(model):
    model.act = nn.Tanh()


def _shift(model):
    model.shift = torch.ones(4)


@pytest.mark.parametrize("change", [_in_list, _in_config, _act, _shift, lambda _: FACTOR.update(all=5.0)])
def test_whatever_a_forward_is_decided_by_may_change(change, monkeypatch):
    monkeypatch.setitem(FACTOR, "all", 1.0)
    torch.manual_seed(0)
    model, x = Decided(), torch.randn(4, 4)
    before = model(x)
    with over(["first", "act", "Decided", "last"], (1, 1)):
        assert torch.equal(model(x), before)
        change(model)
        found = model(x)
        assert not torch.equal(found, before)
    assert torch.equal(found, model(x))


def test_hooks_of_parameters_run_once():
    model, x, seen = Plain(), torch.randn(4, 4), []
    model.first.weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    with over(["first", "last"], (1, 1)):
        model(x).sum().backward()
    assert len(seen) == 1
    assert torch.equal(model.first.weight.grad, seen[0] * 2)


def test_a_buffer_may_be_changed_by_a_view_of_it():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
            self.register_buffer("counts", torch.zeros(3))

        def forward(self, x):
            self.counts[1] += 1
            return self.last(self.first(x))

    model = Counting()
    layers = [layer.name for layer in trace(model, [torch.randn(4, 4)]).layers]
    with over(layers, (1, 1)):
        for _ in range(3):
            model(torch.randn(4, 4)).sum().backward()
    assert model.counts.tolist() == [0, 3, 0]


def test_batch_statistics_are_never_of_one_sample():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    with over(["0", "1", "2"], (1, 1, 1), 4):
        for count in (10, 5, 2):
            model(torch.randn(count, 4)).sum().backward()
        assert not model[1].running_var.isnan().any()
        with pytest.raises(GraphError, match="more than 1 value per channel"):
            model(torch.randn(1, 4))


@pytest.mark.parametrize("size", full_but([9], range(9, 15)))
def test_gradients_lie_in_memory_as_without_a_pipeline(size):
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 50)

        def forward(self, x):
            return self.head(self.cell(x)[0])

    torch.manual_seed(size)
    model, x, y = Language(), torch.randn(size, 29, 8), torch.randint(0, 50, (size, 29))
    found = []
    layers = [layer.name for layer in trace(model, [x]).layers]
    for context in (contextlib.nullcontext(), over(layers, (1, 1))):
        model.zero_grad()
        with context:
            nn.functional.cross_entropy(model(x).transpose(1, 2), y).backward()
        found.append([one.grad.clone() for one in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_refusal_that_the_script_passes_over_ends_the_run_at_the_next_batch():
    model, x = Plain(), torch.randn(4, 4)
    with over(["first", "last"], (1, 1)) as pipeline:
        pipeline.at_header(0)
        model(x)
        model.first.register_forward_hook(lambda *_: None)
        with contextlib.suppress(GraphError):
            model(x)
        with pytest.raises(GraphError, match="has hooks"):
            pipeline.at_header(1)


def test_after_a_call_that_has_failed_there_is_no_other():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), nn.Embedding(3, 4)

        def forward(self, x, rows):
            return self.first(x) + self.last(rows)

    model, x = Looks(), torch.randn(4, 4)
    layers = [layer.name for layer in trace(model, [x, torch.zeros(4, dtype=torch.long)]).layers]
    with over(layers, (1, 1)):
        with pytest.raises(IndexError):
            model(x, torch.tensor([0, 1, 2, 3]))
        with pytest.raises(PipelineError, match="has failed before"):
            model(x, torch.zeros(4, dtype=torch.long))


def test_another_model_of_the_same_names_trains_by_itself():
    actor, critic = (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)),
    )
    x = torch.randn(4, 4)
    with over(["0", "1"], (1, 1)):
        assert torch.equal(actor(x), actor[1](actor[0](x)))
        assert torch.equal(critic(x), critic[2](critic[1](critic[0](x))))


def test_autocast_gradients_of_inputs_and_a_second_way_back_are_refused():
    model, x = Plain(), torch.randn(4, 4)
    with over(["first", "last"], (1, 1)):
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(GraphError, match="autocast"):
            model(x)
        with pytest.raises(GraphError, match="has gradients"):
            model(x.clone().requires_grad_())
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(PipelineError, match="twice"):
            loss.backward()


def test_a_plan_for_another_model_is_refused_when_a_batch_has_been_trained_on():
    with over(["stem", "head"], (1, 1)) as pipeline:
        pipeline.at_header(3)
        Plain()(torch.randn(4, 4)).sum().backward()
        with pytest.raises(GraphError, match=r"layers stem, head, .*calls Plain"):
            pipeline.at_header(4)


def test_other_numbers_than_the_runs_are_refused():
    with over(["first", "last"], (1, 1), 2) as pipeline:
        pipeline.state.update({"num_micro_batches": 4, "replicas": [1, 1]})
        with pytest.raises(PipelineError, match="begun with 4 micro-batches and replicas 1-1"):
            Plain()(torch.randn(4, 4))


def test_the_rest_of_an_epoch_may_be_small():
    model = Plain()
    with over(["first", "last"], (2, 1), 4):
        for count in (16, 5, 2, 1):
            model(torch.randn(count, 4)).sum().backward()
    assert model.last.weight.grad is not None


@pytest.mark.parametrize("name", MODELS)
def test_a_stage_does_the_same_where_it_was_sent(name):
    model, _ = made(name)
    x = next(batches(name))[0]
    traced = trace(model, [x])
    (stage,) = split(traced, {layer.name: 0 for layer in traced.layers}).stages
    sent = shipping.unship(shipping.ship(stage))
    weights = dict([*stage.module.named_parameters(), *stage.module.named_buffers()])
    copies = {key: value.detach().clone() for key, value in weights.items()}
    given = torch.func.functional_call(sent.module, copies, (len(x), None, x))
    assert torch.equal(given[0], stage.module(len(x), None, x)[0])
    assert sent.written == stage.written
