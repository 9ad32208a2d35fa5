"""Objects whose state only their own pickling tells: images, trees of nearest neighbours, and classes that hold what C has made."""

import copyreg
import ctypes
import lzma

import pytest

from detrain.errors import ResumeRefused
from detrain.state.restore import Origins, Restore
from detrain.state.walk import Walk
from tests.state import roundtrip
from tests.state.roundtrip import Program
from tests.state.test_roundtrip import _as_a_new_process, folder  # noqa: F401 - fixtures
from tests.tiers import full_but

PROGRAMS = {
    "an image": Program(
        "import numpy as np\nfrom PIL import Image", "im = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))",
        "im = im.rotate(90); im.putpixel((1, 1), 7)", "x = im.tobytes(), im.size, im.mode",
    ),
    "an image that is changed in place": Program(
        "from PIL import Image", "im = Image.new('RGB', (3, 2)); seen = [im]", "im.putpixel((0, 0), (1, 2, 3)); im.info['dpi'] = 3",
        "im.putpixel((1, 1), (4, 5, 6)); x = im.tobytes(), seen[0] is im, dict(im.info)",
    ),
    "an image with a palette": Program(
        "from PIL import Image", "im = Image.new('P', (2, 2)); im.putpalette([1, 2, 3] * 256)", "im.putpixel((0, 0), 9)",
        "x = im.convert('RGB').tobytes()",
    ),
    "nearest neighbours": Program(
        "import numpy as np\nfrom sklearn.neighbors import KNeighborsClassifier", "c = KNeighborsClassifier(1, algorithm='kd_tree')",
        "c.fit(np.eye(4), [0, 1, 0, 1])", "x = c.predict(np.eye(4)).tolist()",
    ),
    "a figure": Program(
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt", "fig, ax = plt.subplots()", "ax.plot([1, 2, 3])",
        "ax.plot([2]); x = [line.get_ydata().tolist() for line in ax.lines]",
    ),
    "what a figure has drawn": Program(
        "import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt", "fig, ax = plt.subplots()",
        "ax.plot([1, 2, 3]); fig.canvas.draw()", "x = sum(bytes(fig.canvas.buffer_rgba()))",
    ),
    "a sparse matrix": Program(
        "import numpy as np\nimport scipy.sparse as sp", "m = sp.csr_matrix(np.eye(3))", "m = m + m.T; k = m.tolil(); k[0, 1] = 3",
        "x = m.toarray().tolist(), k.toarray().tolist()",
    ),
    "a graph": Program(
        "import networkx as nx", "g = nx.path_graph(3)", "g.add_edge(0, 2, w=1)", "x = list(g.edges(data=True)), nx.shortest_path(g, 0, 2)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("by", ["the set-up", "the loop"])
@pytest.mark.parametrize("name", full_but([name for name in PROGRAMS if name != "a figure"], PROGRAMS))
def test_of_a_library_it_is_brought_back(name, by, folder):  # noqa: F811
    program = PROGRAMS[name] if by == "the set-up" else PROGRAMS[name].made_by_the_loop()
    expected = roundtrip.never_captured(program)
    roundtrip._empty(folder)
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    assert not [node for node in taken.tree.nodes if node.get("loud")]
    with roundtrip.restored(program, taken) as one:
        seen = roundtrip.judge(one)
    assert _variable(seen.after) == _variable(expected.after)


def _variable(described):
    """What the variable `x` is; figures have caches, which may be filled or not."""
    (found,) = [one for one in described[1:] if one[1] == ("str", "'x'")]
    return found


_CONTENT: dict[int, bytes] = {}


class Box:
    """Has its content in memory that nobody can look into, and says what it is when it is pickled."""

    def __init__(self, content=b"", name="box"):
        self.core, self.name = ctypes.c_void_p(id(self)), name
        _CONTENT[id(self)] = content

    @property
    def content(self):
        return _CONTENT[id(self)]

    def __getstate__(self):
        return {"name": self.name, "content": self.content}

    def __setstate__(self, state):
        self.__init__(state["content"], state["name"])


class MadeAnew(Box):
    """Is pickled by the arguments that it was made with, and loses its content."""

    def __reduce__(self):
        return type(self), (b"", self.name)


def _taken(**roots):
    walk = Walk()
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run()


def _restored(captured, *, allows_pickle=True, **live):
    here = _taken(**live)
    restoring = Restore(captured.tree, here, Origins(here), allows_pickle=allows_pickle)
    return restoring.run(live), restoring.doubtful


def test_what_is_in_no_attribute_comes_from_the_pickling():
    saved = _taken(box=Box(b"abc", "mine"))
    other = Box(b"x")
    restored, doubtful = _restored(saved, box=other)
    assert not doubtful
    assert (restored["box"].content, restored["box"].name) == (b"abc", "mine")


def test_one_that_has_the_state_already_stays_who_it_is_and_its_attributes_are_set():
    box = Box(b"abc")
    box.label = [1]
    saved = _taken(box=box, label=box.label)
    live = Box(b"abc")
    restored, _ = _restored(saved, box=live, label=[])
    assert restored["box"] is live
    assert live.label is restored["label"]
    assert live.label == [1]
    assert live.core.value == id(live)


def test_attributes_that_the_pickling_forgets_are_set():
    box = Box(b"abc")
    box.steps = 7
    restored, _ = _restored(_taken(box=box))
    assert (restored["box"].content, restored["box"].steps) == (b"abc", 7)
    assert restored["box"].core.value == id(restored["box"])


def test_a_pickling_that_only_makes_it_anew_is_not_trusted():
    saved = _taken(box=MadeAnew(b"abc"))
    assert [node["kept"] for node in saved.tree.nodes if node.get("loud")]
    _, doubtful = _restored(saved, box=MadeAnew(b""))
    assert "box.core" in doubtful[0]


def test_without_pickle_it_is_refused():
    with pytest.raises(ResumeRefused, match=r"box .*which --no-pickle refuses"):
        _restored(_taken(box=Box(b"abc")), allows_pickle=False)


def test_what_somebody_else_holds_as_well_is_shared_again(monkeypatch):
    shared = [1]
    monkeypatch.setitem(copyreg.dispatch_table, lzma.LZMADecompressor, lambda _: (_make, (shared,)))
    saved = _taken(a=lzma.LZMADecompressor(), b=shared)
    shared.append(2)  # the live one differs, so that it is made again
    here = _taken(a=lzma.LZMADecompressor(), b=shared)
    restored = Restore(saved.tree, here, Origins(here)).run({"b": shared})
    assert _made == [restored["b"]]
    assert _made[0] is restored["b"] is shared
    assert shared == [1]


_made: list[object] = []


def _make(shared):
    _made.append(shared)
    return lzma.LZMADecompressor()


def test_what_cannot_be_pickled_is_named():
    box = Box(b"abc")
    box.tool = lambda: 1
    box.__dict__["core"] = ctypes.c_void_p(1)
    saved = _taken(box=box)
    assert not [node for node in saved.tree.nodes if node.get("loud")]
    monkey = type("Odd", (Box,), {"__getstate__": lambda self: {"f": (i for i in ())}})
    odd = monkey(b"abc")
    saved = _taken(odd=odd)
    assert "odd.core" in saved.paths[[bool(node.get("loud")) for node in saved.tree.nodes].index(True)]
