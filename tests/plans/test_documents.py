"""Documents: what they say of themselves, and how each error names its place."""

import json

import pytest

from detrain.errors import GraphError
from detrain.plans.documents import DocumentKind, Fields, errors_naming, parsed

PLAN = DocumentKind("detrain test plan", 3, "a plan")


def test_a_document_begins_with_kind_and_format_and_is_read_again(tmp_path):
    path = tmp_path / "plan.json"
    PLAN.write(path, {"steps": [1, 2], "name": "é"})
    assert path.read_bytes() == b'{"kind":"detrain test plan","format":3,"steps":[1,2],"name":"\\u00e9"}\n'
    assert PLAN.read(path) == {"kind": "detrain test plan", "format": 3, "steps": [1, 2], "name": "é"}


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_its_document(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN.header()), encoding="utf-8-sig")
    assert PLAN.read(path) == PLAN.header()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "plan.json is not JSON: "), ("[" * 100_000, "plan.json is not JSON: "), ("\xff", "plan.json is not JSON: "),
        ("[]", "plan.json is not a plan: its kind must be 'detrain test plan'"),
        ('{"kind": "detrain operator graph", "format": 3}', "plan.json is not a plan: its kind must be"),
        ('{"kind": "detrain test plan", "format": 4}', "plan.json has format 4; this detrain reads format 3"),
        ('{"kind": "detrain test plan"}', "plan.json has format None; this detrain reads format 3"),
    ],
)  # fmt: skip
def test_another_document_is_refused_by_name(content, said, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(GraphError) as caught:
        PLAN.read(path)
    assert str(caught.value).startswith(f"{tmp_path}/{said}")


def test_an_error_names_its_file_once(tmp_path):
    for message in ("stages is empty", f"{tmp_path}: stages is empty"):
        with pytest.raises(GraphError) as caught, errors_naming(tmp_path):
            raise GraphError(message)
        assert str(caught.value) == f"{tmp_path}: stages is empty"


def test_a_bool_is_no_whole_number_and_no_number():
    fields = Fields({"flag": True, "list": [1, True], "large": 10**400}, "plan.json")
    for read, said in (
        (lambda: fields.whole("flag"), "plan.json: flag is True, not a whole number from 0 on"),
        (lambda: fields.number("flag"), "plan.json: flag is True, not a number of zero or more"),
        (lambda: fields.wholes("list"), "plan.json: list is [1, True], not a list of whole numbers from 0 on"),
        (lambda: fields.number("large"), "plan.json: large is 1000"),
    ):
        with pytest.raises(GraphError) as caught:
            read()
        assert str(caught.value).startswith(said)


def test_names_are_those_of_the_document_in_its_order():
    assert Fields({"b": 1, "a": None, 3: 4}, "driver.yml").names() == ("b", "a")


def test_an_error_of_a_parser_is_an_error_of_the_file(tmp_path):
    def fail(_text):
        raise ValueError("line 1")

    (tmp_path / "file").write_text("text")
    with pytest.raises(GraphError, match=r"file is not TOML: line 1$"):
        parsed(tmp_path / "file", "TOML", fail)
