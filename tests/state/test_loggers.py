"""Loggers that no variable names: what the loop has set on them comes back, and what merely came about counts for nothing."""

import logging
import sys
import types
from pathlib import Path

import pytest

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.proof.comparison import Comparison, Side
from detrain.state.restore import Origins, Restore
from detrain.state.walk import Walk
from detrain.store.checkpoint import Checkpoint
from detrain.store.meta import Meta


@pytest.fixture
def new_loggers(monkeypatch):
    """Makes the process one that has no loggers; also without the handlers that pytest adds for a test."""

    def begin():
        root = logging.RootLogger(logging.WARNING)
        monkeypatch.setattr(logging, "root", root)
        monkeypatch.setattr(logging.Logger, "root", root)
        monkeypatch.setattr(logging.Logger, "manager", logging.Manager(root))

    return begin


def look():
    walk = Walk()
    walk.root("process.logging", logging.root)
    return walk.run()


def restore(tree):
    live = look()
    Restore(tree, live, Origins(live)).run({"process.logging": logging.root})


def set_up_a_handler():
    logging.getLogger("train").addHandler(logging.StreamHandler(sys.stderr))


def set_up_a_filter():
    logging.getLogger("train").addFilter(logging.Filter("train.one"))


def turn_off():
    logging.getLogger("train").disabled = True


def keep_apart():
    logging.getLogger("train").propagate = False


def set_a_level():
    logging.getLogger("train").setLevel(logging.DEBUG)


def nothing():
    pass


CHANGES = [set_up_a_handler, set_up_a_filter, turn_off, keep_apart, set_a_level]


def told():
    """What a record to the logger meets."""
    one = logging.getLogger("train")
    filters = [(type(found), found.name) for found in one.filters]
    return one.level, one.disabled, one.propagate, filters, [(type(found), found.stream) for found in one.handlers]


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_loop_has_set_comes_back_in_an_attempt_that_has_not_set_it(new_loggers, change):
    new_loggers()
    change()
    tree, before = look().tree, told()
    new_loggers()
    restore(tree)
    assert told() == before


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_loop_has_undone_is_undone_again(new_loggers, change):
    new_loggers()
    logging.getLogger("train")
    tree, before = look().tree, told()
    new_loggers()
    change()
    restore(tree)
    assert told() == before


def test_a_restore_makes_no_logger_that_nobody_has_asked_for(new_loggers):
    new_loggers()
    logging.getLogger("a.library.somewhere")
    tree = look().tree
    new_loggers()
    restore(tree)
    assert not logging.root.manager.loggerDict


@pytest.fixture
def differences(new_loggers):
    """Does one thing in a run and another in a second, and compares: paths, and what does not count."""

    def run(one, other):
        sides = []
        for change in (one, other):
            new_loggers()
            change()
            sides.append(side_of(look().tree))
        found = Comparison(*sides)
        found.run()
        return [difference["path"] for difference in found.differences], [note[0] for note in found.notes]

    return run


def side_of(tree):
    meta = Meta(1, folder="/nowhere", entropy=[0, 0])
    return Side(Checkpoint(Path("/run/checkpoint_0_0.h5"), meta), tree)


@pytest.mark.parametrize("change", CHANGES)
def test_what_one_run_has_set_and_the_other_has_not_is_a_difference(differences, change):
    for pair in ((change, nothing), (nothing, change)):
        paths, notes = differences(*pair)
        assert all("train" in path for path in paths)
        assert (len(paths), notes) == (1, [])


def import_a_library():
    """As libraries do that are installed in one environment and not in the other."""
    logging.getLogger("a_library").addHandler(logging.NullHandler())
    logging.getLogger("a_library.deep.down")


def test_loggers_that_a_library_has_made_are_no_difference(differences):
    assert differences(import_a_library, nothing) == ([], [])
    assert differences(nothing, import_a_library) == ([], [])


def test_what_a_library_has_set_on_its_own_loggers_is_noted_where_one_side_has_loaded_it(differences, monkeypatch):
    monkeypatch.setitem(sys.modules, "a_library", types.ModuleType("a_library"))

    def import_and_set():
        import_a_library()
        logging.getLogger("a_library").addHandler(logging.StreamHandler())
        logging.getLogger("a_library").setLevel(logging.ERROR)
        logging.getLogger("a_library").propagate = False

    assert differences(import_and_set, nothing) == ([], ["level of a library's logger a_library"])
    # The script may have set it, where both have the library.
    assert differences(import_and_set, import_a_library) == (["process.logging.<levels>.a_library"], [])
