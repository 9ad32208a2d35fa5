"""Trouble that comes again and again is said once, and when it is over."""

from __future__ import annotations

import pytest

from detrain import messages
from detrain.messages import Trouble

FULL, READ_ONLY = OSError(28, "No space left on device", "a"), OSError(30, "Read-only file system")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(messages, "_print", lines.append)
    monkeypatch.setattr(messages.time, "strftime", lambda _: "12:00:00")
    return lines


@pytest.fixture
def trouble() -> Trouble:
    return Trouble("slug", "thing failed", "things failed", "they work")


def test_the_same_trouble_is_said_once_and_when_it_is_over(said: list[str], trouble: Trouble) -> None:
    trouble.worked()
    for name in "abcdefgh":
        trouble.failed(OSError(28, "No space left on device", name), f"no {name}")
    trouble.worked()
    trouble.worked()
    assert said == ["warning: no a [slug]", "8 things failed since 12:00:00; now they work"]
    trouble.failed(FULL, "no x")
    trouble.worked()
    assert said[2:] == ["warning: no x [slug]", "1 thing failed since 12:00:00; now they work"]


def test_another_trouble_is_said_as_well(said: list[str], trouble: Trouble) -> None:
    for error in (FULL, READ_ONLY, FULL, MemoryError()):
        trouble.failed(error, str(error))
    assert len(said) == 3


def test_what_has_failed_until_the_end_is_counted_there(said: list[str], trouble: Trouble) -> None:
    trouble.failed(FULL, "no")
    trouble.end()
    assert said == ["warning: no [slug]"]
    trouble.failed(FULL, "no")
    trouble.end()
    assert said[1:] == ["warning: 2 things failed since 12:00:00, to the end of the script [slug]"]


def test_a_warning_that_was_said_once_is_not_said_again_for_what_detrain_does():
    import itertools
    import warnings

    from detrain.messages import unheard
    from detrain.state.handlers.iterators import reduce_iterator

    source = "def warn():\n    warnings.warn('once')\n"
    namespace = {"warnings": warnings, "__name__": "script"}
    exec(source, namespace)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        said = []
        warnings.showwarning = lambda message, *_: said.append(str(message))
        before = list(warnings.filters)
        for _ in range(3):
            namespace["warn"]()
            reduce_iterator(itertools.count(3))
            with unheard(UserWarning):
                namespace["warn"]()
        assert list(warnings.filters) == before
    assert said == ["once"]
