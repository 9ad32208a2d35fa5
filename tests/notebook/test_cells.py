"""Which cells of a notebook belong to the script of one of them."""

from __future__ import annotations

import pytest

from detrain.errors import UsageError
from detrain.notebook.cells import Cells


def cells(*texts: str) -> Cells:
    found = Cells(lambda text: text)
    for number, text in enumerate(texts):
        found.record(text, f"id{number}")
    return found


def test_cells_that_give_a_needed_name_come_first_in_their_order():
    found = cells("import torch", "size = 3", "unused = 1", "model = torch.nn.Linear(size, 1)")
    assert (
        found.script("model(1)") == "import torch\n\n\nsize = 3\n\n\nmodel = torch.nn.Linear(size, 1)\n\n\nmodel(1)\n"
    )


def test_a_cell_that_does_something_to_what_is_needed_belongs_to_it():
    found = cells("import random", "random.seed(3)", "print('hello')", "def draw():\n    return random.random()")
    script = found.script("x = draw()")
    assert "random.seed(3)" in script
    assert "hello" not in script


def test_names_that_only_a_function_takes_are_needed():
    assert "rate = 0.1" in cells("rate = 0.1", "def step():\n    return rate").script("step()")


def test_a_name_that_a_function_declares_global_is_given_by_its_cell():
    assert "global best" in cells("def keep(x):\n    global best\n    best = x", "keep(3)").script("print(best)")


def test_a_cell_that_was_changed_counts_once_at_its_first_place():
    found = cells("x = 1", "y = x")
    found.record("x = 2", "id0")
    assert found.script("print(y)") == "x = 2\n\n\ny = x\n\n\nprint(y)\n"


def test_a_cell_that_ran_before_cells_had_names_counts_once():
    found = Cells(lambda text: text)
    found.record("x = 1")
    found.record("x = 1", "id0")
    assert found.script("print(x)") == "x = 1\n\n\nprint(x)\n"


def test_what_is_looked_at_after_the_training_cell_is_left_out():
    found = cells("x = [1]", "", "print(x)", "y = x + [2]")
    assert "print(x)" not in found.script("total = sum(x)", "id1")
    assert "y =" not in found.script("total = sum(x)", "id1")


def test_lines_of_ipython_are_left_out_and_what_stands_beside_them_stays():
    found = cells("get_ipython().run_line_magic('matplotlib', 'inline')\nx = 1")
    assert found.script("print(x)") == "x = 1\n\n\nprint(x)\n"


def test_display_is_imported_in_a_script():
    assert cells().script("display(3)") == "from IPython.display import display\n\n\ndisplay(3)\n"


@pytest.mark.parametrize("text", ["", "files = get_ipython().getoutput('ls')"])
def test_a_name_that_no_python_gives_is_named(text: str):
    with pytest.raises(UsageError, match="gives a value to files in Python"):
        cells(text).script("print(files)")


def test_a_name_to_hand_back_has_to_come_from_somewhere():
    found = cells("model = 3")
    assert "model = 3" in found.script("x = 1", results=["model", "x"])
    with pytest.raises(UsageError, match="gives a value to history in Python"):
        found.script("x = 1", results=["history"])


def test_a_cell_with_a_syntax_error_has_not_run():
    assert "y" not in cells("x = 1", "y = (").script("print(x)")
