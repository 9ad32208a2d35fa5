"""A set is made again with its table: it goes on to behave as the one that was captured."""

import dataclasses
import enum
import pathlib
import random

import pytest

from detrain.state.handlers import hashtables


@dataclasses.dataclass(frozen=True)
class Cell:
    row: int
    column: str


class Color(enum.Enum):
    RED = 1


def _lived(rng: random.Random) -> set:
    """A set with a history of additions, removals and pops."""
    made = set()
    for _ in range(rng.randrange(300)):
        match rng.choice(["add", "add", "add", "pop", "discard", "update"]):
            case "add":
                made.add(
                    rng.choice(
                        [rng.randrange(2000), str(rng.randrange(99)), (1, Cell(rng.randrange(9), "a")), rng.random()]
                    )
                )
            case "pop" if made:
                made.pop()
            case "discard" if made:
                made.discard(rng.choice(list(made)))
            case "update":
                made |= {rng.randrange(3000) for _ in range(rng.randrange(3))}
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_set_made_again_goes_on_as_the_first_one_does(seed):
    rng = random.Random(seed)
    first, second = _lived(rng), {"something else"}
    table = hashtables.read(first)
    assert hashtables.write(second, list(first), table)
    assert hashtables.read(second) == table
    for _ in range(200):
        number = rng.randrange(4000)
        match rng.choice(["add", "pop", "discard"]):
            case "add":
                first.add(number), second.add(number)
            case "pop" if first:
                assert first.pop() == second.pop()
            case "discard":
                first.discard(number), second.discard(number)
        assert list(first) == list(second)


def test_the_finger_of_pop_outlives_a_table_that_shrinks_and_grows():
    first = set(range(40))
    for _ in range(39):
        first.pop()
    before = len(hashtables.read(first)[1])
    for number in range(1000, 1100):  # the removed ones' slots are used up: the table is made again, and smaller
        first.add(number), first.discard(number)
    assert len(hashtables.read(first)[1]) < before
    second = set()
    assert hashtables.write(second, list(first), hashtables.read(first))
    for one in (first, second):
        one.update(range(2000, 2200))
    assert [first.pop() for _ in range(len(first))] == [second.pop() for _ in range(len(second))]


@pytest.mark.parametrize("seed", range(20))
def test_a_frozen_set_made_again_is_the_same(seed):
    lived = frozenset(_lived(random.Random(seed)) | {Color.RED, pathlib.Path("a")})
    made = hashtables.make_frozen(frozenset, list(lived), hashtables.read(lived))
    assert list(made) == list(lived)
    assert (made, hash(made)) == (lived, hash(lived))


def test_tables_of_what_hashes_by_address_are_not_told():
    assert hashtables.read({object()}) is None
    assert hashtables.read({(1, object())}) is None
    assert hashtables.read({float("nan")}) is None


def test_elements_that_would_lie_elsewhere_are_not_written():
    table = hashtables.read({1, 2, 3})
    made = {7}
    assert not hashtables.write(made, [1, 2, 4], table)
    assert made == set()
    assert not hashtables.write(made, [1, 2], table)
    assert hashtables.make_frozen(frozenset, [4, 5, 6], table) is None
