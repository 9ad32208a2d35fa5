"""The inference, on plain data: which candidate is the loader, and why none is."""

from detrain.tracer.inference import changes, from_one_round, from_two_rounds, list_changes


def candidate(name, rows, **changed):
    """Something asked once in each of two iterations, holding `rows` rows."""
    one = {
        "full_name": name, "next": (name, "feed"), "file_name": "train.py", "line_no": 9, "kind": "method",
        "is_iterated": False, "is_late": False, "feeds": None, "times": [1, 1], "order": 0, "inside": None, "is_known": False, "is_capturable": True,
        "sizes": {".rows": ("builtins.list", rows, 1)},
    }  # fmt: skip
    return {**one, **changed}


def report(*candidates, **sizes):
    return {"candidates": list(candidates), "sizes": {k: ("builtins.list", n, 1) for k, n in sizes.items()}}


def names(verdict):
    return [one["full_name"] for one in verdict.loaders]


def test_what_holds_the_data_that_differs_is_the_loader():
    first = report(candidate("data.Data", 64), candidate("model.Model", 8, order=1))
    second = report(candidate("data.Data", 96), candidate("model.Model", 8, order=1))
    assert names(from_two_rounds(first, second, None)) == ["data.Data"]
    assert names(from_two_rounds(first, second, 32)) == ["data.Data"]


def test_a_smaller_second_data_set_does_as_well():
    verdict = from_two_rounds(report(candidate("data.Data", 96)), report(candidate("data.Data", 64)), 32)
    assert names(verdict) == ["data.Data"]


def test_what_is_not_asked_in_every_iteration_is_no_loader():
    first = report(candidate("data.Valid", 64, times=[0, 1]), candidate("data.Train", 64, order=1))
    second = report(candidate("data.Valid", 96, times=[0, 1]), candidate("data.Train", 96, order=1))
    assert names(from_two_rounds(first, second, None)) == ["data.Train"]


def test_batches_fetched_ahead_are_found_too():
    first = report(candidate("train.get_batch", 64, times=[4, 4], is_late=True))
    second = report(candidate("train.get_batch", 96, times=[4, 4], is_late=True))
    assert names(from_two_rounds(first, second, None)) == ["train.get_batch"]


def test_what_does_not_flow_into_gradients_is_no_loader_of_the_training():
    def both(rows):
        return report(candidate("data.Valid", rows, feeds=False), candidate("data.Train", rows, order=1, feeds=True))

    assert names(from_two_rounds(both(64), both(96), None)) == ["data.Train"]


def test_of_calls_within_calls_the_outer_is_the_loader():
    outer, inner = {"order": 0}, {"order": 1, "inside": 0}
    first = report(candidate("data.Data", 64, **outer), candidate("data.File", 64, **inner))
    second = report(candidate("data.Data", 96, **outer), candidate("data.File", 96, **inner))
    assert names(from_two_rounds(first, second, None)) == ["data.Data"]


def test_a_function_that_only_asks_a_loader_is_none():
    outer, inner = {"order": 0, "kind": "function"}, {"order": 1, "inside": 0}
    first = report(candidate("train.load", 64, **outer), candidate("data.Data", 64, **inner))
    second = report(candidate("train.load", 96, **outer), candidate("data.Data", 96, **inner))
    assert names(from_two_rounds(first, second, None)) == ["data.Data"]


def test_two_loaders_that_both_feed_the_update_are_both_named():
    first = report(candidate("data.Photos", 64), candidate("data.Paintings", 32, order=1))
    second = report(candidate("data.Photos", 96), candidate("data.Paintings", 48, order=1))
    assert names(from_two_rounds(first, second, None)) == ["data.Photos", "data.Paintings"]


def test_nothing_changed():
    same = report(candidate("data.Data", 64), rows=64)
    assert "has changed its size" in from_two_rounds(same, same, None).why_none


def test_a_difference_that_nothing_has_lists_what_differs():
    first, second = report(candidate("data.Data", 64), rows=64), report(candidate("data.Data", 96), rows=96)
    verdict = from_two_rounds(first, second, 7)
    assert verdict.why_none == "nothing differs by 7; what differs: rows +32"


def test_data_that_nobody_asks_for_is_listed():
    first, second = report(candidate("data.Data", 5), rows=64), report(candidate("data.Data", 5), rows=96)
    assert "holds what differs: rows +32" in from_two_rounds(first, second, None).why_none


def test_well_known_loaders_need_one_round_only():
    known = candidate("torch.utils.data.dataloader.DataLoader", 16, is_known=True, kind="next", is_iterated=True)
    assert names(from_one_round([candidate("data.Data", 64), known])) == [known["full_name"]]
    assert from_one_round([candidate("data.Data", 64)]).loaders == []


def test_a_thing_of_another_type_is_another_thing():
    assert changes({"x": ("builtins.list", 3, 1)}, {"x": ("builtins.tuple", 4, 1)}) == {}


def test_the_list_of_changes_begins_with_the_nearest_and_ends_with_how_many_more():
    found = {f"x[{n}]": (n, 2) for n in range(1, 20)} | {"x": (5, 1)}
    assert list_changes(found, limit=2) == "x +5, x[10] +10 and 18 more"
