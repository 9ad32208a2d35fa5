"""The same of what torch makes: tensors, modules, optimizers, schedulers, generators, loaders."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import detrain.adapters.torch  # noqa: E402, F401 - registers its handlers
from detrain.state import registry  # noqa: E402
from tests.state import describing, roundtrip  # noqa: E402
from tests.state.programs.torch_state import PROGRAMS  # noqa: E402
from tests.state.test_roundtrip import _as_a_new_process, check, folder  # noqa: E402, F401

ANEW = {name: program.made_by_the_loop() for name, program in PROGRAMS.items() if program.anew}


def tensor(obj):
    with torch.no_grad():
        yield from (str(obj.dtype), tuple(obj.shape), str(obj.layout), obj.requires_grad, obj.is_leaf, str(obj.device))
        if obj.layout is torch.strided and obj.device.type == "cpu":
            yield from (obj.stride(), obj.storage_offset(), obj.untyped_storage())
        elif obj.layout is not torch.strided:
            yield obj.to_dense()
    if obj.is_leaf:
        yield obj.grad
    yield vars(obj) if type(obj) is not torch.Tensor else None


def storage(obj):
    yield bytes(obj)


pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning"
)  # torch's own, on what is new or old in it


@pytest.fixture(autouse=True)
def _hooks_are_numbered_from_0(monkeypatch):
    monkeypatch.setattr(roundtrip, "_forget_classes", _forget)


def _forget(plain=roundtrip._forget_classes):
    plain()
    torch.utils.hooks.RemovableHandle.next_id = 0


@pytest.fixture(autouse=True)
def _describes_torch(monkeypatch):
    monkeypatch.setitem(describing.MORE, torch.Tensor, tensor)
    monkeypatch.setitem(describing.MORE, torch.UntypedStorage, storage)
    monkeypatch.setitem(describing.MORE, torch.Generator, lambda one: (one.get_state(),))
    monkeypatch.setitem(describing.MORE, torch.amp.GradScaler, lambda one: (one.state_dict(),))
    monkeypatch.setitem(describing.MORE, torch.jit.ScriptModule, lambda one: (one.state_dict(),))
    for plain in (torch.dtype, torch.device, torch.layout, torch.memory_format):
        monkeypatch.setitem(describing.MORE, plain, lambda one: (str(one),))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_set_up_has_made_is_brought_to_the_checkpoint(name, folder):  # noqa: F811
    check(PROGRAMS[name], folder)


@pytest.mark.parametrize("name", ANEW)
def test_what_the_loop_has_made_is_made_again(name, folder):  # noqa: F811
    check(ANEW[name], folder)


#: Kinds that no program in small has.
ELSEWHERE = {
    "torch.DataLoader iterator": "needs worker processes: `tests.resume`",
    "torch.DTensor": "needs a process group: `tests.state.test_shards`, `tests.resume.test_ranks`",
    "torch.distributed.Reducer": "needs a process group: `tests.resume.test_ranks`",
    "torch.cuda.Stream": "needs a device: `tests.state.test_streams`, `tests.resume.test_ranks`",
    "torch.cuda.Event": "needs a device: `tests.state.test_streams`",
    "torch.distributed": "needs a process group: `tests.launch.test_ranks`",
}


def test_every_kind_of_torch_has_a_program(folder):  # noqa: F811
    seen = set()
    for program in PROGRAMS.values():
        with roundtrip.life(program) as one:
            one.run("loop")
            seen |= {node["k"] for node in one.look().tree.nodes}
    kinds = {
        kind
        for kind, handler in registry._by_kind.items()
        if type(handler).__module__.startswith("detrain.adapters.torch")
    }
    assert kinds - seen == set(ELSEWHERE)


def test_a_graph_of_torch_fx_that_the_loop_has_made_computes_the_same(folder):  # noqa: F811
    made = "model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU())); model.get_submodule('0').weight.data.add_(1)"
    program = roundtrip.Program(
        "import torch, torch.fx; from torch import nn", "", f"torch.manual_seed(3); {made}",
        "x = model(torch.ones(1, 3)).tolist(), [one.name for one in model.graph.nodes], model.code",
    )  # fmt: skip
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    expected = _run(program)
    with roundtrip.restored(program, taken) as one:
        one.run("next")
        assert vars(one.module)["x"] == expected


def _run(program):
    seen: dict[str, object] = {}
    exec("\n".join((program.definitions, program.loop, program.next)), seen)
    return seen["x"]
