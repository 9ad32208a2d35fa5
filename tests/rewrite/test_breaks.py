"""A `break` that leads straight behind its loop is told; where something happens before, or it leads past an `else`, it is not."""

import ast
import textwrap

import pytest

from detrain.rewrite.transform import instrument, parse_with_original_positions

#: A source with its loops' lines, and how often a `break` in it is told, by line.
SHAPES = {
    "straight": ("for a in b:\n    if c: break\n", {1: 1}),
    "on a line of its own, behind another statement": ("for a in b:\n    x = 1; break\n", {1: 1}),
    "of a while": ("while a:\n    break\n", {1: 1}),
    "several": ("for a in b:\n    if c:\n        break\n    elif d:\n        break\n", {1: 2}),
    "of the inner loop": ("for a in b:\n    for c in d:\n        break\n", {2: 1}),
    "of the outer loop, behind the inner": ("for a in b:\n    for c in d:\n        pass\n    break\n", {1: 1}),
    "with an else": ("for a in b:\n    break\nelse:\n    x = 1\n", {}),
    "in an else, of the loop around": ("for a in b:\n    for c in d:\n        pass\n    else:\n        break\n", {}),
    "out of a with": ("for a in b:\n    with c:\n        break\n", {}),
    "out of a try": ("for a in b:\n    try:\n        break\n    finally:\n        x = 1\n", {}),
    "out of a handler": ("for a in b:\n    try:\n        x = 1\n    except E as e:\n        break\n", {}),
    "of a loop in a with": ("with c:\n    for a in b:\n        break\n", {2: 1}),
    "of a loop in a function in a loop": (
        "for a in b:\n    def f():\n        for c in d:\n            break\n",
        {3: 1},
    ),
    "in a match": ("for a in b:\n    match a:\n        case 1:\n            break\n", {1: 1}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_break_is_told(name):
    source, expected = SHAPES[name]
    lines = {node.lineno: "" for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.For, ast.While))}
    instrumented = instrument(source, lines)
    told = {line: instrumented.count(f"record_loop({line}, left=True)") for line in lines}
    assert {line: count for line, count in told.items() if count} == expected
    tree = parse_with_original_positions(source, instrumented)
    breaks = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Break)]
    assert breaks == [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Break)]


def test_the_hook_stands_where_the_break_stands():
    source = textwrap.dedent("""\
        for a in b:
            if c:

                break
        """)
    tree = parse_with_original_positions(source, instrument(source, {1: "batch"}))
    (hook, end) = tree.body[0].body[0].body
    assert (hook.lineno, end.lineno) == (4, 4)
    assert ast.unparse(hook) == "__detrain_record_batch__(1, left=True)"
