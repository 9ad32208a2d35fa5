"""What keys a run's stream of entropy: the program, its arguments and the seed. One command repeats itself, and no other has its ids.

Of the program count its file's name and content, not the folder: on another machine it is the same. A run keeps its key for good, so
that an attempt with a changed source (`--trust-changes`) still draws what the run has drawn.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
from pathlib import Path

from detrain.launch.request import Request
from detrain.loops import instfile
from detrain.store.record import RunRecord


def key_of(request: Request, record: RunRecord | None) -> str:
    """The key of an attempt. `record` is of the run that it goes on with, None if it begins one."""
    if record is None:
        return key_of_program(request)
    if record.entropy is not None:
        return record.entropy
    # A run that an earlier detrain began, which looked at these alone.
    return " ".join([str(record.seed), *record.arguments])


def key_of_program(request: Request) -> str:
    """The key of a run that begins now. Nothing of the program is imported."""
    if request.module:
        name, content = request.module, _source_of_module(request.module)
    else:
        name, content = _source_of_script(request.script)
    told = json.dumps([request.seed, name, instfile.digest(content), *request.arguments])
    if request.rank:
        told += f" rank {request.rank}"  # the first draws what it would draw alone
    return instfile.digest(told.encode())  # short, however many arguments there are


def _source_of_script(path: str) -> tuple[str, bytes]:
    """Name and source of a script; of a folder or an archive, of the `__main__` in it."""
    if os.path.isdir(path):
        return "__main__.py", _read(Path(path, "__main__.py"))
    content = _read(Path(path))
    if path.endswith((".py", ".pyw")):
        return os.path.basename(path), content
    import zipfile  # few scripts are archives, and every start would wait for it
    import zipimport

    if zipfile.is_zipfile(path):
        with contextlib.suppress(ImportError, OSError):  # compiled only, say: then the whole archive counts
            content = zipimport.zipimporter(path).get_data(os.path.join(path, "__main__.py"))
    return os.path.basename(path), content


def _source_of_module(name: str) -> bytes:
    """The source that `python -m` would run, from the folder that it would look in first; empty where none is found."""
    sys.path.insert(0, os.getcwd())
    try:
        top, *below = name.split(".")
        spec = importlib.util.find_spec(top)  # imports nothing, as it has no dot
    except (ImportError, ValueError):
        return b""
    finally:
        sys.path.pop(0)
    if spec is None:
        return b""
    if spec.submodule_search_locations is None:
        return _read(Path(spec.origin)) if spec.origin else b""
    places = [Path(place) for place in spec.submodule_search_locations]
    for part in below[:-1]:
        places = [place / part for place in places if (place / part).is_dir()]
    for place in places:
        files = [place / below[-1] / "__main__.py", place / f"{below[-1]}.py"] if below else [place / "__main__.py"]
        for file in files:
            if file.is_file():
                return _read(file)
    return b""


def _read(path: Path) -> bytes:
    """What is in a file; nothing if it cannot be read, and Python will say so."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
