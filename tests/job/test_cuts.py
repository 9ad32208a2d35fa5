"""A cut exists when all ranks have their parts of it, and not before."""

import re
from dataclasses import replace

import pytest

from detrain.errors import CheckpointError
from detrain.job.cuts import Cuts, Kept
from detrain.job.messages import Part
from detrain.store.job import Manifest, Manifests


def make(tmp_path, size=3, keep=2, there=()):
    return Cuts(Manifests(tmp_path), [("host", f"/job/rank_{rank}") for rank in range(size)], keep, there)


def part(number, chain=(), **changes):
    return replace(
        Part(f"c{number}", number, 0, number, number, tuple(chain), (("a.py", 3, 0, number),), f"d{number}"), **changes
    )


def names(tmp_path):
    return [one.name for one in Manifests(tmp_path).read()]


def test_whole_when_the_last_has_come(tmp_path):
    cuts = make(tmp_path)
    assert cuts.add(1, part(1)) == (None, "")
    assert cuts.add(0, part(1)) == (None, "")
    assert names(tmp_path) == []
    manifest, trouble = cuts.add(2, part(1))
    assert trouble == ""
    assert Manifests(tmp_path).read() == [manifest]
    assert [(held.rank, held.directory) for held in manifest.parts] == [(n, f"/job/rank_{n}") for n in range(3)]


def commit(cuts, one):
    found = [cuts.add(rank, one) for rank in range(3)][-1]
    cuts.retain()
    return found


def test_the_newest_stay_with_what_leads_to_them(tmp_path):
    cuts = make(tmp_path)
    for number in range(1, 6):
        commit(cuts, part(number, ["c1"] if number > 1 else []))
    assert names(tmp_path) == ["c5", "c4", "c1"]
    assert sorted(cuts.kept()) == ["c1", "c4", "c5"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"trouble": "no space left"}, "rank 2: no space left"),
        ({"position": (("a.py", 3, 0, 9),)}, r"not at the same place: position is .*on rank 2"),
        ({"chain": ("c0",)}, r"not at the same place: chain is"),
        ({"sequence": 4}, "not at the same place: sequence is 4 on rank 2, 1 on rank 0"),
    ],
)
def test_a_part_that_does_not_fit_makes_no_cut(tmp_path, change, why):
    cuts = make(tmp_path)
    cuts.add(0, part(1))
    cuts.add(1, part(1))
    manifest, trouble = cuts.add(2, part(1, **change))
    assert manifest is None
    assert re.search(why, trouble)
    assert names(tmp_path) == []


def test_none_through_one_that_is_not_whole(tmp_path):
    assert commit(make(tmp_path), part(2, ["c1"])) == (None, "a resume would pass through c1, which is not whole")


def test_those_of_the_attempt_before_are_kept_and_counted(tmp_path):
    commit(make(tmp_path), part(1))
    cuts = make(tmp_path, there=Manifests(tmp_path).read())
    commit(cuts, part(2, ["c1"]))
    assert names(tmp_path) == ["c2", "c1"]


def test_parts_that_are_needed():
    kept = Kept(frozenset({"c1", "c4"}), 4, frozenset({"c6"}))
    assert [kept.needs(f"c{number}", number) for number in range(1, 8)] == [True, False, False, True, True, False, True]


def test_a_manifest_says_all_that_it_was_told():
    manifest = Manifest("c", 1, 2, 3, 4, ("a", "b"))
    assert Manifest.loads(manifest.dumps()) == manifest


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "parts": 3}', '{"format": 2, "parts": []}'])
def test_a_damaged_manifest_is_named(tmp_path, text):
    (tmp_path / "cuts").mkdir()
    (tmp_path / "cuts" / "c.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"cuts/c\.json cannot be used"):
        Manifests(tmp_path).read()
