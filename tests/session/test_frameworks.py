"""What is asked of all frameworks that a script has loaded."""

import pytest

from detrain.adapters.loaded import Frameworks
from detrain.errors import RestoreError


def caused_by(cause: BaseException) -> RestoreError:
    error = RestoreError("the generator failed on the way to its saved place")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(), FileNotFoundError("data.bin"), RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        caused_by(FileNotFoundError("data.bin")), caused_by(MemoryError()),
    ],
)  # fmt: skip
def test_shortage_is_of_the_machine(error):
    assert Frameworks().is_shortage(error)


@pytest.mark.parametrize("error", [RuntimeError("no"), caused_by(ValueError("no")), RestoreError("no"), None])
def test_anything_else_is_of_the_checkpoint(error):
    assert not Frameworks().is_shortage(error)
