"""Which modules a script's own files import, read from their source.

With the standard library alone: `./run` runs this very file before anything is installed, to learn which framework is to be.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

#: Module to the extra of the distribution that brings it.
EXTRAS = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow"}


def own_files(script: Path, folder: Path, parse: Callable[[Path], ast.Module | None]) -> dict[Path, set[str]]:
    """The script and what it imports from `folder`, directly or not; of each file, what it imports. None from `parse`: it is left out."""
    found: dict[Path, set[str]] = {}
    pending = [script]
    while pending:
        file = pending.pop()
        tree = parse(file) if file not in found else None
        if tree is None:
            continue
        found[file] = set()
        for name, start in _imported(tree, file):
            if start is None:
                found[file].add(name)
            place = Path(start or folder, *name.split("."))
            # A package's __init__ is run before what is in it.
            around = [one / "__init__.py" for one in place.parents if one.is_relative_to(start or folder)]
            pending += [one for one in (place.with_suffix(".py"), place / "__init__.py", *around) if one.is_file()]
    return found


def _imported(tree: ast.Module, file: Path) -> list[tuple[str, Path | None]]:
    """Names, with the folder that a relative one begins at."""
    found: list[tuple[str, Path | None]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(one.name, None) for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else None
            names = [f"{node.module}.{one.name}" if node.module else one.name for one in node.names]
            found += [(name, start) for name in ([node.module] if node.module else []) + names]
    return found


def extras(words: list[str]) -> list[str]:
    """The extras that a command line `[OPTIONS] SCRIPT [ARGS]…` or `[OPTIONS] -m MODULE [ARGS]…` needs."""
    script, folder = _script(words)
    if script is None:
        return []
    imported = set().union(*own_files(script, folder, _parse).values())
    return sorted({EXTRAS[top] for top in (name.partition(".")[0] for name in imported) if top in EXTRAS})


def _script(words: list[str]) -> tuple[Path | None, Path]:
    """The script and the folder that it imports from. An option's value may be a file as well; scripts are called `….py` as a rule."""
    if "-m" in words[:-1]:
        place = Path(*words[words.index("-m") + 1].split("."))
        candidates = [place.with_suffix(".py"), place / "__main__.py"]
        return next((one for one in candidates if one.is_file()), None), Path()
    paths = [Path(word) for word in words]
    files = [path for path in paths if path.is_file()]
    folders = [path for path in paths if (path / "__main__.py").is_file()]
    for path in [one for one in files if one.suffix == ".py"] or files:
        return path, path.resolve().parent
    for path in folders:
        return path / "__main__.py", path
    return None, Path()


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None  # Python says what is wrong with it when it runs


if __name__ == "__main__":
    sys.stdout.write(" ".join(extras(sys.argv[1:])))
