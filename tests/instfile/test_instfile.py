"""inst.info: golden files of both formats, in and out."""

import ast
from pathlib import Path

import pytest

from detrain.loops import instfile
from detrain.loops.instfile import InstInfo, NestLoop
from detrain.session.replay import Replay

GOLDEN = Path(__file__).with_name("golden")


def test_the_present_version_is_written_to_the_byte(tmp_path):
    golden = GOLDEN / "version1.info"
    info = instfile.read(golden, tmp_path)
    instfile.write(tmp_path / "inst.info", info, tmp_path)
    assert (tmp_path / "inst.info").read_bytes() == golden.read_bytes()


def test_file_names_are_made_whole_on_reading(tmp_path):
    info = instfile.read(GOLDEN / "version1.info", tmp_path)
    assert info.nests[0][2] == NestLoop(str(tmp_path / "lib/steps.py"), 9, "batch", "Trainer.fit")
    assert info.sources[str(tmp_path / "train.py")] == "00112233445566778899aabbccddeeff"
    assert info.extra["code_info"]["dl_call_file_name"] == str(tmp_path / "lib/steps.py")
    assert info.load_of(str(tmp_path / "lib/steps.py")) == (9, 11, "")
    assert info.load_of(str(tmp_path / "train.py")) is None


def test_the_prototypes_file_is_read_where_its_script_is_now(tmp_path):
    (tmp_path / "train.py").write_text("pass\n")
    info = instfile.read(GOLDEN / "prototype.info", tmp_path)
    here = str(tmp_path / "train.py")
    assert info.nests == [[NestLoop(here, 76, "epoch"), NestLoop(here, 78, "batch")]]
    assert info.load_of(here) == (78, 80, "")
    assert info.extra["dataloader"]["next"] == ("data", "Data.slide_seq2seq_batch")
    assert not info.is_complete


def test_the_prototypes_keys_survive_being_written_again(tmp_path):
    before = ast.literal_eval((GOLDEN / "prototype.info").read_text())
    instfile.write(tmp_path / "inst.info", instfile.read(GOLDEN / "prototype.info", tmp_path), tmp_path)
    after = ast.literal_eval((tmp_path / "inst.info").read_text())
    assert {key: after[key] for key in before} == before


def test_info_without_a_loader_says_so_with_empty_keys(tmp_path):
    info = InstInfo([[NestLoop(str(tmp_path / "train.py"), 4, "batch")]])
    instfile.write(tmp_path / "inst.info", info, tmp_path)
    document = ast.literal_eval((tmp_path / "inst.info").read_text())
    assert document["dataloader"] == {}
    assert document["code_info"] == {"loop_file_name": "train.py", "loop_line_no": "4"}


def test_lines_that_hold_no_loop_are_named(tmp_path):
    (tmp_path / "train.py").write_text("for e in x:\n    for b in y:\n        pass\n")
    info = InstInfo([[NestLoop(str(tmp_path / "train.py"), 3, "batch")]])
    with pytest.raises(
        instfile.UsageError, match=r"train\.py:3 as the batch loop, but no loop begins on that line.*lines 1, 2"
    ):
        instfile.check_lines(tmp_path / "inst.info", info)


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"", 1, "there is nothing in the file"),
        (b" \n\n", 1, "there is nothing in the file"),
        (b"{'version': 1,\n 'nests': [}", 2, "Python cannot read it: "),
        (b"{'version': 1,\n 'sources': {'train.py': '00", 2, "Python cannot read it: "),
        (b"{'code_info': {\n 'loop_file_name': train}}", 2, "train stands there without quotes"),
        (b"{'code_info':\n open('x')}", 2, "open('x') is no plain value (a text in quotes, a number, True, False, a list, a dict)"),
        (b"{'code_info': f'{1}'}", 1, "f'{1}' is no plain value"),
        (b"{\n 3: 4}", 1, "a key of {3: 4} is no text in quotes"),
        (b"\x7fELF\x00\x00", 1, "this is no text"),
        (b"{}\n\x89HDF\r\n", 2, "this is no text (not UTF-8)"),
        (b"[" * 90_000, 1, ""),
        (b"[1, 2]", 1, "the file must contain a dict in braces, but contains [1, 2]"),
        (b"{'dataloader': {}}", 1, "there are neither nests nor a code_info"),
        (b"{'nests': [],\n 'complete': 1}", 2, "complete is to be True or False, and is 1"),
        (b"{'nests':\n [3]}", 2, "nests.0 is to be a list, and is 3"),
        (b"{'nests': [[\n {'file_name': 'a.py', 'line_no': 'x', 'part': 'batch'}]]}", 2, "nests.0.0.line_no is to be the number of a line"),
        (b"{'nests': [[\n {'part': 'inner'}]]}", 2, "nests.0.0.part is to be 'outer', 'epoch' or 'batch'"),
        (b"{'nests': [[\n {'file_name': 'a.py', 'line_no': 3}]]}", 2, "the loop {'file_name': 'a.py', 'line_no': 3} has no part"),
        (b"{'sources':\n {'a.py': 3}, 'nests': []}", 2, "sources.a.py is to be a text in quotes, and is 3"),
        (b"{'code_info':\n {'loop_file_name': 'a.py'}}", 2, "code_info has no loop_line_no"),
        (b"{'nests': [], 'code_info':\n {'dl_call_file_name': 'a.py'}}", 2, "code_info has no dl_call_line_no"),
        (b"{'nests': [], 'dataloader':\n {'next': 'data.Data'}}", 2, "dataloader.next is to be two texts in brackets, module and name"),
    ],
)  # fmt: skip
def test_damage_is_told_with_its_line_and_what_to_do(tmp_path, content, line, what):
    path = tmp_path / "inst.info"
    path.write_bytes(content)
    with pytest.raises(instfile.UsageError) as told:
        instfile.read(path, tmp_path)
    assert str(told.value).startswith(f"{path}, line {line}: {what}")
    assert str(told.value).endswith("detrain finds the training loop again (a data loader is found by `detrain trace`)")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(instfile.UsageError, match=r"inst\.info cannot be read: No such file"):
        instfile.read(tmp_path / "inst.info", tmp_path)


def damaged(value):
    """A document in all ways in which one place of it is another thing, or is not there."""
    yield from (None, 7, "x", [], {}, ())
    if isinstance(value, dict):
        for key, one in value.items():
            yield {other: it for other, it in value.items() if other != key}
            yield from ({**value, key: it} for it in damaged(one))
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield value[:number] + value[number + 1 :]
            yield from (type(value)([*value[:number], it, *value[number + 1 :]]) for it in damaged(one))


@pytest.mark.parametrize("name", ["version1.info", "prototype.info"])
def test_whatever_is_damaged_it_is_refused_or_can_be_used(tmp_path, name):
    text = (GOLDEN / name).read_text()
    texts = [repr(one) for one in damaged(ast.literal_eval(text))]
    texts += [text[:number] for number in range(len(text))]
    path, num_usable = tmp_path / "inst.info", 0
    for one in texts:
        path.write_text(one)
        try:
            info = instfile.read(path, tmp_path)
        except instfile.UsageError:
            continue  # anything else that is raised fails the test
        num_usable += 1
        Replay(info.extra, list)
        for file_name in info.parts():
            info.load_of(file_name)
        info.describe()
        instfile.write(path, info, tmp_path)
        instfile.read(path, tmp_path)
    assert 10 < num_usable < len(texts) / 2


def test_the_committed_inst_info_is_that_of_the_examples_sources():
    root = Path(__file__).parents[2]
    info = instfile.read(root / "tf-ckpt" / "inst.info", root / "examples" / "tf_music_transformer")
    assert info.sources
    assert {name: instfile.digest_of(name) for name in info.sources} == info.sources
    assert info.extra["dataloader"]["full_name"] == "data.Data"
