"""Plans that train: the bits of one process, whatever the plan, in one process that plays all workers, and over ranks."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call

import detrain.pipeline
from detrain.adapters.torch.pipeline import keyed
from detrain.adapters.torch.pipeline.api import _RUNNING
from detrain.adapters.torch.pipeline.splitting import split
from detrain.adapters.torch.pipeline.tracing import trace
from detrain.adapters.torch.pipeline.worker import Worker
from detrain.errors import DetrainError, GraphError, UsageError
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.schedules import Kind, Schedule, num_done, orders
from tests.pipeline.pipelined import MODELS, batches, digest, layers_of, loss_of, made, piped, plainly, plan_of
from tests.tiers import full_but

ROOT = Path(__file__).parents[2]
SCHEDULES = [("1f1b", (1,), 1), ("1f1b", (1, 1, 1), 1), ("zb-h1", (1, 1, 1), 1), ("interleaved", (1, 1), 2)]


def pipeline_of(name, replicas, schedule, num_micro_batches, chunks=1, dropout=0.0, max_norm=None, **options):
    model, optimizer = made(name, dropout, **options)
    plan = plan_of(layers_of(name, dropout), replicas, chunks)
    return detrain.pipeline.Pipeline(
        model, plan, optimizer, loss_fn=loss_of, schedule=schedule, num_micro_batches=num_micro_batches, emulate=True,
        max_norm=max_norm,
    )  # fmt: skip


@pytest.mark.parametrize("name", full_but(["gpt", "recurrent"], MODELS))
@pytest.mark.parametrize(("schedule", "replicas", "chunks"), SCHEDULES)
@pytest.mark.parametrize("num_micro_batches", full_but([4], [1, 3, 4]))
def test_a_straight_plan_has_the_bits_of_one_process_that_accumulates(
    name, schedule, replicas, chunks, num_micro_batches
):
    if schedule == "interleaved" and num_micro_batches % 2:
        pytest.skip("interleaved micro-batches are a multiple of the devices")
    expected = plainly(name, num_micro_batches)
    assert piped(pipeline_of(name, replicas, schedule, num_micro_batches, chunks), name) == expected


@pytest.mark.parametrize("max_norm", full_but([0.05], [0.05, 1e6]))
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plan", full_but(SCHEDULES[3:], SCHEDULES))
def test_gradients_are_clipped_by_the_norm_of_all_stages(name, plan, max_norm):
    schedule, replicas, chunks = plan
    found = piped(pipeline_of(name, replicas, schedule, 4, chunks, max_norm=max_norm), name)
    assert found == plainly(name, 4, max_norm)
    assert (found == plainly(name, 4)) == (max_norm > 1)


@pytest.mark.parametrize("name", MODELS)
def test_replicas_that_split_micro_batches_have_the_bits_of_whoever_splits_them_so(name):
    """The gradients of each replica's samples are added up over the micro-batches, then over the replicas."""
    found = piped(pipeline_of(name, (2,), "1f1b", 3), name)
    model, optimizer = made(name)
    buffers = [{key: value.clone() for key, value in model.named_buffers()} for _ in range(2)]
    losses = []
    for x, y in batches(name):
        sums, pieces = [None, None], {}
        for number, (part, target) in enumerate(zip(x.tensor_split(3), y.tensor_split(3), strict=True)):
            for replica, (own, own_target) in enumerate(zip(part.tensor_split(2), target.tensor_split(2), strict=True)):
                output = functional_call(model, buffers[replica], (own,))
                loss = loss_of(output, own_target) * (len(own) / len(x))
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                before = sums[replica]
                sums[replica] = gradients if before is None else [a + b for a, b in zip(before, gradients, strict=True)]
                pieces[number, replica] = loss.detach()
        for parameter, first, second in zip(model.parameters(), *sums, strict=True):
            parameter.grad = first + second
        optimizer.step()
        losses.append(sum(loss for _, loss in sorted(pieces.items())).item())
    with torch.no_grad():
        for key, value in model.named_buffers():
            value.copy_(buffers[0][key])
    assert found == (digest(model), losses)


@pytest.mark.parametrize("replicas", full_but([(2, 1)], [(1, 1), (1, 1, 1), (2, 1), (3, 1), (2, 1, 1)]))
@pytest.mark.parametrize("name", full_but(["gpt"], ["gpt", "recurrent"]))
def test_dropout_is_the_same_whatever_the_plan(name, replicas):
    """The numbers hang on samples and layers: the losses of the first step are those of one stage, as close as sums of floats are."""
    expected = piped(pipeline_of(name, (1,), "1f1b", 2, dropout=0.3), name, 1)
    found = piped(pipeline_of(name, replicas, "1f1b", 3, dropout=0.3), name, 1)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)
    assert piped(pipeline_of(name, (1,), "1f1b", 2, dropout=0.2), name, 1)[1] != pytest.approx(expected[1], rel=1e-4)
    if set(replicas) == {1}:
        assert piped(pipeline_of(name, replicas, "1f1b", 2, dropout=0.3), name, 1) == expected


def by_delayed_gradients(name, num_stages, num_batches, is_synced):
    """PipeDream's training in one process: each stage's weights in a forward and backward pass are as many updates old as it is deep."""
    model, optimizer = made(name, optimizer=torch.optim.SGD)
    names = layers_of(name)
    stages = split(trace(model, [next(batches(name))[0]]), {
        layer: number for number, stage in enumerate(plan_of(names, (1,) * num_stages).stages) for layer in stage.layers
    }).stages  # fmt: skip
    owner = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            owner.setdefault(id(parameter), number)
    history = [[parameter.detach().clone() for parameter in model.parameters()]]
    losses = []
    for number, (x, y) in enumerate(batches(name, num_batches)):
        old = [
            history[max(0, number - (num_stages - 1 if is_synced else num_stages - 1 - owner[id(parameter)]))][place]
            for place, parameter in enumerate(model.parameters())
        ]
        now = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), old, strict=True):
                parameter.copy_(value)
        loss = loss_of(model(x), y)
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), now, strict=True):
                parameter.copy_(value)
        optimizer.step()
        optimizer.zero_grad()
        history.append([parameter.detach().clone() for parameter in model.parameters()])
    return digest(model), losses


@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize(
    "name_and_stages", full_but([("gpt", 2)], [("gpt", 2), ("gpt", 3), ("recurrent", 3), ("dense", 2)])
)
def test_weight_stashing_is_training_with_delayed_gradients(name_and_stages, is_synced):
    name, num_stages = name_and_stages
    schedule = Schedule("1f1b-async", vertical_sync=is_synced)
    pipeline = pipeline_of(name, (1,) * num_stages, schedule, 1, optimizer=torch.optim.SGD)
    assert piped(pipeline, name, 7) == by_delayed_gradients(name, num_stages, 7, is_synced)


@pytest.mark.parametrize(("schedule", "num_micro_batches"), [("1f1b-async", 1), ("2bw", 4)])
@pytest.mark.parametrize("name", full_but(["gpt"], MODELS))
def test_what_is_under_way_between_steps_is_all_that_a_resumed_run_needs(name, schedule, num_micro_batches):
    """A copy of the pipeline is what a checkpoint brings back: what stands beside it, autograd's graphs above all, is made anew."""
    held = {}

    def hold(number, pipeline):
        held[number] = copy.deepcopy(pipeline)
        return pipeline

    pipeline = pipeline_of(name, (1, 1, 1), schedule, num_micro_batches, dropout=0.1)
    weights, losses = piped(pipeline, name, 6, on_step=hold)
    assert len(losses) == 6 * num_micro_batches
    for number in (1, 2, 4):
        assert held[number].schedule.is_asynchronous
        assert piped(held[number], name, 6, begin=number) == (weights, losses)


def test_what_is_done_again_is_done_of_the_batch_as_it_was():
    """The script may have filled its memory with the next one since."""
    held, buffer = {}, torch.empty(10, 8, dtype=torch.int64)

    def trained(pipeline, begin):
        for number, (x, y) in enumerate(batches("gpt", 6)):
            if number >= begin:
                pipeline.step(buffer.copy_(x), target=y)
            if not begin:
                held[number + 1] = copy.deepcopy(pipeline)
        return digest(pipeline.gather()), pipeline.losses()

    expected = trained(pipeline_of("gpt", (1, 1, 1), "1f1b-async", 1), 0)
    assert expected == piped(pipeline_of("gpt", (1, 1, 1), "1f1b-async", 1), "gpt", 6)
    for number in (3, 6):
        buffer.zero_()
        assert trained(held[number], number) == expected


def test_autocast_is_refused():
    x, y = next(batches("gpt"))
    with torch.autocast("cpu"), pytest.raises(GraphError, match=r"within torch\.autocast"):
        pipeline_of("gpt", (1, 1), "1f1b", 1).step(x, target=y)


def test_a_pipeline_that_had_begun_before_a_resume_goes_on_from_what_was_held():
    """A resume restores weights and moments in place, in a process where the script may have done steps before its loop."""
    held = {}

    def hold(number, pipeline):
        held[number] = copy.deepcopy(pipeline)
        return pipeline

    expected = piped(pipeline_of("gpt", (1, 1), "1f1b-async", 1, dropout=0.1), "gpt", 6, on_step=hold)
    begun = pipeline_of("gpt", (1, 1), "1f1b-async", 1, dropout=0.1)
    x, y = next(batches("gpt"))
    for _ in range(3):
        begun.step(x, target=y)
    begun.model.load_state_dict(held[4].model.state_dict())
    begun.optimizer.load_state_dict(held[4].optimizer.state_dict())
    kept = {"model": begun.model, "optimizer": begun.optimizer}
    vars(begun).update({key: value for key, value in vars(held[4]).items() if key not in kept})
    assert piped(begun, "gpt", 6, begin=4) == expected


@pytest.mark.parametrize(("schedule", "num_micro_batches"), [("1f1b-async", 1), ("2bw", 4)])
@pytest.mark.parametrize("replicas", full_but([(2, 1)], [(2, 1), (1, 2), (2, 1, 1), (3, 1)]))
def test_asynchronous_replicas_train(schedule, num_micro_batches, replicas):
    pipeline = pipeline_of("gpt", replicas, schedule, num_micro_batches)
    _, losses = piped(pipeline, "gpt", 8)
    assert len(losses) == 8 * num_micro_batches
    assert sum(losses[-4 * num_micro_batches :]) < sum(losses[: 4 * num_micro_batches])
    assert piped(pipeline_of("gpt", replicas, schedule, num_micro_batches), "gpt", 8)[1] == losses


def test_losses_of_the_micro_batches_of_a_batch_add_up_to_its_loss():
    x, y = next(batches("gpt"))
    expected = loss_of(made("gpt")[0](x), y).item()
    pipeline = pipeline_of("gpt", (1, 2), "2bw", 4)
    pipeline.step(x, target=y)
    pipeline.drain()
    losses = pipeline.losses()
    assert len(losses) == 4
    assert sum(losses) == pytest.approx(expected)


@pytest.mark.parametrize("replicas", full_but([(1, 1, 1), (3, 1, 2)], [(1, 1, 1), (2, 1), (1, 2), (3, 1, 2)]))
@pytest.mark.parametrize(("name", "num_micro_batches"), [("1f1b-async", 1), ("2bw", 6)])
def test_workers_of_asynchronous_schedules_do_what_the_simulator_says(name, num_micro_batches, replicas, monkeypatch):
    done, plainly_do = {}, Worker._do

    def noted(worker, kind, micro_batch, held):
        done.setdefault(worker.number, []).append((kind, micro_batch, held.number))
        plainly_do(worker, kind, micro_batch, held)

    monkeypatch.setattr(Worker, "_do", noted)
    pipeline = pipeline_of("gpt", replicas, name, num_micro_batches)
    for number, (x, y) in enumerate(batches("gpt", 8)):
        pipeline.step(x, target=y)
        for worker in _RUNNING[pipeline].workers.values():
            ((stage, held),) = worker.held.items()
            turn = held.replicas.index(worker.number)
            assert num_done(pipeline.schedule, replicas, stage, turn, number + 1) == (
                held.num_forwards,
                held.num_backwards,
            )
    for worker, order in enumerate(orders(Schedule(name, num_micro_batches), replicas)):
        assert done[worker] == order[: len(done[worker])]
        assert {kind for kind, _, _ in done[worker]} == {Kind.FORWARD, Kind.BACKWARD}


def test_numbers_of_dropout_are_even_and_no_two_layers_steps_or_samples_have_the_same():
    shape = (64, 500)
    drawn = keyed.uniform(shape, keyed.Key(1, 2, 0), 3, 0, torch.device("cpu"))
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)
    assert torch.histc(drawn, 10, 0, 1).max().item() < 1.1 * drawn.numel() / 10
    assert torch.corrcoef(drawn[:8]).fill_diagonal_(0).abs().max().item() < 0.2
    part = keyed.uniform((8, 500), keyed.Key(1, 2, 16), 3, 0, torch.device("cpu"))
    assert torch.equal(part, drawn[16:24])
    for other in (keyed.Key(0, 2, 0), keyed.Key(1, 3, 0), keyed.Key(1, 2, 64)):
        assert not torch.isin(keyed.uniform(shape, other, 3, 0, torch.device("cpu"))[0, :8], drawn[0, :8]).any()
    turned = keyed.uniform((500, 64), keyed.Key(1, 2, 0), 3, 1, torch.device("cpu"))
    assert torch.equal(turned.T, drawn)


def test_a_profile_has_the_models_layers_bytes_and_edges():
    model, _ = made("dense")
    before = digest(model)
    found = detrain.pipeline.profile(model, [next(batches("dense"))[0]], num_rounds=2)
    assert digest(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert found.parameter_bytes == sum(parameter.nbytes for parameter in model.parameters())
    names = [layer.name for layer in found.layers]
    assert names == ["input0", *layers_of("dense")]
    assert found.layers[names.index("first")].activation_bytes == 10 * 4 * 6 * 6 * 4
    assert min(layer.forward_ms for layer in found.layers[1:]) > 0
    follows = {names[end] for begin, end in found.edges if names[begin] == "first"}
    assert len(follows) == 5  # the four that take all before them, and the last
    assert found.name == "Dense"


class Drawing(nn.Module):
    """Draws what is no dropout."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 40)

    def forward(self, x):
        return self.last(self.first(x) + torch.randn_like(x))


class Choosing(nn.Module):
    """What it does hangs on values."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 40)

    def forward(self, x):
        return self.last(self.first(x)) if x.sum() > 0 else self.last(x)


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Rounding(nn.Module):
    """Has a backward pass of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 40)

    def forward(self, x):
        return self.last(Straight.apply(self.first(x)))


@torch.library.custom_op("detrain_tests::rounded", mutates_args=())
def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.round()


rounded.register_fake(torch.empty_like)
rounded.register_autograd(lambda ctx, gradient: gradient * 3)


class Looking(nn.Module):
    """Cuts off what the first layer makes, changes a view of it, or returns more than one tensor."""

    def __init__(self, kind):
        super().__init__()
        self.first, self.last, self.kind = nn.Linear(4, 4), nn.Linear(4, 40), kind

    def forward(self, x):
        y = self.first(x)
        if self.kind == "detached":
            return self.last(y.detach())
        if self.kind == "operator":
            return self.last(rounded(y * 4))
        if self.kind == "view":
            v = y.view(-1)
            z = self.last(y)
            v.relu_()
            return z + y.sum()
        scale = y.square().mean()
        return self.last(y) + scale


def stepped(kind, devices, cut_after="first", steps=2):
    """Losses of a pipeline of two stages, and of the plain model."""
    found = []
    for is_piped in (True, False):
        torch.manual_seed(0)
        model = Looking(kind)
        optimizer = torch.optim.AdamW(model.parameters(), 0.1)
        x, y = torch.randn(4, 4), torch.randint(0, 40, (4,))
        if is_piped:
            names = [layer.name for layer in trace(model, [x]).layers]
            place = names.index(cut_after) + 1
            stages = (
                Stage(0, 0, tuple(names[:place]), len(devices[0]), devices[0]),
                Stage(0, 0, tuple(names[place:]), len(devices[1]), devices[1]),
            )
            plan = Plan("by hand", stages, 1, 0.0, 1.0, 1.0)
            pipeline = detrain.pipeline.Pipeline(model, plan, optimizer, loss_fn=loss_of, emulate=True)
            found.append([pipeline.step(x, target=y).item() for _ in range(steps)] + [digest(pipeline.gather())])
            continue
        losses = []
        for _ in range(steps):
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append([*losses, digest(model)])
    return found


def test_what_nothing_hangs_on_has_no_gradient():
    """An optimizer that decays weights leaves alone what has none."""
    piped_so, plain = stepped("detached", ((0,), (1,)))
    assert piped_so == plain


@pytest.mark.parametrize("cut_after", ["first", "Looking"])
def test_operators_of_torch_library_have_their_own_gradients(cut_after):
    piped_so, plain = stepped("operator", ((0,), (1,)), cut_after)
    assert piped_so == plain


def test_what_would_be_trained_in_another_way_is_refused():
    x = torch.randn(4, 4)
    with pytest.raises(GraphError, match=r"Rounding apart: it calls a torch.autograd.Function of its own"):
        trace(Rounding(), [x])
    with pytest.raises(GraphError, match="changes in place a view of what stage 0 makes"):
        stepped("view", ((0,), (1,)))
    piped_so, plain = stepped("scalar", ((0,), (1,)), "Looking")
    assert piped_so == plain
    with pytest.raises(GraphError, match="cannot be split by samples"):
        stepped("scalar", ((0, 1), (2,)), "Looking")


def test_what_changes_after_the_first_step_is_said():
    x, y = next(batches("gpt"))
    pipeline = pipeline_of("gpt", (1, 1), "1f1b", 2)
    pipeline.step(x, target=y)
    with pytest.raises(UsageError, match="the stages are made for that alone"):
        pipeline.step(x[:, :5], target=y[:, :5])
    assert pipeline.step(x[:7], target=y[:7]) is not None  # the last batch of an epoch
    pipeline.model.eval()
    with pytest.raises(UsageError, match=r"set to train\(\) or eval\(\) after the first step"):
        pipeline.step(x, target=y)
    model, optimizer = made("gpt")
    penalized = detrain.pipeline.Pipeline(
        model, plan_of(layers_of("gpt"), (1, 1)), optimizer, emulate=True,
        loss_fn=lambda output, target: loss_of(output, target) + sum(one.square().sum() for one in model.parameters()),
    )  # fmt: skip
    with pytest.raises(GraphError, match="the loss function reads parameters itself"):
        penalized.step(x, target=y)
    with pytest.raises(UsageError, match="a step of this pipeline has failed before"):
        penalized.step(x, target=y)


def test_what_cannot_be_cut_is_said_with_its_line():
    x = torch.randn(4, 4)
    traced = trace(Drawing(), [x])
    with pytest.raises(GraphError, match=r"randn_like.default in layer .* draws random numbers .*test_running.py"):
        split(traced, {layer.name: 0 for layer in traced.layers})
    with pytest.raises(GraphError, match=r"torch.export cannot take Choosing apart: "):
        trace(Choosing(), [x])
    traced = trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), [x])
    with pytest.raises(GraphError, match="the model has a layer 1, and the plan has none of that name"):
        split(traced, {"0": 0})
    with pytest.raises(GraphError, match="the plan has a layer 7, and the model has none of that name"):
        split(traced, {"0": 0, "1": 0, "7": 1})
    with pytest.raises(GraphError, match="stage 0 takes what stage 1 makes"):
        split(traced, {"0": 1, "1": 0})


def test_wrong_uses_are_said():
    x, y = next(batches("gpt"))
    with pytest.raises(UsageError, match="a batch of 10 samples cannot be split into 11 micro-batches"):
        pipeline_of("gpt", (1,), "1f1b", 11).step(x, target=y)
    with pytest.raises(GraphError, match="a micro-batch of 2 samples cannot be split over the 3 replicas of stage 0"):
        pipeline_of("gpt", (3, 1), "1f1b", 4).step(x, target=y)
    with pytest.raises(UsageError, match="at least one tensor"):
        pipeline_of("gpt", (1,), "1f1b", 1).step(3, target=y)
    model, optimizer = made("gpt")
    with pytest.raises(UsageError, match="call init_process_group first, or emulate=True"):
        detrain.pipeline.Pipeline(model, plan_of(layers_of("gpt"), (1, 1)), optimizer, loss_fn=loss_of)
    with pytest.raises(DetrainError, match="there is no schedule fast"):
        pipeline_of("gpt", (1,), "fast", 1)
    with pytest.raises(UsageError, match="max_norm is for synchronous schedules: under 2bw each stage updates when"):
        pipeline_of("gpt", (1, 1), "2bw", 4, max_norm=1.0)


@pytest.mark.parametrize("cases", full_but(["14"], ["14", "0235"]))
def test_over_ranks_the_bits_are_those_of_one_process_that_plays_them(cases):
    """One job of four ranks goes through several plans."""
    script = str(ROOT / "tests/pipeline/pipeline_ranks.py")
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", script, cases],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
    )  # fmt: skip
    said = [line for line in ended.stdout.splitlines() if line.startswith("case")]
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert len(said) == len(cases)
    assert all(line.endswith("same") for line in said), said
