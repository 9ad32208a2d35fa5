"""Confs of PipeDream's published models with a plain profile: which layers are in which module."""

import json

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline import conversion, graphtext, modules, planfile
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.planfile import Planned
from detrain.pipeline.topology import nested

from .graphs import layer, profile

#: A residual network: `add` takes what `relu` and `down` make, and the cut goes through both.
PROFILE = profile(
    [
        layer("in", description="Input0"), layer("conv", description="Conv2d(3, 8, kernel_size=(3, 3), bias=False)"),
        layer("norm", description="BatchNorm2d(8, eps=1e-05)"), layer("relu", description="ReLU(inplace)"),
        layer("down", description="Conv2d(3, 8, kernel_size=(1, 1), bias=False)"), layer("add", description="Add(inplace)"),
        layer("size", description="Size(0)"), layer("view", description="View(-1)"),
        layer("lstm", description="LSTM(8, 4)"), layer("item", description="__getitem__(0)"),
        layer("head", description="Head(  (linear): Linear(in_features=4, out_features=2))"),
    ],
    "", "net",
)  # fmt: skip
_EDGES = [
    ("in", "conv"), ("conv", "norm"), ("norm", "relu"), ("in", "down"), ("relu", "add"), ("down", "add"), ("add", "size"),
    ("add", "view"), ("size", "view"), ("view", "lstm"), ("lstm", "item"), ("item", "head"),
]  # fmt: skip
_PLACE = {one.name: place for place, one in enumerate(PROFILE.layers)}
PROFILE = type(PROFILE)(PROFILE.layers, tuple((_PLACE[begin], _PLACE[end]) for begin, end in _EDGES), "net")

STAGE = """import torch
class Stage(torch.nn.Module):
    def __init__(self):
        super(Stage, self).__init__()
        {init}
    def forward(self, input0):
        {forward}
        return None
    def _initialize_weights(self):
        for m in self.modules():
            x = 1
"""
FIRST = STAGE.format(
    init="""self.layer2 = torch.nn.Conv2d(3, 8, kernel_size=(3, 3), bias=False)
        self.layer3 = torch.nn.Conv2d(3, 8, kernel_size=(1, 1), bias=False)
        self.layer4 = torch.nn.BatchNorm2d(8, eps=1e-05)
        self.layer5 = torch.nn.ReLU(inplace=True)""",
    forward="""out0 = input0.clone()
        out2 = self.layer2(out0)
        out3 = self.layer3(out0)
        out4 = self.layer4(out2)
        out5 = self.layer5(out4)""",
)  # fmt: skip
SECOND = STAGE.format(
    init="""self.layer4 = torch.nn.LSTM(8, 4)
        self.layer5 = Head(4, 2)""",
    forward="""input2 = [None]
        out0 = input0.clone()
        out0 += input1
        out1 = out0.size(0)
        out2 = out0.view(out1, -1)
        out4 = self.layer4(out2)
        out5 = self.layer5(out4[0])""",
)  # fmt: skip
HYBRID = {"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1, 2], "1": [3]}}
BEHIND = ("add", "size", "view", "lstm", "item", "head")


@pytest.fixture
def folder(tmp_path):
    """A profile that says no stages, and a hybrid conf for two modules."""
    graphtext.write(tmp_path / "net.txt", PROFILE)
    (tmp_path / "conf.json").write_text(json.dumps(HYBRID))
    return tmp_path


def stages_of(folder, modules_in="", profile="net.txt"):
    plan = conversion.read(folder / "conf.json", folder / profile, modules_in).content.plan
    return [(set(stage.layers), stage.replicas) for stage in plan.stages]


EXPECTED = [({"conv", "norm", "relu", "down"}, 3), (set(BEHIND), 1)]


def test_modules_are_those_of_the_generated_code_beside_the_conf(folder):
    for number, code in enumerate((FIRST, SECOND)):
        (folder / f"stage{number}.py").write_text(code)
    assert stages_of(folder) == EXPECTED
    # Also where the folder is named, and the conf puts both modules into one stage.
    (folder / "elsewhere").mkdir()
    both = {"module_to_stage_map": [0, 0, 0], "stage_to_rank_map": {"0": [0, 1]}}
    (folder / "elsewhere" / "conf.json").write_text(json.dumps(both))
    (found,) = conversion.read(folder / "elsewhere/conf.json", folder / "net.txt", str(folder)).content.plan.stages
    assert (len(found.layers), found.replicas) == (10, 2)


def test_modules_may_be_said_by_their_first_layers(folder):
    assert stages_of(folder, "conv,add") == EXPECTED


def test_modules_may_be_the_stages_of_a_plan(folder):
    parts = (("conv", "norm", "relu", "down"), BEHIND)
    stages = tuple(Stage(0, 0, names, 1, (number,)) for number, names in enumerate(parts))
    planned = Planned(Plan("drawn", stages, 1, 0.0, 0.0, 0.0), PROFILE, nested((2,), (1e9,), 1e9))
    planfile.write(folder / "plan.json", planned)
    assert stages_of(folder, profile="plan.json") == EXPECTED


def test_modules_may_be_single_layers(folder):
    count = len(PROFILE.to_plan().layers)
    conf = {"module_to_stage_map": [0] * 4 + [1] * (count - 3), "stage_to_rank_map": {"0": [0], "1": [1]}}
    (folder / "conf.json").write_text(json.dumps(conf))
    assert [len(names) for names, _ in stages_of(folder)] == [4, 6]


def test_where_nothing_says_the_modules_the_error_says_what_to_give(folder):
    with pytest.raises(GraphError) as caught:
        stages_of(folder)
    assert str(caught.value) == (
        f"{folder}/conf.json and {folder}/net.txt: the conf has 2 modules, and the profile does not say which layers are in which. Give as "
        "--profile one whose layers have a stage_id (PipeDream's gpus=N.txt), or a plan with a stage for each module; or give with "
        "--modules the folder of the generated stage0.py, stage1.py, …, or the first layer of each module, as in node2,node19"
    )


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("conv", "--modules names the first layers of 1 modules, and the conf has 2"),
        ("conv,nobody", "a module begins with nobody, and net has no such layer to plan"),
        ("in,add", "a module begins with in, and net has no such layer to plan"),
        ("relu,add", "the first module begins with relu, and conv comes before it"),
        ("conv,conv", "a module begins with conv, which does not come behind conv"),
    ],
)
def test_what_is_wrong_with_first_layers_is_said(folder, names, said):
    with pytest.raises(GraphError, match=said):
        stages_of(folder, names)


@pytest.mark.parametrize(
    ("stage", "old", "new", "said"),
    [
        (1, "LSTM(8, 4)", "LSTM(8, 5)", r"stage1.py: out4 is LSTM\(8, 5\), and no layer of net that is left fits"),
        (0, "        out5 = self.layer5(out4)\n", "", r"stage1.py: out0 is Add\(\), and no layer of net that is left fits"),
        (1, "        out5 = self.layer5(out4[0])\n", "", r"do not call layer head \(Head"),
        (0, "def forward", "def backward", "stage0.py is no generated stage: it has no __init__ or no forward"),
        (0, "class Stage", "klass Stage", "stage0.py is not Python: "),
        (0, FIRST, STAGE.format(init="pass", forward="out0 = input0.clone()"), "stage0.py calls no layer of net that is planned"),
    ],
)  # fmt: skip
def test_code_that_is_not_of_this_profile_is_refused(folder, stage, old, new, said):
    for number, code in enumerate((FIRST, SECOND)):
        (folder / f"stage{number}.py").write_text(code.replace(old, new) if number == stage else code)
    with pytest.raises(GraphError, match=said):
        modules.of_code(folder, 2, PROFILE)
