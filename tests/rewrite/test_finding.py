"""Modules of libraries are found as Python finds them, and not twice."""

import importlib.machinery
import importlib.util
import sys

import pytest

from detrain.adapters import library_loops
from detrain.rewrite import importer
from detrain.rewrite.importer import Instrumenter, UserFinder, is_user_file


@pytest.fixture
def finder(tmp_path, monkeypatch):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "some_library.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(library))
    made = UserFinder(Instrumenter({}, None, lambda *_: None), lambda _: None)
    monkeypatch.setattr(sys, "meta_path", [made, *sys.meta_path])
    return made


def test_a_module_of_a_library_is_searched_for_once(finder, monkeypatch):
    searched = []

    class Counting(importlib.machinery.PathFinder):
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            searched.append(name)
            return super().find_spec(name, path, target)

    places = [Counting if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", places)
    monkeypatch.setattr(importer, "PathFinder", Counting)
    spec = importlib.util.find_spec("some_library")
    assert searched == ["some_library"]
    assert type(spec.loader) is importlib.machinery.SourceFileLoader


def test_a_finder_between_us_and_the_path_comes_first(finder, monkeypatch):
    other = importlib.machinery.ModuleSpec("some_library", None, origin="elsewhere")

    class Other:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return other if name == "some_library" else None

    monkeypatch.setattr(sys, "meta_path", [finder, Other, *sys.meta_path[1:]])
    assert importlib.util.find_spec("some_library") is other


def test_links_say_nothing_of_whose_a_file_is(tmp_path):
    mine, packages = tmp_path / "mine", tmp_path / "site-packages"
    for folder in (mine, packages):
        folder.mkdir()
        (folder / "file.py").write_text("")
    (packages / "linked").symlink_to(mine)
    (packages / "linked.py").symlink_to(mine / "file.py")
    (mine / "linked.py").symlink_to(packages / "file.py")
    is_users = {
        mine / "file.py": True,
        packages / "file.py": False,
        packages / "linked" / "file.py": True,
        packages / "linked.py": True,
        mine / "linked.py": False,
    }
    assert {path: is_user_file(str(path)) for path in is_users} == is_users


@pytest.mark.parametrize(
    ("only_known", "expected"),
    [
        (
            False,
            {"torch": True, "torch/nn": True, "torch/run": False, "keras/src/backend/jax": False, "library": False},
        ),
        (True, {"torch": True, "torch/nn": True, "torch/run": False, "keras/src/backend/jax": False, "library": True}),
    ],
    ids=["to be found", "known"],
)
def test_folders_in_which_no_loop_carries_hooks_are_passed_over(tmp_path, monkeypatch, only_known, expected):
    library = tmp_path / "site-packages"
    parts = {str(library / "torch/run/loops.py"): {3: "epoch"}}
    instrumenter = Instrumenter(parts, None, lambda *_: None, only_known=only_known, libraries=library_loops)
    assert {name: instrumenter.passes_over(str(library / name)) for name in expected} == expected
    made = UserFinder(instrumenter, lambda _: None)
    searched = []
    monkeypatch.setattr(importer.PathFinder, "find_spec", lambda name, *_: searched.append(name))
    for name in expected:
        made.find_spec(f"{name.replace('/', '.')}.some", [str(library / name)])
    assert searched == [f"{name.replace('/', '.')}.some" for name, is_passed in expected.items() if not is_passed]


def test_a_framework_among_the_users_files_is_the_users(tmp_path):
    made = UserFinder(Instrumenter({}, None, lambda *_: None, libraries=library_loops), lambda _: None)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "mine.py").write_text("x = 1\n")
    assert type(made.find_spec("torch.mine", [str(tmp_path / "torch")]).loader) is importer.UserLoader
