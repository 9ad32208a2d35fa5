"""What is compiled is what `detrain instrument` shows, every node where it stands in the source."""

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.loops.sites import find_loops
from detrain.rewrite.importer import Instrumenter
from detrain.rewrite.transform import instrument, parse_with_original_positions
from detrain.rewrite.tree import add_hooks

SOURCES = {
    "loops": """
for x in 1, 2:
    if x: break
else:
    for y in (z := [1]): break
while a and b or c:
    while(d):break
    else: pass
""",
    "around": """
async def f(xs):
    async for x in xs:
        for y in x: break
        break
    for x in xs:
        async with x: break
        try: break
        except* E: pass
        finally: break
    for x in xs:
        match x:
            case 1: break
            case _:
                while True: break; a
        def g():
            for _ in lambda: 0, *xs: break
        class C:
            for _ in (): break
""",
    "words": "for x in[1, 2]: a; break\nfor ä, y in ((('é')), (lambda: 1)): pass\nif a:\n  pass\nelse:\n  while x: y",
    "try": "while 1:\n try:\n  for _ in a: break\n except E:\n  for _ in a: break\n finally:\n  for _ in a: break\n if b:break",
}


def both(source, part="batch"):
    """The tree by way of the source, and the one that is made of the tree."""
    own = ast.parse(source)
    parts = {site.line: (part, "epoch", "")[number % 3] for number, site in enumerate(find_loops(own))}
    add_hooks(own, parts)
    return parse_with_original_positions(source, instrument(source, parts)), own


@pytest.mark.parametrize("name", SOURCES)
def test_a_tree_has_the_hooks_of_the_source(name):
    by_source, own = both(SOURCES[name])
    assert ast.dump(own, include_attributes=True) == ast.dump(by_source, include_attributes=True)
    compile(own, "x.py", "exec")


@pytest.mark.parametrize("name", ["argparse", "heapq", "json.decoder", "textwrap", "queue", "tokenize"])
def test_a_tree_has_the_hooks_of_the_source_in_real_files(name):
    by_source, own = both(Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8"))
    assert ast.dump(own, include_attributes=True) == ast.dump(by_source, include_attributes=True)


def test_no_file_is_compiled_with_libcst(tmp_path):
    program = (
        "import json, sys\n"
        "from detrain.rewrite.importer import Instrumenter\n"
        "made = Instrumenter({}, None, lambda *_: None)\n"
        "made.compile(b'for x in (): break', sys.argv[1])\n"
        "print(json.dumps([made.loops, 'libcst' in sys.modules]))"
    )
    script = str(tmp_path / "train.py")
    done = subprocess.run([sys.executable, "-c", program, script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{script: {"1": 1}}, False]


def test_lines_that_end_in_other_ways_and_other_encodings(tmp_path):
    content = "# coding: latin-1\r\nfor x in ['é\\n', '''\r\n''']:\r\n    break\r\n".encode("latin-1")
    source = importlib.util.decode_source(content)
    code = Instrumenter({}, None, lambda *_: None).compile(content, str(tmp_path / "train.py"))
    tree = parse_with_original_positions(source, instrument(source, {2: ""}))
    assert code == compile(tree, str(tmp_path / "train.py"), "exec", dont_inherit=True)
