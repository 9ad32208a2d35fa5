"""The import hook: files of the user's are instrumented as they are loaded; the files themselves are never touched.

Instrumented code is cached in the run directory under a digest of everything that it depends on, written under a temporary
name and renamed, so that a cache entry is whole or absent.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import marshal
import os
import site
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any, Protocol

import xxhash

from detrain import package
from detrain.loops import instfile
from detrain.messages import unheard

#: Part of each known loop: file name to (line to part). Loops of a user's file that are not named get the part "".
Parts = Mapping[str, Mapping[int, str]]


#: Counts the forms that instrumented code has had; code of another one is not taken from a cache.
_FORM = 4


class Libraries(Protocol):
    """What is known of the files of libraries before a run has shown its loops (`detrain.adapters.library_loops`)."""

    def function_in(self, filename: str) -> str | None:
        """The function of a file whose loops carry hooks like the user's; None if that is not known."""

    def is_frameworks(self, filename: str) -> bool:
        """True for a file, or a folder, of a framework, whose loops are no training."""

    def has_known(self, folder: str) -> bool:
        """True for a folder with a file whose `function_in` is known."""

    def may_train(self, content: bytes) -> bool:
        """True if a file with this content may hold a training loop."""


class _OwnImport(threading.local):
    """While this thread imports what detrain itself needs: that may lie anywhere on sys.path, and is nobody's training script."""

    is_on = False

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False


_own_import = _OwnImport()


class Instrumenter:
    """Compiles the user's files with hooks. `loops` gathers what it has found: file name to (header line to last line)."""

    def __init__(
        self,
        parts: Parts,
        cache: Path | None,
        on_code: Callable[[str, types.CodeType], None],
        *,
        only_known: bool = False,
        libraries: Libraries | None = None,
        load_of: Callable[[str], tuple[int, int, str] | None] = lambda _: None,
        aside: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        """`libraries`: which files of libraries carry hooks though inst.info names no loop in them; None: none do.

        `aside` is held while a file is compiled: what that draws must not be missing where the cache has the code.
        """
        self._parts = parts
        self._folders = {os.path.dirname(filename) for filename in parts}
        self._cache = cache
        self._on_code = on_code
        self._only_known = only_known
        self._libraries = libraries
        self._load_of = load_of
        self._aside = aside
        self.loops: dict[str, dict[int, int]] = {}
        self.digests: dict[str, str] = {}
        #: As they were compiled, until somebody takes them.
        self.contents: dict[str, bytes] = {}

    def is_named(self, filename: str) -> bool:
        """True if inst.info names a loop of a library's file, or if it is known to hold some."""
        return os.path.normpath(filename) in self._parts or self._function_in(filename) is not None

    def may_train(self, filename: str, read: Callable[[], bytes]) -> bool:
        """True if a library's file may hold the training loop that is still to be found; `read` gives its content."""
        return (
            self._libraries is not None
            and not self._only_known
            and not filename.startswith(package.FOLDER + os.sep)
            and not self._libraries.is_frameworks(filename)
            and self._libraries.may_train(read())
        )

    def passes_over(self, folder: str) -> bool:
        """True for a library's folder in which no loops carry hooks: one of a framework, or any where all loops are known."""
        libraries, folder = self._libraries, os.path.normpath(folder)
        if libraries is None or libraries.has_known(folder) or folder in self._folders:
            return False
        return self._only_known or libraries.is_frameworks(folder)

    def _function_in(self, filename: str) -> str | None:
        return self._libraries.function_in(filename) if self._libraries is not None else None

    def compile(self, content: bytes, filename: str) -> types.CodeType:
        """Code of a source file. A file that Python itself cannot compile raises what Python raises."""
        tree: Any = compile(content, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
        from detrain.loops.sites import find_loops

        sites = find_loops(tree)
        known = self._parts.get(os.path.normpath(filename), {})
        # A class body looks its names up in whatever its metaclass gives; no training loop stands in one.
        eligible = [site for site in sites if not site.is_in_class]
        # Of a library's file only the loops that are in the nest carry hooks, or all while they may turn out to be.
        function = self._function_in(filename)
        if function is not None:
            eligible = [site for site in eligible if site.scope == function]
        is_open = function is not None or is_user_file(filename) or self.may_train(filename, lambda: content)
        only_known = self._only_known or not is_open
        parts = {site.line: known.get(site.line, "") for site in eligible if site.line in known or not only_known}
        self.loops[filename] = {site.line: site.end_line for site in sites if site.line in parts}
        self.digests[filename] = instfile.digest(content)
        self.contents[filename] = content
        if not parts:
            code: types.CodeType = compile(content, filename, "exec", dont_inherit=True)
        else:
            with self._aside():
                code = self._cached(content, filename, parts, tree)
        self._on_code(filename, code)
        return code

    def _cached(self, content: bytes, filename: str, parts: dict[int, str], tree: Any) -> types.CodeType:
        """`tree`: of the source; it is changed."""
        load = self._load_of(filename)
        facts = (package.__version__, _FORM, sys.version, sys.flags.optimize, filename, sorted(parts.items()), load)
        key = repr(facts).encode()
        path = self._cache / f"{xxhash.xxh3_128_hexdigest(key + content)}.code" if self._cache else None
        if path is not None and path.exists():
            return marshal.loads(path.read_bytes())  # type: ignore[no-any-return]
        if load is None:
            with _own_import:
                from detrain.rewrite.tree import add_hooks

            add_hooks(tree, parts)
        else:
            tree = self._with_loaded(content, parts, load)
        code: types.CodeType = compile(tree, filename, "exec", dont_inherit=True)
        if path is not None:
            _write(path, marshal.dumps(code))
        return code

    @staticmethod
    def _with_loaded(content: bytes, parts: dict[int, str], load: tuple[int, int, str]) -> ast.Module:
        """A batch loop that loads its own data is found in the source; for this alone libcst is loaded."""
        with _own_import:
            from detrain.rewrite import transform
            from detrain.rewrite.loads import Load

        source = importlib.util.decode_source(content)
        # What the parser warns of (escapes in strings) was given when the file was parsed before.
        with unheard(SyntaxWarning), unheard(DeprecationWarning):
            return transform.parse_with_original_positions(source, transform.instrument(source, parts, Load(*load)))


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a cache that cannot be written is no reason to stop


class UserLoader(SourceFileLoader):
    """Loads a module of the user's with hooks in its loops; reads and writes no `__pycache__` for it."""

    code: types.CodeType

    def get_code(self, fullname: str) -> types.CodeType | None:  # noqa: ARG002 - importlib's signature
        """The instrumented code."""
        return self.code


# A module may look at its `__loader__`; what it sees is what it is, but for where the code comes from.
UserLoader.__name__ = UserLoader.__qualname__ = SourceFileLoader.__name__
UserLoader.__module__ = SourceFileLoader.__module__


class Compiler(Protocol):
    """Makes code of a source file."""

    def passes_over(self, folder: str) -> bool:
        """True for a folder of a library of which no file is to be compiled like the user's: none is looked at."""

    def is_named(self, filename: str) -> bool:
        """True for a library's file that is to be compiled like the user's: its loops are in the nest."""

    def may_train(self, filename: str, read: Callable[[], bytes]) -> bool:
        """True for a library's file that is to be compiled like the user's, as one of its loops may turn out to be in the nest."""

    def compile(self, content: bytes, filename: str) -> types.CodeType:
        """Raises what Python raises for a file that it cannot compile."""


class UserFinder:
    """Finds modules as Python does and gives those of the user to `UserLoader`."""

    def __init__(self, instrumenter: Compiler, on_module: Callable[[str], None]) -> None:
        self._instrumenter = instrumenter
        self._on_module = on_module
        # Asked for every module of a package, a thousand of one framework.
        self._passes_over = functools.cache(
            lambda folder: not is_users_folder(folder) and instrumenter.passes_over(folder)
        )
        _not_users()  # now, while nothing is being imported

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec with our loader; else what Python would find without us, or None: then it goes on by itself."""
        if fullname.partition(".")[0] in sys.stdlib_module_names or _own_import.is_on:
            return None
        if path is not None and all(map(self._passes_over, path)):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or spec.origin is None:
            return self._without_us(fullname, path, target, spec)
        loader = UserLoader(fullname, spec.origin)
        is_users = is_user_file(spec.origin)
        try:
            read = functools.partial(loader.get_data, spec.origin)
            if not (
                is_users or self._instrumenter.is_named(spec.origin) or self._instrumenter.may_train(spec.origin, read)
            ):
                return self._without_us(fullname, path, target, spec)
            loader.code = self._instrumenter.compile(read(), spec.origin)
        except (SyntaxError, ValueError, OSError):
            return spec  # Python says best what is wrong with a file
        spec.loader = loader
        if is_users:
            self._on_module(fullname)
        return spec

    def _without_us(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None, spec: ModuleSpec | None
    ) -> ModuleSpec | None:
        """What the finders behind us find, where `spec` is what `PathFinder` has: that is not searched for twice."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            if finder is PathFinder:
                return spec
            found = finder.find_spec(fullname, path, target) if hasattr(finder, "find_spec") else None
            if found is not None:
                return found
        return None


def is_user_file(filename: str) -> bool:
    """True for source outside the standard library, the installed packages and detrain itself."""
    folder, name = os.path.split(filename)
    is_plain = os.path.isabs(folder) and name not in ("", ".", "..") and not os.path.islink(filename)
    path = os.path.join(_real_folder(folder), name) if is_plain else os.path.realpath(filename)
    return not path.startswith(_not_users()) and not _PACKAGES & set(path.split(os.sep)) and not _is_in_target(path)


def is_users_folder(folder: str) -> bool:
    """True if source in it is the user's, unless it is a link to elsewhere."""
    return is_user_file(os.path.join(os.path.abspath(folder), "__init__.py"))


#: Folders of installed packages, however they come into sys.path: a .pth file, PYTHONPATH, another environment.
_PACKAGES = frozenset({"site-packages", "dist-packages"})


def _is_in_target(path: str) -> bool:
    """True below a folder of sys.path that pip has installed into by `--target`, whatever it is called; not beside the script."""
    return any(
        entry and path.startswith(os.path.realpath(entry) + os.sep) and _is_target(entry) for entry in sys.path[1:]
    )


@functools.cache
def _real_folder(folder: str) -> str:
    """A folder's real path: most of a library's files are in folders that others were found in, and each takes a look at all above."""
    return os.path.realpath(folder)


@functools.cache
def _is_target(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False  # an archive, or gone


def _not_users() -> tuple[str, ...]:
    if not _foreign_roots:
        # Not by sysconfig, which on 3.13 imports a module to answer, and would ask us where that belongs.
        standard = os.path.dirname(os.__file__)
        roots = {standard, *site.getsitepackages(), site.getusersitepackages(), package.FOLDER}
        _foreign_roots.extend(os.path.realpath(root) + os.sep for root in roots if root)
    return tuple(_foreign_roots)


_foreign_roots: list[str] = []
