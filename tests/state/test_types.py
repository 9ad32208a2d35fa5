"""The types that scripts commonly hold in variables of their training loop: captured, or named and refused; never another value."""

import importlib.util
from pathlib import Path

import pytest

from detrain.errors import RestoreError
from tests.state import roundtrip
from tests.state.programs.types import CAPTURED, REFUSED, SET_UP, TYPES
from tests.state.test_roundtrip import _as_a_new_process, folder  # noqa: F401 - fixtures

PAGE = Path(__file__).parents[2] / "docs" / "types.md"


def _needs(one):
    """Skip where the library is not installed: most users of detrain have not all of them, nor has this project."""
    top = one.library.partition(".")[0]
    if top and importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    if top == "torch":
        import detrain.adapters.torch  # noqa: F401 - registers its handlers


def _life(program):
    """What `x` is in a life that nobody has captured."""
    one = roundtrip.Life(program)
    one.run("loop")
    one.run("next")
    return vars(one.module)["x"]


def _restored(program, folder):  # noqa: F811
    """What `x` is after a restore, or the error of who uses what is not there; and what was named as not captured."""
    taken = roundtrip.saved(program, folder.parent / "checkpoint_0_0.h5", folder)
    named = [node for node in taken.tree.nodes if node.get("loud")]
    try:
        with roundtrip.restored(program, taken) as one:
            one.run("next")
            return vars(one.module)["x"], named
    except Exception as error:  # of the program: what is named may have no way back
        if not named and not isinstance(error, RestoreError):
            raise
        return error, named


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)
@pytest.mark.parametrize("made_by", ["set-up", "loop"])
@pytest.mark.parametrize("one", TYPES, ids=lambda one: one.name)
def test_it_is_what_it_was_or_is_named(one, made_by, folder, monkeypatch):  # noqa: F811
    _needs(one)
    monkeypatch.setattr(roundtrip, "judge", lambda _: None)  # they are compared by `x` alone: many have caches
    program = roundtrip.Program(one.definitions, one.set_up, one.loop, one.then)
    if made_by == "loop":
        program = program.made_by_the_loop()
    expected = _life(program)
    roundtrip._empty(folder)
    found, named = _restored(program, folder)
    if one.verdict == CAPTURED or (one.verdict == SET_UP and made_by == "set-up"):
        assert not named
        assert not isinstance(found, RestoreError), found
        assert found == expected
    else:
        assert named or isinstance(found, RestoreError), "the table says that it is refused"


def test_the_page_has_the_table():
    rows = [f"| {one.name} | {f'`{one.library}`' if one.library else 'Python'} | {one.verdict} |" for one in TYPES]
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in page.splitlines() if row.startswith("| ")][2:] == rows
    assert {one.verdict for one in TYPES} == {CAPTURED, SET_UP, REFUSED}
