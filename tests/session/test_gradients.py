"""What torch's adapter does by itself at each computation of gradients, within batches in which nothing else is asked."""

import struct
import threading

import pytest
import torch
import xxhash

from detrain.adapters.torch import updates
from detrain.adapters.torch.adapter import ADAPTER
from detrain.loops.position import Position
from detrain.loops.running import Quiet
from detrain.session.losses import Losses


class Heard:
    """A reporter between torch and an engine that only says what it was called with."""

    def __init__(self, *, is_quiet=True):
        self.losses, self.calls, self.gradients = Losses(), [], []
        self.quiet = Quiet(Position(), self.losses)
        self.quiet.loop = object() if is_quiet else None
        self.run_backward = updates._reporting_gradients(self._engine, self.gradients.append, self.quiet)

    def _engine(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        return "gradients"


def loss(value=0.1, dtype=torch.float32):
    return torch.full((), value, dtype=dtype, requires_grad=True) * 3


BACKWARD = {"allow_unreachable": True, "accumulate_grad": True}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((None, False, False, ()), BACKWARD),
        ((None, False, False, (), True), {"accumulate_grad": False}),  # as `torch.autograd.grad` calls it
        ((None, False), {"create_graph": True, **BACKWARD}),
        ((), {"inputs": (1,), "accumulate_grad": True}),
        ((None, False, False, (), True, False), {"another": 1}),
    ],
)
def test_the_engine_is_called_as_torch_calls_it(args, kwargs):
    heard = Heard()
    outputs = (loss(),)
    assert heard.run_backward(outputs, *args, **kwargs) == "gradients"
    assert heard.calls == [((outputs, *args), kwargs)]


@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), float("nan"), 1e-42])
def test_a_loss_is_kept_as_its_reader_gives_it_and_nobody_is_called(value):
    heard, tensor = Heard(), loss(value)
    heard.run_backward((tensor,), None, False, False, (), **BACKWARD)
    assert heard.gradients == []
    assert list(map(repr, heard.losses.running)) == [repr(tensor.item())] == list(map(repr, ADAPTER.losses((tensor,))))


@pytest.mark.parametrize(
    "outputs",
    [(loss(), loss()), (loss(dtype=torch.float64),), (torch.ones(2),), (torch.nn.Parameter(torch.ones(())),), (torch.ones(1).to_sparse(),)],
    ids=["two", "float64", "vector", "parameter", "sparse"],
)  # fmt: skip
def test_what_is_no_plain_loss_is_left_to_the_listener(outputs):
    heard = Heard()
    heard.run_backward(outputs, None, False, False, (), **BACKWARD)
    assert heard.gradients == [outputs]
    assert heard.losses.running == []


def test_outside_of_quiet_batches_the_listener_is_called():
    heard = Heard(is_quiet=False)
    heard.run_backward((loss(),), None, False, False, (), **BACKWARD)
    assert len(heard.gradients) == 1
    assert heard.losses.running == []


def test_gradients_that_another_thread_computes_are_left_to_the_listener():
    heard = Heard()
    thread = threading.Thread(target=heard.run_backward, args=((loss(),), None, False, False, ()), kwargs=BACKWARD)
    thread.start()
    thread.join()
    assert len(heard.gradients) == len(heard.calls) == 1
    assert heard.losses.running == []


def test_a_loss_that_is_stored_negated_or_across_words_has_the_value_that_it_says():
    negated = torch._neg_view(torch.full((), 0.5))
    assert negated.is_neg()
    assert ADAPTER.losses((negated,))[0] == -0.5
    raw = torch.tensor([3.5]).numpy().tobytes()
    across = torch.frombuffer(bytearray(b"\0" + raw), dtype=torch.float32, offset=1)
    assert across.data_ptr() % 4
    assert ADAPTER.losses((across,)) == [3.5]


@pytest.mark.parametrize("step", [1, 2, 7, 50])
def test_digest_of_many_batches_is_that_of_their_losses_in_order_however_few_have_some(step):
    losses, expected = Losses(), b""
    for batch in range(1, 101):
        if batch % step == 0:
            losses.add([float(batch), float(-batch)])
            expected += struct.pack("=ff", batch, -batch) if 11 <= batch < 91 else b""
        losses.end_batch(batch, counts=True)
    assert losses.digest(11, 91) == xxhash.xxh3_64_intdigest(expected)


def test_losses_that_no_ledger_takes_any_more_do_not_gather():
    heard = Heard()
    heard.losses.keep_none()
    for batch in range(3):
        heard.run_backward((loss(),), None, False, False, (), **BACKWARD)
        heard.losses.end_batch(batch, counts=True)
    assert heard.losses.running == []
    assert heard.losses.take_curve() == []


def test_a_step_is_reported_only_outside_of_quiet_batches():
    reports = []
    heard = Heard(is_quiet=False)
    note_step = updates._reporting_steps(lambda: reports.append(1), heard.quiet)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    note_step(optimizer, (), {})
    heard.quiet.loop = object()
    note_step(optimizer, (), {})
    assert reports == [1]
    assert optimizer in updates.stepped
