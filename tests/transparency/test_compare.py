"""The comparison notices what it is there to notice."""

from collections.abc import Callable
from typing import Any

import pytest

Same = Callable[..., Any]


def test_a_script_that_cannot_tell_passes_under_a_naive_launcher(naive: Same) -> None:
    assert naive("print('hello')", says="hello").stdout == "hello\n"


@pytest.mark.parametrize(
    ("what", "script", "status"),
    [
        ("stderr", "raise ValueError('frames of the launcher stand in the traceback')", 1),
        ("stdout", "import sys; print(sys.path[0])", 0),
        ("status", "import sys; sys.exit(4 if sys._getframe(0).f_back else 3)", 3),
        ("files", "import sys; open('mark', 'w').write(repr(sys._getframe(0).f_back))", 0),
    ],
)
def test_a_naive_launcher_is_found_out(naive: Same, what: str, script: str, status: int) -> None:
    with pytest.raises(AssertionError, match=f"{what} differs"):
        naive(script, status=status)


def test_a_case_that_does_not_do_what_it_says_is_found_out(naive: Same) -> None:
    with pytest.raises(AssertionError, match="python itself ended with 0"):
        naive("pass", status=1)
    with pytest.raises(AssertionError, match="python itself does not say 'goodbye'"):
        naive("print('hello')", says="goodbye")
