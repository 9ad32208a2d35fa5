"""inst.info: the structure of a program. The one module that reads and writes it.

A literal of Python, read with `ast.literal_eval`. A superset of the prototype's dict (`dataloader`, `loop_type`, `code_info`); ours
adds `version`, `sources` (digests of the files that hold the loops), `nests` and `complete`. File names inside the script's
folder are relative to it.
"""

from __future__ import annotations

import ast
import os
import pprint
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from detrain.errors import UsageError
from detrain.loops.sites import find_loops

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
    #: True once a run of the script has finished: then no further nest is to be expected.
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

    def nums_in_nest(self) -> dict[tuple[str, int], int]:
        """Normalised file name and header line to how often the loop stands in a nest, where that is more than once."""
        found: dict[tuple[str, int], int] = {}
        for nest in self.nests:
            for key, number in Counter((os.path.normpath(loop.file_name), loop.line_no) for loop in nest).items():
                if number > 1:
                    found[key] = max(found.get(key, 0), number)
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
    """Read an inst.info, ours or the prototype's. Raises `UsageError` saying where what is wrong with it, and what to do."""
    tree, document = _parse(path)
    damage = _misfit(document, tree, _DOCUMENT, "") or _what_lacks(document, tree)
    if damage is not None:
        raise _damaged(path, *damage)
    if document.get("version", 0) > VERSION:
        raise UsageError(f"{path} has version {document['version']}; this detrain reads up to {VERSION}")
    nests = _nests(document)
    extra: dict[str, Any] = {
        key: document[key] for key in ("dataloader", "dataloaders", "loop_type", "code_info") if key in document
    }
    for loader in (extra.get("dataloader"), *extra.get("dataloaders", ())):
        if loader:
            loader.setdefault(
                "full_name", ".".join(loader.get("next", ()))
            )  # what it is called, where it was written by hand
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
        tree, document = _parse(source)
    except UsageError:
        return
    if _misfit(document, tree, _DOCUMENT, "") is not None:
        return
    if "version" not in document or "update_call_line_no" in document.get("code_info", {}):
        target.write_bytes(source.read_bytes())


def digest(content: bytes) -> str:
    """xxh3-128 of a source file's content, in hex."""
    return xxhash.xxh3_128_hexdigest(content)


def changed_sources(sources: Mapping[str, str]) -> list[str]:
    """Of source files with their digests of then, those that are others now, by name."""
    return sorted(name for name, digest in sources.items() if digest_of(name) != digest)


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


def check_lines(path: Path, info: InstInfo, *, has_checkpoints: bool = False) -> None:
    """Raises `UsageError` if a line that is said to hold a loop holds none. With checkpoints the loops are not to be found again."""
    way_out = (
        "Put the source back as it was, or start over with --fresh (the old run is kept)"
        if has_checkpoints
        else "Correct the file, or remove it so that detrain finds the loops"
    )
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
                    f"lines {', '.join(map(str, there)) or 'none'}. {way_out}"
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


# --- what can be wrong with a file ---

_LINE, _PAIR, _PART = "the number of a line", "two texts in brackets, module and name", "'outer', 'epoch' or 'batch'"
_LOADER = {"full_name": str, "module": str, "init": _PAIR, "iter": _PAIR, "next": _PAIR, "persistent": bool}
_FILES = ("loop", "epoch", "dl_call", "update_call")
#: What the file holds, if it holds it: a dict by its keys (others are anybody's), a list by its elements.
_DOCUMENT = {
    "version": int,
    "sources": {"": str},  # whatever the key
    "nests": [[{"file_name": str, "line_no": _LINE, "part": _PART, "function": str}]],
    "complete": bool,
    "dataloader": _LOADER,
    "dataloaders": [_LOADER],
    "loop_type": {"type": str},
    "code_info": {
        **{f"{name}_file_name": str for name in _FILES}, **{f"{name}_line_no": _LINE for name in _FILES},
        "wrapper_module": str, "wrapper_func": str,
    },
}  # fmt: skip
_Damage = tuple[int, str]  # line, what is wrong there
_NAMES = {str: "a text in quotes", int: "a whole number", bool: "True or False"}
_LITERALS = (ast.Constant, ast.Dict, ast.List, ast.Tuple, ast.UnaryOp)


def _damaged(path: Path, line: int, what: str) -> UsageError:
    return UsageError(
        f"{path}, line {line}: {what}. Correct it there; or remove the file, and detrain finds the training loop again (a data loader "
        "is found by `detrain trace`)"
    )


def _parse(path: Path) -> tuple[ast.expr, dict[str, Any]]:
    """The file's syntax, and its content. Raises `UsageError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    try:
        text = content.decode()
        if "\0" in text:
            raise _damaged(path, text.count("\n", 0, text.index("\0")) + 1, "this is no text")
        if not text.strip():
            raise _damaged(path, 1, "there is nothing in the file")
        tree = ast.parse(text.lstrip(" \t"), mode="eval").body
        foreign = next((node for node in ast.walk(tree) if isinstance(node, ast.expr) and not _is_plain(node)), None)
        if foreign is not None:
            raise _damaged(path, foreign.lineno, _what_is_foreign(foreign))
        document = ast.literal_eval(tree)
    except UnicodeDecodeError as error:
        raise _damaged(path, content.count(b"\n", 0, error.start) + 1, "this is no text (not UTF-8)") from None
    except SyntaxError as error:
        raise _damaged(path, error.lineno or 1, f"Python cannot read it: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise _damaged(path, 1, "what is in the file is nested too deeply to be read") from None
    if not isinstance(document, dict):
        raise _damaged(path, tree.lineno, f"the file must contain a dict in braces, but contains {_shown(tree)}")
    return tree, document


def _is_plain(node: ast.expr) -> bool:
    """A literal of texts, numbers, lists, tuples and dicts with texts for keys."""
    if isinstance(node, ast.Dict):
        return all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys)
    if isinstance(node, ast.UnaryOp):
        return (
            isinstance(node.op, ast.USub)
            and isinstance(node.operand, ast.Constant)
            and type(node.operand.value) in (int, float)
        )
    return isinstance(node, _LITERALS)


def _what_is_foreign(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return f"{node.id} stands there without quotes"
    if isinstance(node, ast.Dict):
        return f"a key of {_shown(node)} is no text in quotes"
    return f"{_shown(node)} is no plain value (a text in quotes, a number, True, False, a list, a dict)"


def _shown(node: ast.expr, most: int = 40) -> str:
    text = ast.unparse(node)
    return text if len(text) <= most else f"{text[:most]}…"


def _misfit(value: object, node: ast.expr, shape: Any, name: str) -> _Damage | None:
    """The first place at which a value is not of its shape."""
    if isinstance(shape, dict) and isinstance(value, dict) and isinstance(node, ast.Dict):
        parts = [(key, value[key], child, shape.get(key, shape.get(""))) for key, child in _children(node)]
    elif isinstance(shape, list) and isinstance(value, (list, tuple)) and isinstance(node, (ast.List, ast.Tuple)):
        parts = [(str(n), one, child, shape[0]) for n, (one, child) in enumerate(zip(value, node.elts, strict=True))]
    elif _fits(value, shape):
        return None
    else:
        wanted = (
            "a dict" if isinstance(shape, dict) else "a list" if isinstance(shape, list) else _NAMES.get(shape, shape)
        )
        return node.lineno, f"{name} is to be {wanted}, and is {_shown(node)}"
    found = (_misfit(one, child, part, f"{name}.{key}" if name else key) for key, one, child, part in parts if part)
    return next((one for one in found if one is not None), None)


def _children(node: ast.Dict) -> list[tuple[str, ast.expr]]:
    """Of a key that is there twice the last counts, as it does in the value."""
    return list(
        {ast.literal_eval(key): child for key, child in zip(node.keys, node.values, strict=True) if key}.items()
    )


def _fits(value: object, shape: object) -> bool:
    if shape is _LINE:  # the prototype writes lines as texts, and an empty one for none
        return (type(value) is int and value >= 0) or (isinstance(value, str) and (value == "" or value.isdecimal()))
    if shape is _PAIR:
        return isinstance(value, (list, tuple)) and len(value) in (0, 2) and all(isinstance(one, str) for one in value)
    if shape is _PART:
        return value in ("outer", "epoch", "batch")
    return type(value) is shape


def _what_lacks(document: dict[str, Any], tree: ast.expr) -> _Damage | None:
    """A key that has to be there and is not; the shapes are right."""
    assert isinstance(tree, ast.Dict)
    lines = dict(_children(tree))
    if "nests" in document:
        loops = lines["nests"]
        assert isinstance(loops, (ast.List, ast.Tuple))
        for nest, nodes in zip(document["nests"], loops.elts, strict=True):
            assert isinstance(nodes, (ast.List, ast.Tuple))
            for loop, node in zip(nest, nodes.elts, strict=True):
                for key in ("file_name", "line_no", "part"):
                    if not loop.get(key):
                        return node.lineno, f"the loop {_shown(node)} has no {key}"
    elif "code_info" not in document:
        return tree.lineno, "there are neither nests nor a code_info, so nothing is said about the loops"
    code = document.get("code_info", {})
    needed = {name for name in ("loop", "epoch", "dl_call") if code.get(f"{name}_line_no")}
    needed |= {"dl_call"} if code.get("dl_call_file_name") else set()
    needed |= set() if "nests" in document else {"loop"}
    for key in (f"{name}_{end}" for name in _FILES if name in needed for end in ("file_name", "line_no")):
        if not code.get(key):
            return lines["code_info"].lineno, f"code_info has no {key}"
    return None


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
