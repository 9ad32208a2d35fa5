"""What `detrain.run` makes a script of, and what it refuses."""

from __future__ import annotations

import shutil

import pytest

from detrain.errors import UsageError
from detrain.notebook import child, function


def train(*args: object, **kwargs: object) -> None: ...


@pytest.fixture
def started(monkeypatch) -> list[tuple[object, ...]]:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(child, "run", lambda *args: calls.append(args))
    return calls


def test_the_script_calls_the_function_with_the_arguments_given(started):
    function.run(train, [3, "x"], {"rate": 0.1}, options=["--every", "epoch"])
    ((name, source, value, options, folders),) = started
    assert (name, value, options) == ("train", "result", ["--every", "epoch"])
    assert source.endswith("import train\n\nresult = train(3, 'x', rate=0.1)\n")
    assert len(folders) == 1


def test_a_module_of_a_package_is_found_from_above_the_package(started):
    function.run(shutil.copyfile, ["a", "b"], name="copy")
    ((name, source, _, _, _),) = started
    assert (name, source) == ("copy", "from shutil import copyfile\n\nresult = copyfile('a', 'b')\n")


@pytest.mark.parametrize("value", [object(), print, float("nan"), [train]])
def test_an_argument_that_is_no_plain_value_is_refused(started, value):
    with pytest.raises(UsageError, match="is no plain value"):
        function.run(train, [value])
    assert not started


@pytest.mark.parametrize("refused", [lambda: None, len, child.Files.of])
def test_what_no_other_process_can_find_is_refused(started, refused):
    with pytest.raises(UsageError, match="needs a function of the top level"):
        function.run(refused)


@pytest.mark.parametrize("name", ["", "../x", "a b", "x.y"])
def test_a_name_that_is_no_file_name_is_refused(name):
    with pytest.raises(UsageError, match="cannot name a run"):
        child.Files.of(name)
