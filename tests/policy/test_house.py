"""What the house promises about itself: which room imports which, what a command loads, how long a file is."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "detrain"

#: Room of the package to the rooms that it may import. `GROUND` may be imported by all.
GROUND = {"errors", "eventlog", "messages", "package", "ranks"}
MAY_IMPORT = {
    "__main__": {"cli"},
    "notebook": {"launch"},
    "api": {"proof", "report", "state", "store"},
    "cli": {
        "adapters",
        "doctor",
        "export",
        "job",
        "launch",
        "loops",
        "pipeline",
        "plans",
        "proof",
        "remat",
        "remote",
        "report",
        "rewrite",
        "session",
        "state",
        "store",
        "tracer",
    },
    "proof": {
        "adapters",
        "launch",
        "loops",
        "outputs",
        "pipeline",
        "plans",
        "remat",
        "session",
        "state",
        "store",
        "world",
    },
    "doctor": {"adapters", "launch", "store", "world"},
    "launch": {
        "adapters",
        "hooks",
        "job",
        "loops",
        "outputs",
        "remote",
        "rewrite",
        "session",
        "state",
        "store",
        "tracer",
        "world",
    },
    "report": {"outputs", "pipeline", "plans", "store", "world"},
    "export": {"adapters", "state", "store"},
    "hooks": {"session"},
    "job": {"adapters", "store"},
    "session": {"adapters", "job", "loops", "outputs", "pipeline", "plans", "remat", "state", "store", "world"},
    "outputs": {"store", "world"},
    "remote": {"adapters", "job", "outputs", "plans", "store", "world"},
    "rewrite": {"loops"},
    "tracer": {"loops"},
    "adapters": {"pipeline", "remat", "state", "world"},
    "world": set(),
    "loops": {"state"},
    "store": {"plans", "state", "world"},
    "state": set(),
    "pipeline": {"plans", "remat"},
    "remat": {"plans"},
    "plans": set(),
}
ONLY_IN = {
    "libcst": {"rewrite"},
    "bytecode": {"tracer"},
    "torch": {"adapters"},
    "tensorflow": {"adapters"},
    "h5py": {"store"},
    "plotly": {"report"},
    "numba": {"pipeline", "remat"},
    "yaml": {"pipeline"},
    "fsspec": {"remote"},
}


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Everything that a file imports, also inside functions and for type checkers only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "detrain":
                found |= {f"detrain.{name.name}" for name in node.names}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


#: What users import; each name is loaded at its first use.
FACADES = {PACKAGE / "__init__.py", PACKAGE / "pipeline" / "__init__.py", PACKAGE / "remat" / "__init__.py"}
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path not in FACADES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    part = part_of(path)
    parts = {name.split(".")[1] for name in imports_of(path) if name.startswith("detrain.")}
    assert parts - {part} - GROUND <= MAY_IMPORT.get(part, set())


@pytest.mark.parametrize(("library", "homes"), ONLY_IN.items())
def test_a_library_is_imported_in_its_own_places_only(library: str, homes: set[str]) -> None:
    users = {part_of(path) for path in SOURCES if library in {name.partition(".")[0] for name in imports_of(path)}}
    assert users <= homes


def test_rooms_import_each_other_in_no_circle() -> None:
    def reach(part: str, seen: frozenset[str]) -> None:
        assert part not in seen
        for below in MAY_IMPORT.get(part, ()):
            reach(below, seen | {part})

    for part in MAY_IMPORT:
        reach(part, frozenset())


def files_imported() -> dict[str, set[str]]:
    """Module to the modules of the package that it imports, in whatever way."""
    modules = {".".join(("detrain", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in SOURCES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    imported: dict[str, set[str]] = {}
    for name, path in modules.items():
        imported[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                imported[name] |= {full if full in modules else node.module for full in below}
        imported[name] &= modules.keys()
    return imported


def test_files_import_each_other_in_no_circle() -> None:
    imported = files_imported()
    assert len(imported) > 200
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle of files: {' -> '.join((*way[way.index(name) :], name))}"
        if name not in done:
            for below in sorted(imported[name]):
                visit(below, (*way, name))
            done.add(name)

    for name in imported:
        visit(name, ())


#: But for HPGO's name of PipeDream's graph.txt, which scripts that are ported use.
FRAMEWORKS = re.compile(r"torch(?!_graph)|tensorflow|keras|cuda|cublas|cudnn", re.IGNORECASE)


def words_of(path: Path) -> list[tuple[int, str]]:
    """Names and texts in a file's code, with their lines; docstrings and comments may mention what they like."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found.append((node.lineno, node.value))
        elif isinstance(node, ast.Name | ast.Attribute):
            found.append((node.lineno, node.id if isinstance(node, ast.Name) else node.attr))
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.arg):
            found.append((node.lineno, node.arg if isinstance(node, ast.arg) else node.name))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_framework_is_named_outside_the_adapters(path: Path) -> None:
    if part_of(path) in {"adapters", "doctor", "export"}:  # `export` writes the files of one framework
        return
    assert [(line, word) for line, word in words_of(path) if FRAMEWORKS.search(word)] == []


#: Rooms whose business is objects of any type.
OF_ANY_TYPE = {"adapters", "state", "tracer"}
MOST_ANY = 8  # in a thousand lines


def test_types_are_named() -> None:
    lines = count = 0
    for path in SOURCES:
        if part_of(path) not in OF_ANY_TYPE:
            text = path.read_text(encoding="utf-8")
            lines += text.count("\n")
            count += sum(len(re.findall(r"\bAny\b", line)) for line in text.splitlines() if "import" not in line)
    assert count / lines * 1000 <= MOST_ANY


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_meet_through_contracts(path: Path) -> None:
    """Objects of the script's and of libraries (syntax trees in `rewrite`) may be asked what they have; our own say it by their types."""
    if part_of(path) not in {*OF_ANY_TYPE, "rewrite"}:
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        asked = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "hasattr"]
        assert [ast.unparse(node) for node in asked if "os" not in ast.unparse(node)] == []


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "import detrain"],
        ["-c", "import detrain.launch.attempt"],  # before every script, which may load none of them
        ["-m", "detrain", "--help"],
        ["-m", "detrain", "run", "--help"],
    ],
)
def test_help_loads_no_framework(words: list[str]) -> None:
    code = [sys.executable, "-X", "importtime", *words]
    loaded = {
        line.rpartition("|")[2].strip()
        for line in subprocess.run(code, capture_output=True, text=True, check=True).stderr.splitlines()
    }
    assert not loaded & {"torch", "tensorflow", "keras", "numpy", "h5py", "libcst"}


def test_the_flags_of_run_are_those_of_the_page() -> None:
    from detrain.cli.run import run

    assert sorted(option.opts[0] for option in run.params if option.opts[0].startswith("-")) == [
        "--ckpt-dir", "--emulate", "--every", "--fresh", "--from", "--keep", "--keep-trained", "--leave-files",
        "--log-json", "--memory-budget", "--micro-batches", "--no-pickle", "--nondeterministic", "--on-inexact",
        "--pipeline", "--progress", "--quiet", "--ranks", "--remat-planner", "--remat-verify", "--remote", "--requeue", "--restarts",
        "--seed", "--time-limit", "--trust-changes", "-m",
    ]  # fmt: skip


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 600


def test_no_hint_installs_the_package_that_is_called_like_ours() -> None:
    """`detrain` on PyPI is somebody else's; the distribution is `detrain-run`, and its name stands in pyproject.toml."""
    root = PACKAGE.parent
    with (root / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    assert project["name"] == "detrain-run"
    texts = [root / "README.md", root / "run", root / "pyproject.toml", root / "setup.py", root / "Makefile"]
    for folder in ("detrain", "docs", "examples", "syscalls"):
        texts += [path for path in (root / folder).rglob("*") if path.suffix in {".py", ".md", ".c"}]
    wrong = re.compile(r"""install\b[^\n]*['"\s]detrain(?:\[|['"]?\s*$)|\bdetrain\[""", re.MULTILINE)
    assert [str(path) for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []


def test_the_command_that_installs_an_extra_is_that_of_the_installation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from detrain import errors

    assert errors.installing("report") == f"pip install -e '{PACKAGE.parent}[report]'"
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages" / "detrain" / "errors.py"))
    assert errors.installing("report") == "pip install 'detrain-run[report]'"
    assert (
        str(errors.MissingExtra("numba is not installed", "plan"))
        == "numba is not installed: pip install 'detrain-run[plan]'"
    )
