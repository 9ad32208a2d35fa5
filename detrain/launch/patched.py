"""A replay runs other sources than the run had: what an attempt has to know of that, and what of the run directory names lines.

The run directory is that of the sandbox, so that what is changed here is gone with it. There, the files that changed have their new text.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detrain.errors import DetrainError
from detrain.loops import instfile
from detrain.state import patches
from detrain.state.patches import Patch
from detrain.world import setup_clock

if TYPE_CHECKING:  # loads numpy, which the script may not
    from detrain.store.checkpoint import Checkpoint

#: In the run directory.
NAME = "patches.json"


@dataclass(frozen=True)
class PatchedFile:
    """A source file of the run, and what it is in the replay."""

    path: str
    text: str
    patch: Patch
    #: Line of the run to line now, for the loops of the training in this file.
    loops: Mapping[int, int]

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        loops = list(self.loops.items())
        return {"path": self.path, "text": self.text, "patch": self.patch.encode(), "loops": loops}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> PatchedFile:
        """The inverse of `encode`."""
        return cls(document["path"], document["text"], Patch.decode(document["patch"]), dict(document["loops"]))


def put(files: Iterable[PatchedFile], folder: Path, script: Path) -> None:
    """In the sandbox: give the files their new text, and the run directory its lines. Raises `DetrainError`."""
    files = list(files)
    if not files:
        return
    for one in files:
        try:
            _write(Path(os.path.realpath(one.path)), one.text.encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise DetrainError(f"{one.path} cannot be replaced in the sandbox: {error.strerror}") from None
    path = folder / "inst.info"
    if path.exists():
        info = instfile.read(path, script.parent)
        move_loops(files, info)
        instfile.write(path, info, script.parent)
    _move_readings(files, folder / setup_clock.NAME)
    document = {one.path: one.patch.encode() for one in files}
    (folder / NAME).write_text(json.dumps(document), encoding="utf-8")


def _write(path: Path, content: bytes) -> None:
    """Also where the file itself may not be written."""
    mode = path.stat().st_mode
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    temporary.replace(path)


def move_loops(files: Iterable[PatchedFile], info: instfile.InstInfo) -> None:
    """Let what is known of the loops name the lines of now. Raises `DetrainError` where a line is gone that has to be there."""
    by_path = {os.path.normpath(one.path): one for one in files}

    def moved(loop: instfile.NestLoop) -> instfile.NestLoop:
        one = by_path.get(os.path.normpath(loop.file_name))
        return loop if one is None else replace(loop, line_no=one.loops[loop.line_no])

    info.nests = [[moved(loop) for loop in nest] for nest in info.nests]
    info.sources = {
        name: instfile.digest_of(name) if os.path.normpath(name) in by_path else digest
        for name, digest in info.sources.items()
    }
    code = info.extra.get("code_info", {})
    for key in ("dl_call", "update_call"):
        one = by_path.get(os.path.normpath(code.get(f"{key}_file_name", "")))
        if one is not None and f"{key}_line_no" in code:
            now = {then: line for line, then in one.patch.lines.items()}
            line = int(code[f"{key}_line_no"])
            if line not in now:
                raise DetrainError(
                    f"line {line} of {one.path}, where the run loads its data or steps, is not there any more"
                )
            code[f"{key}_line_no"] = str(now[line])


def _move_readings(files: list[PatchedFile], path: Path) -> None:
    """Clock readings of set-up code go by file and line; those of lines that are gone are not answered again."""
    if not path.exists():
        return
    now = {os.path.basename(one.path): {then: line for line, then in one.patch.lines.items()} for one in files}
    pattern = re.compile(rf"(?<![^\s])({'|'.join(map(re.escape, now))}):(\d+)(?!\S)")
    kept = []
    for (place, ordinal), answer in setup_clock.read(path).items():
        found = [(one[1], int(one[2])) for one in pattern.finditer(place)]
        if all(number in now[name] for name, number in found):
            place = pattern.sub(lambda one: f"{one[1]}:{now[one[1]][int(one[2])]}", place)
            kept.append(json.dumps([place, ordinal, answer]))
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def read(folder: Path) -> None:
    """At the beginning of an attempt: know which of its sources are other ones."""
    if (folder / NAME).exists():
        document = json.loads((folder / NAME).read_text(encoding="utf-8"))
        patches.use({path: Patch.decode(one) for path, one in document.items()})


def move(chain: Iterable[Checkpoint]) -> None:
    """Let the positions of checkpoints name the lines of now."""
    for one in chain:
        one.meta.position[:] = [
            loop._replace(line=patches.line_now(loop.filename, loop.line)) for loop in one.meta.position
        ]
