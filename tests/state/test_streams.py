"""CUDA streams and events; on a device: tests/resume/test_ranks.py, `fully_shard`. Here their place is taken by what looks like them."""

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from detrain.adapters.torch import streams  # noqa: E402
from detrain.state.handler import CannotBuild  # noqa: E402


@dataclass
class Stream:
    device: str = "cuda:0"
    priority: int = 0
    cuda_stream: int = 7


class Event:
    def __init__(self, enable_timing=False):
        self.cuda_event = 0
        self.is_timing = enable_timing

    def record(self):
        self.cuda_event = 1


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream(device, 0, 0))


def captured(handler, one):
    node = {"k": handler.kind, "p": None}
    handler.capture(one, node, None)
    return node


@pytest.mark.parametrize("one", [Stream(), Stream("cuda:1", -1), Stream("cuda:1", 0, 0)], ids=str)
def test_a_stream_is_made_anew_on_its_device_with_its_priority(device, one):
    node = captured(streams.StreamHandler(), one)
    assert streams.StreamHandler().build(node, None) == one


@pytest.mark.parametrize("is_recorded", [True, False])
def test_an_event_has_happened_if_it_was_recorded(device, is_recorded):
    one = Event()
    if is_recorded:
        one.record()
    made = streams.EventHandler().build(captured(streams.EventHandler(), one), None)
    assert (made.cuda_event, made.is_timing) == (int(is_recorded), True)


def test_without_a_device_it_is_said(device, monkeypatch):
    node = captured(streams.StreamHandler(), Stream())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotBuild, match="of which there is none here"):
        streams.StreamHandler().build(node, None)
