"""inst.info: golden files of both formats, in and out."""

import ast
from pathlib import Path

import pytest

from detrain import instfile
from detrain.instfile import InstInfo, NestLoop

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


def test_the_committed_inst_info_is_that_of_the_examples_sources():
    root = Path(__file__).parents[2]
    info = instfile.read(root / "tf-ckpt" / "inst.info", root / "examples" / "tf_music_transformer")
    assert info.sources
    assert {name: instfile.digest_of(name) for name in info.sources} == info.sources
    assert info.extra["dataloader"]["full_name"] == "data.Data"
