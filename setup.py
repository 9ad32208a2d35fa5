"""Builds the C preload library of `syscalls/` into the package; all metadata stands in `pyproject.toml`.

`python setup.py build_syscalls` builds it in place, for a source checkout. Where it cannot be built the install goes
on and detrain runs without it: `detrain.world.preload.library()` is then None. `DETRAIN_PURE=1` leaves it out of a
wheel, which is then one for any machine (`py3-none-any`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

SOURCES = Path("syscalls")
LIBRARY = Path("detrain", "world", "libdetrain_syscalls.so")  # found there by detrain/world/preload.py
# A distribution's default _FORTIFY_SOURCE would put an inline open() before the one that is defined here.
FLAGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-shared"]
FLAGS += ["-fvisibility=hidden", "-U_FORTIFY_SOURCE"]


def say(message: str) -> None:
    """Print one line to standard error, as all of detrain does."""
    print(f"detrain: {message}", file=sys.stderr)


def is_pure() -> bool:
    """True if the library is to be left out, or cannot be built here."""
    return bool(os.environ.get("DETRAIN_PURE")) or not sys.platform.startswith("linux") or compiler() is None


def compiler() -> str | None:
    """The C compiler: $CC, else the first of cc, gcc, clang that is installed."""
    return next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )


def compile_library(target: Path) -> bool:
    """Build `target`, or say why not and return False.

    The new file takes the place of the old one by a rename: a running process may have the old one mapped.
    """
    cc = compiler()
    if not sys.platform.startswith("linux"):
        say(f"syscalls/ is not built: it answers Linux calls, this is {sys.platform}; entropy stays the machine's own")
        return False
    if cc is None:
        say("syscalls/ is not built: no C compiler (cc, gcc, clang) found; entropy stays the machine's own")
        say("install one and run `python setup.py build_syscalls` to change that")
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.partial")
    command = [cc, *FLAGS, "-o", str(partial), *map(str, sorted(SOURCES.glob("*.c"))), "-ldl", "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        partial.unlink(missing_ok=True)
        say(f"syscalls/ is not built: {cc} failed with status {result.returncode}; entropy stays the machine's own")
        print(result.stderr, file=sys.stderr)
        return False
    partial.replace(target)
    return True


class build_syscalls(Command):  # noqa: N801 - setuptools names a command by its class
    """Build the preload library: in place when asked for by name, else where `build` collects the package."""

    description = "build the C preload library of syscalls/"
    user_options = [("build-lib=", "b", "directory to build to")]
    editable_mode = False  # set by setuptools for `pip install -e`

    def initialize_options(self) -> None:
        """Required by setuptools."""
        self.build_lib: str | None = None

    def finalize_options(self) -> None:
        """Take the directory over from `build`."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Build."""
        if not os.environ.get("DETRAIN_PURE"):
            compile_library(self._target())

    def _target(self) -> Path:
        in_place = self.editable_mode or "build_syscalls" in self.distribution.commands
        return LIBRARY if in_place else Path(str(self.build_lib)) / LIBRARY

    # What setuptools asks a subcommand of `build` for (setuptools.command.build.SubCommand):
    def get_source_files(self) -> list[str]:
        """The files a source distribution must contain for this command."""
        return [str(path) for path in sorted(SOURCES.iterdir()) if path.suffix in {".c", ".h", ".md"}]

    def get_outputs(self) -> list[str]:
        """The files this command has built."""
        return [str(self._target())] if self._target().exists() else []

    def get_output_mapping(self) -> dict[str, str]:
        """Built file to source file, for files that are copies; ours is none."""
        return {}


class build_with_syscalls(build):  # noqa: N801
    """`build`, and the preload library with it."""

    sub_commands = [*build.sub_commands, ("build_syscalls", None)]


class PlatformDistribution(Distribution):
    """A package that belongs to one platform if the library is in it, although it has no extension module."""

    def has_ext_modules(self) -> bool:
        """Say so to every command that asks."""
        return not is_pure()


class platform_wheel(bdist_wheel):  # noqa: N801
    """A wheel for any Python, and for this platform if the library is in it: the linker loads that, it is not imported."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag: any Python 3, no ABI, this platform or any."""
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    setup(
        distclass=PlatformDistribution,
        cmdclass={"build": build_with_syscalls, "build_syscalls": build_syscalls, "bdist_wheel": platform_wheel},
    )
