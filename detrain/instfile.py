"""inst.info: the structure of a program. The one module that reads and writes it.

A literal of Python, read with `ast.literal_eval`. A superset of the prototype's dict (`dataloader`, `loop_type`, `code_info`); ours
adds `version`, `sources` (digests of the files that hold the loops), `nests` and `complete`. File names inside the script's
folder are relative to it.
"""

from __future__ import annotations

import ast
import os
import pprint
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from detrain.errors import UsageError
from detrain.sites import find_loops

VERSION = 1


@dataclass(frozen=True)
class NestLoop:
    """One loop of a nest: where its header stands, and its part ("outer", "epoch" or "batch")."""

    file_name: str
    line_no: int
    part: str
    function: str = ""


@dataclass
class InstInfo:
    """The loop nests of a script, each outermost loop first."""

    nests: list[list[NestLoop]] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    #: True once a run of the script has come to its end: then no further nest is to be expected.
    is_complete: bool = False
    #: What the prototype's format says beyond the loops; kept as it was read.
    extra: dict[str, Any] = field(default_factory=dict)

    def parts(self) -> dict[str, dict[int, str]]:
        """Normalised file name to (header line to part)."""
        found: dict[str, dict[int, str]] = {}
        for nest in self.nests:
            for loop in nest:
                found.setdefault(os.path.normpath(loop.file_name), {})[loop.line_no] = loop.part
        return found

    def load_of(self, filename: str) -> tuple[int, int, str] | None:
        """For the file of a batch loop that loads its own data: its header, the line of the call if it is there too, the helper."""
        code = self.extra.get("code_info", {})
        if self.extra.get("loop_type", {}).get("type") != "ON_CUSTOM" or not code.get("loop_line_no"):
            return None
        here = os.path.normpath(filename)
        if os.path.normpath(code["loop_file_name"]) != here:
            return None
        is_here = os.path.normpath(code.get("dl_call_file_name", "")) == here and not code.get("wrapper_func")
        call_line = int(code["dl_call_line_no"]) if is_here else 0
        return int(code["loop_line_no"]), call_line, code.get("wrapper_func", "")

    def describe(self) -> str:
        """The first nest for a person: `train.py:12 (epoch) > train.py:15 (batch)`."""
        return "; ".join(
            " > ".join(f"{os.path.basename(loop.file_name)}:{loop.line_no} ({loop.part})" for loop in nest)
            for nest in self.nests
        )


def write(path: Path, info: InstInfo, folder: Path) -> None:
    """Write atomically; file names below `folder` become relative to it."""
    nests = [
        [
            {
                "file_name": _shorten(loop.file_name, folder),
                "line_no": loop.line_no,
                "part": loop.part,
                "function": loop.function,
            }
            for loop in nest
        ]
        for nest in info.nests
    ]
    document = {
        "version": VERSION,
        "sources": {_shorten(name, folder): digest for name, digest in info.sources.items()},
        "nests": nests,
        "complete": info.is_complete,
        "dataloader": info.extra.get("dataloader", {}),
        "dataloaders": info.extra.get("dataloaders", []),
        "loop_type": info.extra.get("loop_type", {"type": "ON_DATASET"}),
        "code_info": {
            **{
                key: _shorten(value, folder) if key.endswith("file_name") else value
                for key, value in info.extra.get("code_info", {}).items()
            },
            **_code_info(nests),
        },
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(pprint.pformat(document, sort_dicts=False, width=110) + "\n", encoding="utf-8")
    temporary.replace(path)


def _code_info(nests: list[list[dict[str, Any]]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for loop in nests[0] if nests else []:
        prefix = {"batch": "loop", "epoch": "epoch"}.get(loop["part"])
        if prefix:
            found[f"{prefix}_file_name"], found[f"{prefix}_line_no"] = loop["file_name"], str(loop["line_no"])
    return found


def _shorten(name: str, folder: Path) -> str:
    path = Path(os.path.normpath(name))
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else name


def read(path: Path, folder: Path) -> InstInfo:
    """Read an inst.info, ours or the prototype's. Raises `UsageError` saying what is wrong with it."""
    try:
        document = ast.literal_eval(path.read_text(encoding="utf-8"))
    except (ValueError, SyntaxError, TypeError) as error:
        raise UsageError(f"{path} is not a Python literal: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds a {type(document).__name__}, not a dict")
    for key, kind in (
        ("version", int),
        ("code_info", dict),
        ("dataloader", dict),
        ("loop_type", dict),
        ("sources", dict),
    ):
        if not isinstance(document.get(key, kind()), kind):
            raise UsageError(f"{path}: {key} is a {type(document[key]).__name__}, not a {kind.__name__}")
    if document.get("version", 0) > VERSION:
        raise UsageError(f"{path} has version {document['version']}; this detrain reads up to {VERSION}")
    try:
        nests = _nests(document)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} lacks or garbles {error}") from None
    extra = {key: document[key] for key in ("dataloader", "dataloaders", "loop_type", "code_info") if key in document}
    code = extra.get("code_info", {})
    extra["code_info"] = {
        key: _find(value, folder) if key.endswith("file_name") else value for key, value in code.items()
    }
    return InstInfo(
        nests=[
            [NestLoop(_find(loop.file_name, folder), loop.line_no, loop.part, loop.function) for loop in nest]
            for nest in nests
        ],
        sources={_find(name, folder): digest for name, digest in document.get("sources", {}).items()},
        is_complete=bool(document.get("complete", False)),
        extra=extra,
    )


def hand_on(source: Path, target: Path) -> None:
    """Give a run that starts over what was traced or written by hand; what a run had found by itself, it finds again."""
    try:
        text = source.read_text(encoding="utf-8")
        document = ast.literal_eval(text)
    except (OSError, ValueError, SyntaxError, TypeError):
        return
    is_own = (
        isinstance(document, dict)
        and "version" in document
        and "update_call_line_no" not in document.get("code_info", {})
    )
    if not is_own:
        target.write_text(text, encoding="utf-8")


def digest(content: bytes) -> str:
    """xxh3-128 of a source file's content, in hex."""
    return xxhash.xxh3_128_hexdigest(content)


def digest_of(filename: str) -> str:
    """The digest of a file; "" if it cannot be read."""
    try:
        return digest(Path(filename).read_bytes())
    except OSError:
        return ""


def _find(name: str, folder: Path) -> str:
    """Where a file is that inst.info names; one written on another machine may name a folder that is not here."""
    path = folder / name
    return str(path if path.exists() or not (folder / path.name).exists() else folder / path.name)


def check_lines(path: Path, info: InstInfo) -> None:
    """Raises `UsageError` if a line that is said to hold a loop holds none."""
    for name, lines in info.parts().items():
        try:
            tree = ast.parse(Path(name).read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise UsageError(f"{path} names {name}, which cannot be read: {error}") from None
        there = [site.line for site in find_loops(tree)]
        for line, part in lines.items():
            if line not in there:
                raise UsageError(
                    f"{path} names {name}:{line} as the {part} loop, but no loop begins on that line; loops of that file begin on "
                    f"lines {', '.join(map(str, there)) or 'none'}. Mend the file, or remove it to have the loops looked for"
                )


def loader_keys(
    loaders: Sequence[Mapping[str, Any]], update: Sequence[Any] | None, folder: Path
) -> dict[str, dict[str, Any] | list[Any]]:
    """`dataloader`, `dataloaders`, `loop_type` and the calls in `code_info`; the prototype's keys speak of the first loader."""
    names = ("full_name", "module", "init", "iter", "next")
    entries = [{**{name: _pair(one[name]) for name in names}, "persistent": one["is_capturable"]} for one in loaders]
    code: dict[str, str] = {}
    if loaders:
        first = loaders[0]
        code["dl_call_file_name"], code["dl_call_line_no"] = _shorten(first["file_name"], folder), str(first["line_no"])
        if first["wrapper"]:
            code["wrapper_module"], code["wrapper_func"] = first["wrapper"]
    if update:
        code["update_call_file_name"], code["update_call_line_no"] = _shorten(update[0], folder), str(update[1])
    is_custom = bool(loaders) and not loaders[0]["is_iterated"]
    return {
        "dataloader": entries[0] if entries else {},
        "dataloaders": entries,
        "loop_type": {"type": "ON_CUSTOM" if is_custom else "ON_DATASET"},
        "code_info": code,
    }


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _nests(document: dict[str, Any]) -> list[list[NestLoop]]:
    if "nests" in document:
        return [
            [NestLoop(loop["file_name"], int(loop["line_no"]), loop["part"], loop.get("function", "")) for loop in nest]
            for nest in document["nests"]
        ]
    code = document["code_info"]
    nest = []
    if code.get("epoch_line_no"):
        nest.append(NestLoop(code["epoch_file_name"], int(code["epoch_line_no"]), "epoch"))
    nest.append(NestLoop(code["loop_file_name"], int(code["loop_line_no"]), "batch"))
    return [nest]
