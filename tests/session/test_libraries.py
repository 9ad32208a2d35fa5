"""What libraries keep in globals of their own modules, and the modules that loops load."""

import random
import sys
import threading
import types

import pytest

from detrain.errors import RestoreError
from detrain.session import libraries
from detrain.session.libraries import Libraries
from detrain.state import user_code
from detrain.state.walk import Walk
from tests.session.attempts import Framework, Killed, Run

#: A library with a store of parameters that it makes when they are first asked for, and a class that counts them.
STORE = """
PARAMETERS = {}
class Counts:
    made = {}
    lock = __import__("threading").Lock()
def parameter(name):
    if name not in PARAMETERS:
        PARAMETERS[name] = [1.0, 2.0]
        Counts.made[name] = [PARAMETERS[name], 0]
    Counts.made[name][1] += 1
    return PARAMETERS[name]
"""
SCRIPT = """
import framework, storage
history = []
def one(batch):
    weights = storage.parameter("w")
    framework.backward(weights[0])
    framework.step(weights, batch)
    history.append(weights[0])
for epoch in range(3):
    for batch in range(4):
        one(batch)
ended = [list(storage.PARAMETERS["w"]), storage.Counts.made["w"][1], storage.Counts.made["w"][0] is storage.PARAMETERS["w"]]
"""


@pytest.fixture
def load(monkeypatch):
    """Loads a library of this source anew, as a new process does."""

    def make(source=STORE, name="storage"):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, vars(module))
        return module

    return make


def captured(**variables):
    walk = Walk()
    for name, value in variables.items():
        walk.root(name, value)
    return walk.run()


def test_a_store_of_parameters_is_found_by_what_it_stores(load):
    storage, known = load(), Libraries()
    weights = storage.parameter("w")
    assert known.look([weights], (), captured(optimizer=[weights]))
    found = [name for name in known.roots() if "matplotlib" not in name]  # which a test before may have loaded
    assert found == ["<library storage>.Counts.made", "<library storage>.PARAMETERS"]
    assert known.roots()["<library storage>.PARAMETERS"] is storage.PARAMETERS
    assert not known.look([weights], (), captured(optimizer=[weights])), "the same parameters are trained"
    assert not known.look([weights, [1.0]], (), captured(optimizer=[weights], **known.roots())), "nothing new is found"


@pytest.mark.parametrize("whose", ["the script", "a framework", "Python"])
def test_globals_of_others_are_no_librarys(whose, load, monkeypatch):
    storage = load(name="csv" if whose == "Python" else "storage")
    known = Libraries({"storage"} if whose == "a framework" else ())
    if whose == "the script":
        monkeypatch.setattr(user_code, "user_modules", user_code.user_modules)
        user_code.user_modules.add("storage")
    try:
        weights = storage.parameter("w")
        assert not known.look([weights], (), captured(optimizer=[weights]))
    finally:
        user_code.user_modules.discard("storage")


def test_what_the_script_leads_to_is_not_looked_for_again(load):
    storage = load()
    weights = storage.parameter("w")
    assert not Libraries().look([weights], (), captured(all=[weights, storage.PARAMETERS, storage.Counts.made["w"]]))


def test_a_library_that_keeps_nothing_there_any_more_is_named(load):
    known = Libraries()
    with pytest.raises(
        RestoreError, match=r"<library storage>.PARAMETERS: the library keeps no state there.*not loaded"
    ):
        known.expect(["train.weights", "<library storage>.PARAMETERS"])
    load("")
    with pytest.raises(RestoreError, match="has no PARAMETERS"):
        known.expect([])


def test_what_a_loop_has_put_in_another_place_is_put_there(load):
    storage, known = load(), Libraries()
    known.expect(["<library storage>.Counts.made", "<library storage>.PARAMETERS"])
    other, same = {}, storage.PARAMETERS
    known.put({"<library storage>.Counts.made": other, "<library storage>.PARAMETERS": same, "train.x": 1})
    assert storage.Counts.made is other
    assert storage.PARAMETERS is same
    again = {}
    known.put({"<library storage>.PARAMETERS": again})
    assert storage.PARAMETERS is again


@pytest.mark.parametrize("kill_at", [7, 11])
def test_a_training_whose_parameters_a_library_keeps_is_resumed(kill_at, load, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    load()
    whole = Run(SCRIPT, tmp_path / "whole", "2batches").attempt()
    assert whole.by is None
    killed = Run(SCRIPT, tmp_path / "killed", "2batches")
    load()
    assert isinstance(killed.attempt(kill_at).by, Killed)
    load()
    ended = killed.attempt(framework=Framework())
    assert ended.by is None
    assert ended.steps < whole.steps, "it was not resumed"
    assert ended.variables["ended"] == whole.variables["ended"]
    assert ended.variables["history"] == whole.variables["history"]
    assert "not-captured" not in capfd.readouterr().err, "what cannot be captured of the library's is the library's own"


def test_modules_that_the_loops_load_are_told_in_their_order(monkeypatch):
    known = Libraries()
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    known.begin(len(sys.modules))
    for name in ("without_a_spec", "chunk_of_it"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["chunk_of_it"].__spec__ = threading.__spec__  # under another name
    assert known.loaded() == []
    import wave

    assert known.loaded() == ["wave"]
    del sys.modules["wave"]
    libraries.load(["no_such_module_anywhere", "wave"])
    assert sys.modules["wave"] is not wave


PLOTTED = """
import framework
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot
weights = [0.0, 1.0]
for epoch in range(4):
    for batch in range(3):
        framework.backward(weights[0])
        framework.step(weights, batch)
    pyplot.plot(epoch, weights[0], "o")
    pyplot.figure(2)
    pyplot.bar([epoch], [weights[1]])
    pyplot.figure(1)
drawn = [[len(axes.lines), len(axes.patches)] for number in pyplot.get_fignums() for axes in pyplot.figure(number).axes]
pyplot.close("all")
pyplot = matplotlib = axes = None
"""


@pytest.mark.parametrize("kill_at", [5, 10])
def test_figures_that_only_pyplot_knows_have_what_was_drawn_before_the_kill(kill_at, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    pyplot.close("all")
    run = Run(PLOTTED, tmp_path / "run", "epoch")
    assert isinstance(run.attempt(kill_at).by, Killed)
    pyplot.close("all")  # as in a new process
    ended = run.attempt(framework=Framework())
    assert ended.by is None
    assert ended.steps < 12, "it was not resumed"
    assert ended.variables["drawn"] == [[4, 0], [0, 4]]


DRAWS = """
import random
class Draws:
    shared = random.Random(1)
    def __init__(self): self.own = random.Random(2)
drawing, plain, hidden = Draws(), random.Random(3), [random.Random(4)]
def local():
    class Inner: generator = random.Random(5)
    return Inner
inner = local()
"""


def test_generators_that_a_library_has_made_are_found(load):
    load(DRAWS, "drawing")
    known = Libraries()
    assert known.look([], {random.Random}, captured(python=random._inst))
    found = {name for name in known.roots() if name.startswith("<library drawing>")}
    assert found == {f"<library drawing>.{name}" for name in ("Draws.shared", "drawing.own", "plain")}
    assert type(known.roots()["<library drawing>.drawing.own"]) is random.Random


DRAWING = """
import framework, storage
weights, history = [1.0, 2.0], []
for epoch in range(3):
    for batch in range(4):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append([storage.drawing.own.random(), storage.Draws.shared.random()])
"""


def test_a_generator_that_a_library_has_made_goes_on_where_it_was(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    load(DRAWS)
    whole = Run(DRAWING, tmp_path / "whole", "2batches").attempt()
    killed = Run(DRAWING, tmp_path / "killed", "2batches")
    load(DRAWS)
    assert isinstance(killed.attempt(7).by, Killed)
    load(DRAWS)
    ended = killed.attempt(framework=Framework())
    assert ended.by is None
    assert ended.steps < whole.steps, "it was not resumed"
    assert ended.variables["history"] == whole.variables["history"]
