"""Trace a program in a folder of its own, and say in sentences in what inst.info is not what its markers say."""

import ast
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .programs import Loader, Program

TIMEOUT_S = 90.0
FOREIGN_VARIABLES = {"CKPT_DIR", "MODEL_NAME", "ENABLE_TRACE", "DIFF_SIZE", "PYTHONHASHSEED", "LD_PRELOAD"}
MARKERS = re.compile(r"#((?: <[a-z]+[\d?]*>)+)\s*$")
MARKER = re.compile(r"<([a-z]+)([\d?]*)>")
PARTS = ("outer", "epoch", "batch")
MARKER_NAMES = (*PARTS, "dl", "update")
#: Where a library's files lie below the user base; `site` says the same of each Python.
PACKAGES = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")


@dataclass(frozen=True)
class Line:
    """A line of a program: the name of its file as the program gives it, or an absolute one for a library's."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Loop:
    """A loop that must be in the nest; `is_optional`: or may be, as the loop that consumes a training generator."""

    line: Line
    part: str
    function: str
    is_optional: bool = False

    def __str__(self) -> str:
        return f"{self.line} ({self.part})"


@dataclass
class Expected:
    """What the markers of a program say."""

    nest: list[Loop] = field(default_factory=list)
    dl: list[Line] = field(default_factory=list)
    update: list[Line] = field(default_factory=list)

    def loop(self, part: str) -> Loop | None:
        """The loop of that part, if the program has one."""
        return next((loop for loop in self.nest if loop.part == part), None)


def expected_of(program: Program) -> Expected:
    """Read the markers of all files of a program."""
    found, ranked = Expected(), []
    for file, text in {**program.files, **program.library}.items():
        functions = _functions(text) if file.endswith(".py") else {}
        for number, row in enumerate(text.splitlines(), 1):
            for name, rank in _markers(row):
                assert name in MARKER_NAMES, f"{program.name}: no such marker: {name}"
                line = Line(file, number)
                if name in PARTS:
                    loop = Loop(line, name, functions.get(number, "<module>"), is_optional=rank == "?")
                    ranked.append((PARTS.index(name), int(rank) if rank.isdigit() else 0, loop))
                else:
                    getattr(found, name).append(line)
    found.nest = [loop for _, _, loop in sorted(ranked, key=lambda entry: entry[:2])]
    return found


def _markers(row: str) -> list[tuple[str, str]]:
    found = MARKERS.search(row)
    return MARKER.findall(found[1]) if found else []


def _functions(text: str) -> dict[int, str]:
    """Line to the name of the innermost function that it stands in."""
    found: dict[int, str] = {}
    for node in ast.walk(ast.parse(text)):  # outer functions come before those within them
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), node.name))
    return found


@dataclass
class Traced:
    """What tracing a program left behind; `document` is inst.info, None where there is none."""

    status: int
    stdout: str
    stderr: str
    document: dict[str, Any] | None

    @property
    def last_words(self) -> str:
        """The end of standard error."""
        return "\n".join(self.stderr.rstrip().splitlines()[-6:])


class Place:
    """One program in a folder of its own, with a run directory and an installed library beside it."""

    def __init__(self, root: Path, program: Program) -> None:
        self.root, self.program = root, program
        self.work, self.run_directory, self.base = root / "work", root / "run", root / "base"
        for folder, files in ((self.work, program.files), (self.packages, program.library)):
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    @property
    def packages(self) -> Path:
        """Where the library is installed."""
        return self.base / PACKAGES

    @property
    def script_folder(self) -> Path:
        """What the file names in inst.info are relative to."""
        return (self.work / self.program.script).parent

    def environment(self) -> dict[str, str]:
        """This environment without what would steer detrain, with detrain and the program's library importable."""
        own = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES and not k.startswith("DETRAIN_")}
        spec = importlib.util.find_spec("detrain")
        assert spec is not None
        assert spec.origin is not None
        folders = [str(Path(spec.origin).parents[1]), *([str(self.packages)] if self.program.library else [])]
        own.update(PYTHONPATH=os.pathsep.join(folders), PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")
        if self.program.library:
            own["PYTHONUSERBASE"] = str(self.base)
        return own

    def python(self, arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the script to its end under plain python."""
        return self._call([self.program.script, *arguments.split()])

    def trace(self) -> Traced:
        """Run `detrain trace` and read inst.info."""
        options = ["--ckpt-dir", str(self.run_directory)]
        if self.program.vary:
            options += ["--vary", self.program.vary]
        if self.program.diff_size is not None:
            options += ["--diff-size", str(self.program.diff_size)]
        script = [self.program.script, *self.program.arguments.split()]
        done = self._call(["-m", "detrain", "trace", *options, *script])
        path = self.run_directory / "inst.info"
        document = ast.literal_eval(path.read_text(encoding="utf-8")) if path.exists() else None
        return Traced(done.returncode, done.stdout, done.stderr, document)

    def _call(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, *words]
        out_path, err_path = self.root / "out", self.root / "err"
        # Files, not pipes: what outlives the script, a loader's worker say, would hold a pipe open.
        with out_path.open("wb") as out, err_path.open("wb") as err:
            process = subprocess.Popen(
                command, cwd=self.work, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(TIMEOUT_S)
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        texts = [path.read_bytes().decode(errors="backslashreplace") for path in (out_path, err_path)]
        return subprocess.CompletedProcess(command, process.returncode, *texts)


class Comparison:
    """Compares what was found in a place with what its program expects; `problems` are sentences, none if all is right."""

    def __init__(self, place: Place) -> None:
        self.place, self.program = place, place.program
        self.expected = expected_of(place.program)
        self.problems: list[str] = []

    def of(self, traced: Traced) -> list[str]:
        """All differences."""
        if not self.program.is_training:
            return self._of_no_training(traced)
        if traced.status != 0:
            return [f"tracing ended with status {traced.status}: {traced.last_words}"]
        if traced.document is None:
            return ["there is no inst.info"]
        document = traced.document
        keys = ("version", "sources", "nests", "complete", "dataloader", "dataloaders", "loop_type", "code_info")
        missing = [key for key in keys if key not in document]
        if missing:
            self._say(f"inst.info lacks {', '.join(missing)}")
        self._compare_nest(document.get("nests", []))
        self._compare_sources(document.get("sources", {}))
        self._compare_code(document.get("code_info", {}))
        self._compare_loaders(document)
        return self.problems

    def _of_no_training(self, traced: Traced) -> list[str]:
        if traced.status != 1:
            self._say(f"nothing trains, but tracing ended with status {traced.status}, not 1")
        if "detrain: " not in traced.stderr or "Traceback" in traced.stderr:
            self._say(f"nothing trains, and no message says so: {traced.last_words!r}")
        if traced.document and traced.document.get("nests"):
            self._say(f"nothing trains, but a nest was found: {self._describe(traced.document['nests'][0])}")
        return self.problems

    def _say(self, sentence: str) -> None:
        self.problems.append(sentence)

    def _line(self, file_name: str, line_no: object) -> Line:
        """A place in inst.info as the program names it."""
        path = Path(os.path.realpath(self.place.script_folder / file_name))
        for folder in (self.place.packages, self.place.work):
            if path.is_relative_to(os.path.realpath(folder)):
                return Line(str(path.relative_to(os.path.realpath(folder))), int(str(line_no)))
        return Line(str(path), int(str(line_no)))

    def _describe(self, nest: Sequence[dict[str, Any]]) -> str:
        return " > ".join(f"{self._line(loop['file_name'], loop['line_no'])} ({loop['part']})" for loop in nest)

    def _compare_nest(self, nests: Sequence[Sequence[dict[str, Any]]]) -> None:
        if len(nests) != 1:
            self._say(f"inst.info holds {len(nests)} nests, not 1: {'; '.join(map(self._describe, nests))}")
            if not nests:
                return
        found = self._describe(nests[0])
        whole = self.expected.nest
        right = [" > ".join(map(str, nest)) for nest in (whole, [loop for loop in whole if not loop.is_optional])]
        if found not in right:
            self._say(f"the nest is {found or 'empty'}, not {right[0]}")
            return
        by_line = {loop.line: loop for loop in whole}
        for loop in nests[0]:
            line = self._line(loop["file_name"], loop["line_no"])
            function = str(loop.get("function", ""))
            if function and function.rpartition(".")[2] != by_line[line].function:
                self._say(f"the loop at {line} is said to be in {function}, not in {by_line[line].function}")
            self._compare_file_name(loop["file_name"])

    def _compare_file_name(self, file_name: str) -> None:
        """Relative below the script's folder, absolute elsewhere."""
        path = Path(os.path.realpath(self.place.script_folder / file_name))
        is_below = path.is_relative_to(os.path.realpath(self.place.script_folder))
        if is_below and file_name != str(path.relative_to(os.path.realpath(self.place.script_folder))):
            self._say(f"{file_name} is below the script's folder but not relative to it")
        if not is_below and not os.path.isabs(file_name):
            self._say(f"{file_name} is outside the script's folder but not absolute")

    def _compare_sources(self, sources: dict[str, str]) -> None:
        known = {self._line(name, 0).file for name in sources}
        needed = {loop.line.file for loop in self.expected.nest if not loop.is_optional}
        for file in sorted(needed - known):
            self._say(f"the digest of {file}, which holds a loop, is missing")

    def _compare_code(self, code: dict[str, str]) -> None:
        for key, value in code.items():
            if not isinstance(value, str):
                self._say(f"code_info[{key!r}] is {value!r}, not a string")
        for prefix, part in (("loop", "batch"), ("epoch", "epoch")):
            loop = self.expected.loop(part)
            self._compare_line(code, prefix, [loop.line] if loop else [], is_needed=True)
        self._compare_line(code, "update_call", self.expected.update, is_needed=False)
        if self.program.loaders:
            self._compare_line(code, "dl_call", self.expected.dl, is_needed=False)
            self._compare_wrapper(code)

    def _compare_line(self, code: dict[str, str], prefix: str, right: list[Line], is_needed: bool) -> None:
        """`right`: each of these will do; where there is none, there must be none (`is_needed`) or any."""
        file_name, number = code.get(f"{prefix}_file_name", ""), code.get(f"{prefix}_line_no", "")
        found = str(self._line(file_name, number)) if file_name and str(number).isdigit() else "missing"
        allowed = [str(line) for line in right] or (["missing"] if is_needed else [found])
        if found not in allowed:
            self._say(f"{prefix} is {found}, not {' or '.join(allowed)}")

    def _compare_wrapper(self, code: dict[str, str]) -> None:
        found = (code.get("wrapper_module", ""), code.get("wrapper_func", ""))
        right = self.program.wrapper or ("", "")
        if found != right:
            self._say(f"the wrapper of the data-loading call is {_dotted(found)}, not {_dotted(right)}")

    def _compare_loaders(self, document: dict[str, Any]) -> None:
        if not self.program.loaders:
            return
        main, named = document.get("dataloader", {}), document.get("dataloaders", [])
        if not main:
            self._say("no data loader was found")
            return
        if not named or named[0] != main:
            self._say("the first of `dataloaders` is not `dataloader`")
        types = [document.get("loop_type", {}).get("type")]
        complaints = [_loader_differences(main, types, loader) for loader in self.program.loaders]
        if all(complaints):
            self.problems += complaints[0]
        for loader in self.program.loaders:
            if not any(_is_named(one, loader) for one in named):
                self._say(f"{loader.full_name} feeds the update but is not in `dataloaders`")
        for one in named:
            like = [loader for loader in self.program.loaders if _is_named(one, loader)]
            told = [_loader_differences(one, types, loader, is_main=False) for loader in like]
            if like and one != main and all(told):
                self._say(f"of those in `dataloaders`: {told[0][0]}")
            if not like and not self.program.may_be_more:
                self._say(f"{one.get('full_name')} stands in `dataloaders` but does not feed the update")


def _is_named(found: dict[str, Any], loader: Loader) -> bool:
    return fnmatchcase(str(found.get("full_name", "")), loader.full_name)


def _loader_differences(
    found: dict[str, Any], types: Sequence[str | None], right: Loader, is_main: bool = True
) -> list[str]:
    """In what one entry, and for the first the loop's type, are not what a program expects of its loader."""
    said = []
    full_name = str(found.get("full_name", ""))
    if not _is_named(found, right):
        said.append(f"the loader is {full_name or 'nothing'}, not {right.full_name}")
    if not full_name.startswith(f"{found.get('module')}."):
        said.append(f"the loader's module is {found.get('module')!r}, but its name is {full_name}")
    for key in ("init", "iter", "next"):
        pair, wanted = tuple(found.get(key, ())), getattr(right, key)
        if len(pair) != 2:
            said.append(f"{key} of the loader is {found.get(key)!r}, not a pair")
        elif wanted is not None and not all(map(fnmatchcase, map(str, pair), wanted)):
            said.append(f"{key} of the loader is {_dotted(pair)}, not {_dotted(wanted)}")
    if is_main and right.loop_type is not None and right.loop_type not in types:
        said.append(f"the type of the loop is {types[0]}, not {right.loop_type}")
    if right.persistent is not None and found.get("persistent") is not right.persistent:
        said.append(f"the loader's state is said to be persistent: {found.get('persistent')}, not {right.persistent}")
    return said


def _dotted(pair: Sequence[str]) -> str:
    return ":".join(pair) if any(pair) else "missing"


def differences(place: Place, traced: Traced) -> list[str]:
    """In what a trace is not what the program's markers and its entry in the table say; empty if in nothing."""
    return Comparison(place).of(traced)
