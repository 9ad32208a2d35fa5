"""The harness finds what is wrong: from an inst.info that is right, each change gives the sentence that tells of it."""

import ast
import copy

import pytest

from .harness import Line, Place, Traced, differences, expected_of
from .programs import PROGRAMS
from .programs.program import Program

#: One with every key: an outer loop, a helper around the data-loading call, several files.
PROGRAM = Program(
    "whole",
    {
        "train.py": """\
import engine
from data import Data

data = Data()
for fold in range(2):  # <outer>
    for epoch in range(2):  # <epoch>
        engine.run(data)
for x in data:
    print(x)
""",
        "engine.py": """\
def fetch(data):
    return data.slurp()  # <dl>


class Engine:
    def run(self, data):
        while True:  # <batch>
            x = fetch(data)
            advance(x)  # <update>
""",
    },
    loaders=PROGRAMS["call_in_try_except_continue"].loaders,
    wrapper=("engine", "fetch"),
)
DOCUMENT = {
    "version": 1,
    "sources": {"train.py": "1", "engine.py": "2"},
    "nests": [
        [
            {"file_name": "train.py", "line_no": 5, "part": "outer", "function": "<module>"},
            {"file_name": "train.py", "line_no": 6, "part": "epoch", "function": "<module>"},
            {"file_name": "engine.py", "line_no": 7, "part": "batch", "function": "Engine.run"},
        ]
    ],
    "complete": False,
    "dataloader": {
        "full_name": "data.Data",
        "module": "data",
        "init": ("data", "Data.__init__"),
        "persistent": True,
        "iter": ("", ""),
        "next": ("data", "Data.slide_seq2seq_batch"),
    },
    "loop_type": {"type": "ON_CUSTOM"},
    "code_info": {
        "loop_file_name": "engine.py",
        "loop_line_no": "7",
        "epoch_file_name": "train.py",
        "epoch_line_no": "6",
        "dl_call_file_name": "engine.py",
        "dl_call_line_no": "2",
        "update_call_file_name": "engine.py",
        "update_call_line_no": "9",
        "wrapper_module": "engine",
        "wrapper_func": "fetch",
    },
}
DOCUMENT["dataloaders"] = [DOCUMENT["dataloader"]]
LOADER = ("dataloader",)
LOOPS = ("nests", 0)
CODE = ("code_info",)

#: Where a document is changed, to what (None: taken out), and what must be said.
CHANGES = {
    "another line of the batch loop": (
        (*LOOPS, 2, "line_no"),
        8,
        "the nest is train.py:5 (outer) > train.py:6 (epoch)",
    ),
    "another file": ((*LOOPS, 2, "file_name"), "train.py", "train.py:7 (batch), not train.py:5 (outer)"),
    "another part": ((*LOOPS, 0, "part"), "epoch", "train.py:5 (epoch) > train.py:6 (epoch)"),
    "a loop too few": (
        (*LOOPS, 0),
        None,
        "the nest is train.py:6 (epoch) > engine.py:7 (batch), not train.py:5 (outer)",
    ),
    "no nest": (("nests",), [], "inst.info holds 0 nests, not 1"),
    "a nest of nothing": (("nests",), [[]], "the nest is empty"),
    "a nest too many": (("nests",), DOCUMENT["nests"] * 2, "inst.info holds 2 nests, not 1"),
    "another function": (
        (*LOOPS, 2, "function"),
        "fetch",
        "the loop at engine.py:7 is said to be in fetch, not in run",
    ),
    "a file name with dots": ((*LOOPS, 2, "file_name"), "./engine.py", "./engine.py is below the script's folder"),
    "a source too few": (("sources", "engine.py"), None, "the digest of engine.py, which holds a loop, is missing"),
    "a missing key": (("complete",), None, "inst.info lacks complete"),
    "another loop line in code_info": ((*CODE, "loop_line_no"), "6", "loop is engine.py:6, not engine.py:7"),
    "no epoch line": ((*CODE, "epoch_line_no"), None, "epoch is missing, not train.py:6"),
    "a number for a string": ((*CODE, "loop_line_no"), 7, "code_info['loop_line_no'] is 7, not a string"),
    "another data-loading call": ((*CODE, "dl_call_line_no"), "8", "dl_call is engine.py:8, not engine.py:2"),
    "another update": ((*CODE, "update_call_line_no"), "8", "update_call is engine.py:8, not engine.py:9"),
    "no update": ((*CODE, "update_call_file_name"), None, "update_call is missing, not engine.py:9"),
    "another wrapper": ((*CODE, "wrapper_func"), "run", "is engine:run, not engine:fetch"),
    "half a wrapper": ((*CODE, "wrapper_module"), "", "is :fetch, not engine:fetch"),
    "another loader": ((*LOADER, "full_name"), "data.Held", "the loader is data.Held, not data.Data"),
    "another module": ((*LOADER, "module"), "train", "the loader's module is 'train', but its name is data.Data"),
    "another method": ((*LOADER, "next"), ("data", "Data.peek"), "next of the loader is data:Data.peek"),
    "another init": ((*LOADER, "init"), ("data", "Data.make"), "init of the loader is data:Data.make"),
    "no pair": ((*LOADER, "iter"), "data", "iter of the loader is 'data', not a pair"),
    "not persistent": ((*LOADER, "persistent"), False, "persistent: False, not True"),
    "no loader": (("dataloader",), {}, "no data loader was found"),
    "another type": (("loop_type", "type"), "ON_DATASET", "the type of the loop is ON_DATASET, not ON_CUSTOM"),
    "no list of loaders": (("dataloaders",), [], "data.Data feeds the update but is not in `dataloaders`"),
    "another method of a second entry": (
        ("dataloaders",),
        [*DOCUMENT["dataloaders"], {**DOCUMENT["dataloader"], "next": ("data", "Data.__len__")}],
        "of those in `dataloaders`: next of the loader is data:Data.__len__",
    ),
    "a loader too many": (
        ("dataloaders",),
        [*DOCUMENT["dataloaders"], {"full_name": "data.Held"}],
        "data.Held stands in `dataloaders` but does not feed the update",
    ),
}


def changed(document, path, value):
    """A copy in which one entry is another, or gone."""
    whole = copy.deepcopy(document)
    place = whole
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return whole


@pytest.fixture
def said(tmp_path):
    """What the harness says of a document, or of a program that ended otherwise."""

    def compare(document, program=PROGRAM, status=0, stderr=""):
        return differences(Place(tmp_path, program), Traced(status, "", stderr, document))

    return compare


def test_a_right_document_is_right(said):
    assert said(DOCUMENT) == []


@pytest.mark.parametrize("change", CHANGES)
def test_a_wrong_one_is_told(change, said):
    path, value, sentence = CHANGES[change]
    assert any(sentence in problem for problem in said(changed(DOCUMENT, path, value)))


def test_absolute_names_below_the_script_are_told(said, tmp_path):
    name = str(tmp_path / "work" / "engine.py")
    problems = said(changed(DOCUMENT, (*LOOPS, 2, "file_name"), name))
    assert problems == [f"{name} is below the script's folder but not relative to it"]


def test_a_failed_trace_is_told_with_its_last_words(said):
    assert said(None, status=3, stderr="detrain: error: so it is\n") == [
        "tracing ended with status 3: detrain: error: so it is"
    ]
    assert said(None) == ["there is no inst.info"]


def test_a_nest_where_nothing_trains_is_told(said):
    program = PROGRAMS["only_validation"]
    assert said(None, program, status=1, stderr="detrain: error: no weight update\n") == []
    nest = [{"file_name": "train.py", "line_no": 3, "part": "batch"}]
    assert said({"nests": [nest]}, program, status=0, stderr="") == [
        "nothing trains, but tracing ended with status 0, not 1",
        "nothing trains, and no message says so: ''",
        "nothing trains, but a nest was found: train.py:3 (batch)",
    ]


def test_any_of_several_marked_lines_will_do(said):
    text = PROGRAM.files["engine.py"].replace("x = fetch(data)", "x = fetch(data)  # <update>")
    program = Program("several", {**PROGRAM.files, "engine.py": text}, wrapper=PROGRAM.wrapper, loaders=PROGRAM.loaders)
    for number, problems in (("8", 0), ("9", 0), ("7", 1)):
        assert len(said(changed(DOCUMENT, (*CODE, "update_call_line_no"), number), program)) == problems


def test_an_optional_loop_may_be_missing_and_another_may_not(said):
    text = PROGRAM.files["train.py"].replace("<outer>", "<outer?>")
    program = Program("optional", {**PROGRAM.files, "train.py": text}, wrapper=PROGRAM.wrapper, loaders=PROGRAM.loaders)
    assert said(DOCUMENT, program) == []
    assert said(changed(DOCUMENT, (*LOOPS, 0), None), program) == []
    assert said(changed(DOCUMENT, (*LOOPS, 1), None), program) != []


def test_a_loader_of_which_nothing_is_asked_may_be_anything(said):
    program = Program("unasked", PROGRAM.files)
    without = changed(changed(DOCUMENT, ("dataloader",), {}), (*CODE, "dl_call_line_no"), "1")
    assert said(without, program) == []


def test_markers_are_read_from_every_file_in_the_order_of_the_nest():
    expected = expected_of(PROGRAMS["seeds_and_folds_through_functions"])
    assert [loop.part for loop in expected.nest] == ["outer", "outer", "epoch", "batch"]
    assert expected.nest[0].line.number < expected.nest[1].line.number
    assert [loop.function for loop in expected.nest] == ["<module>", "<module>", "train", "train"]
    library = expected_of(PROGRAMS["trainer_in_a_library"])
    assert {loop.line.file for loop in library.nest} == {"fitlib/trainer.py"}
    assert library.dl == [library.nest[-1].line]
    assert expected_of(PROGRAM).update == [Line("engine.py", 9)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_markers_of_loops_stand_at_headers_of_loops(name):
    program = PROGRAMS[name]
    expected = expected_of(program)
    for loop in expected.nest:
        text = {**program.files, **program.library}[loop.line.file]
        headers = [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For | ast.While)]
        assert loop.line.number in headers, f"{loop} is no loop"
