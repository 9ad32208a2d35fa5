"""A batch loop that loads its own data: `record_batch` stands behind what loads, whatever that looks like."""

import ast
import textwrap

import pytest

from detrain.rewrite.loads import Load
from detrain.rewrite.transform import instrument, parse_with_original_positions

#: What it is: source with `# <dl>` at the call and `# <helper NAME>` at the loop if a helper makes it; what becomes of it.
SHAPES = {
    "a statement": (
        """\
        for b in range(9):
            x, y = data.slurp(4)  # <dl>
            train(x, y)
        """,
        """\
        for b in record_loop(1, (range(9))):
            x, y = data.slurp(4)  # <dl>
            record_batch(1, loaded=True)
            train(x, y)
        """,
    ),
    "try and continue": (
        """\
        for b in range(9):
            try:
                x, y = data.slurp(4)  # <dl>
            except ValueError:
                continue
            train(x, y)
        """,
        """\
        for b in record_loop(1, (range(9))):
            try:
                x, y = data.slurp(4)  # <dl>
                record_batch(1, loaded=True)
            except ValueError:
                continue
            train(x, y)
        """,
    ),
    "a call over several lines": (
        """\
        for b in range(9):
            x, y = data.slurp(
                4,
                length=7,  # <dl>
            )
            train(x, y)
        """,
        """\
        for b in record_loop(1, (range(9))):
            x, y = data.slurp(
                4,
                length=7,  # <dl>
            )
            record_batch(1, loaded=True)
            train(x, y)
        """,
    ),
    "a walrus in the loop's own test": (
        """\
        while (x := data.slurp(4)) is not None:  # <dl>
            train(x)
        """,
        """\
        enter_loop(1)
        while record_loop(1) and ((x := data.slurp(4)) is not None):  # <dl>
            record_batch(1, loaded=True)
            train(x)
        else:
            record_loop(1, ended=True)
        """,
    ),
    "a walrus in a test": (
        """\
        for b in range(9):
            if (x := data.slurp(4)) is not None:  # <dl>
                train(x)
        """,
        """\
        for b in record_loop(1, (range(9))):
            if (x := data.slurp(4)) is not None:  # <dl>
                record_batch(1, loaded=True)
                train(x)
        """,
    ),
    "a context manager": (
        """\
        for b in range(9):
            with data.slurp(4) as x:  # <dl>
                train(x)
        """,
        """\
        for b in record_loop(1, (range(9))):
            with data.slurp(4) as x:  # <dl>
                record_batch(1, loaded=True)
                train(x)
        """,
    ),
    "a helper": (
        """\
        def load(n):
            return data.slurp(n)


        for b in range(9):  # <helper load>
            x, y = load(4), b
            train(x, y)
        """,
        """\
        def load(n):
            return data.slurp(n)


        for b in record_loop(5, (range(9))):  # <helper load>
            x, y = load(4), b
            record_batch(5, loaded=True)
            train(x, y)
        """,
    ),
    "a method of a helper that also trains": (
        """\
        while True:  # <helper Trainer.step>
            loss = trainer.step()
            if loss < 1:
                break
        """,
        """\
        enter_loop(1)
        while record_loop(1) and (True):  # <helper Trainer.step>
            loss = trainer.step()
            record_batch(1, loaded=True)
            if loss < 1:
                record_loop(1, left=True); break
        else:
            record_loop(1, ended=True)
        """,
    ),
}


def load_of(source: str) -> Load:
    """What the markers say."""
    loops = [n.lineno for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.For, ast.While))]
    helper = source.partition("# <helper ")[2].partition(">")[0]
    calls = [number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# <dl>")]
    return Load(loops[0], calls[0] if calls else 0, helper)


@pytest.mark.parametrize("shape", SHAPES)
def test_record_batch_stands_behind_what_loads(shape):
    before, after = map(textwrap.dedent, SHAPES[shape])
    load = load_of(before)
    assert instrument(before, {load.loop_line: "batch"}, load) == after


@pytest.mark.parametrize("shape", SHAPES)
def test_lines_and_columns_stay_those_of_the_file(shape):
    before, after = map(textwrap.dedent, SHAPES[shape])
    placed = parse_with_original_positions(before, after)
    theirs = {(n.lineno, n.col_offset, n.id) for n in ast.walk(ast.parse(before)) if isinstance(n, ast.Name)}
    mine = {
        (n.lineno, n.col_offset, n.id)
        for n in ast.walk(placed)
        if isinstance(n, ast.Name) and not n.id.startswith("__detrain_")
    }
    assert mine == theirs
    compile(placed, "train.py", "exec")


def test_loop_that_makes_no_such_call_gets_hooks_in_its_header_only():
    source = "for b in range(9):\n    train(b)\n"
    expected = "for b in record_batch(1, (range(9))):\n    train(b)\n"
    assert instrument(source, {1: "batch"}, Load(1, 0, "load")) == expected
