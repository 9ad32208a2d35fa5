"""What several tests need and is long in the making: made once per session, by whichever of its processes comes first."""

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest


def once(factory: pytest.TempPathFactory, facts: object, make: Callable[[], Any]) -> Any:
    """What `make` returns; `facts` say what that is, by their `repr`. It is kept on disk, so it must be possible to pickle it."""
    own = factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once"
    shared.mkdir(exist_ok=True)
    path = shared / f"{hashlib.sha1(repr(facts).encode()).hexdigest()}.pickle"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return pickle.loads(path.read_bytes())  # what another process of these tests has written
        made = make()
        path.write_bytes(pickle.dumps(made))
        return made
