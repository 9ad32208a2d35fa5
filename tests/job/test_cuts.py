"""A cut exists when all ranks have their parts of it, and not before."""

import re
from dataclasses import replace

import pytest

from detrain.errors import CheckpointError
from detrain.job.cuts import Cuts, Kept, Verdict
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
    assert cuts.add(1, part(1)) is None
    assert cuts.add(0, part(1)) is None
    assert names(tmp_path) == []
    verdict = cuts.add(2, part(1))
    assert verdict.trouble == ""
    assert Manifests(tmp_path).read() == [verdict.manifest]
    assert [(held.rank, held.directory) for held in verdict.manifest.parts] == [(n, f"/job/rank_{n}") for n in range(3)]


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
    verdict = cuts.add(2, part(1, **change))
    assert verdict.manifest is None
    assert re.search(why, verdict.trouble)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("order", "is_first_whole"),
    [("012 012", True), ("210 021", True), ("001122", False), ("010212", False), ("202110", False)],
)
def test_of_two_with_one_name_the_second_counts_though_a_rank_is_ahead(tmp_path, order, is_first_whole):
    """Behind the last epoch a training may be checkpointed twice: at the header of an epoch that does not come, and at the loop's end."""
    cuts, written, verdicts = make(tmp_path), [0, 0, 0], []
    for rank in map(int, order.replace(" ", "")):
        written[rank] += 1
        verdicts.append(cuts.add(rank, part(written[rank], name="c")))
    decided = [one for one in verdicts if one is not None]
    assert [one.trouble for one in decided] == ["", ""]
    assert decided[-1].manifest.sequence == 2
    assert Manifests(tmp_path).read() == [decided[-1].manifest]
    # The first exists only if no rank had put its second part in its place.
    assert (decided[0].manifest is not None) == is_first_whole


def test_what_all_ranks_have_already_is_no_trouble_and_what_some_lack_is(tmp_path):
    cuts = make(tmp_path, size=2)
    again = Part("c1", trouble="c1 is one that others build on", is_there=True)
    assert cuts.add(0, again) is None
    assert cuts.add(1, again) == Verdict(None)
    cuts.add(0, again)
    assert cuts.add(1, part(1)) == Verdict(None, "rank 0: c1 is one that others build on")
    assert names(tmp_path) == []


def test_none_through_one_that_is_not_whole(tmp_path):
    verdict = commit(make(tmp_path), part(2, ["c1"]))
    assert (verdict.manifest, verdict.trouble) == (None, "a resume would pass through c1, which is not whole")


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
