"""Programs that the script starts: what trains in one of them is not followed, and that is said when it starts, not when all is done.

Told by what is started, not by what it does: a Python, or a program written in it, with a file of the user's to run. Workers of a
data loader, compilers and the like run files of libraries and are not meant.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence

from detrain.messages import warn
from detrain.rewrite.importer import is_user_file
from detrain.state.user_code import user_modules

_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
#: Our own event, raised where Python has none: a process of `multiprocessing`'s is started in a fresh interpreter.
_PROCESS = "detrain.process"


class Beneath:
    """Says once of each program what is not followed."""

    def __init__(self, script: str = "", on_ranks: Callable[[int], None] = lambda _: None) -> None:
        """`on_ranks` is called before `script`, which this process runs, is started again as one of so many ranks."""
        self._script, self._on_ranks = script and os.path.abspath(script), on_ranks
        self._said: set[str] = set()
        self._pid = os.getpid()

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Audit events to what hears them."""
        return {
            "subprocess.Popen": self._opens,
            "os.posix_spawn": lambda _, words, *__: self._starts(words, None),
            "os.exec": lambda _, words, *__: self._starts(words, None),
            "os.system": lambda command: self._starts(["sh", "-c", os.fsdecode(command)], None),
            _PROCESS: self._forks,
        }

    def _opens(
        self, _: object, words: str | bytes | Iterable[str | bytes], folder: str | bytes | None,
        variables: Mapping[str, str] | None, *__: object,
    ) -> None:  # fmt: skip
        path = _path(words, folder)
        size = (variables or {}).get("WORLD_SIZE", "")
        if path is not None and size.isdigit() and int(size) > 1:
            place = os.path.join(os.fsdecode(folder) if folder else "", path)
            if os.path.isfile(place) and self._script and os.path.samefile(place, self._script):
                self._on_ranks(int(size))
        self._say_started(path)

    def _starts(self, words: str | bytes | Iterable[str | bytes], folder: str | bytes | None) -> None:
        self._say_started(_path(words, folder))

    def _say_started(self, path: str | None) -> None:
        if path is not None:
            self._say(path, f"the script starts a Python program beneath it, {path}")

    def _forks(self, process: object) -> None:
        """A process that `multiprocessing` is about to spawn with a function of the user's."""
        name = user_function_of(process)
        if name is not None:
            self._say(name, f"the script starts {name} in a process of its own")

    def _say(self, what: str, text: str) -> None:
        if what not in self._said and os.getpid() == self._pid:
            self._said.add(what)
            warn(
                "not-followed",
                f"{text}, which detrain does not follow: if it trains, none of that is checkpointed. Give `detrain run` the program "
                "that trains; several ranks of it: `detrain run --ranks N SCRIPT`",
            )


def _path(words: str | bytes | Iterable[str | bytes], folder: str | bytes | None) -> str | None:
    try:
        texts = [words] if isinstance(words, (str, bytes)) else list(words)
        return script_in([os.fsdecode(word) for word in texts], os.fsdecode(folder) if folder else os.getcwd())
    except (TypeError, ValueError):
        return None  # such words are refused by the function itself


def script_in(words: Sequence[str], folder: str) -> str | None:
    """The file of the user's that a command has a Python run; None if it has none, or something else runs it."""
    words = _without_shell(words)
    python = next((number for number, word in enumerate(words) if _is_python(word, is_first=number == 0)), None)
    if python is None:
        return None
    rest = list(words[python + 1 :])
    for number, word in enumerate(rest):
        if word == "-c":
            return None  # a line of code: helpers of libraries are started so
        path = os.path.join(folder, word)
        if word.endswith(".py") and os.path.isfile(path):
            return word if is_user_file(path) else None
        if word == "-m" and number + 1 < len(rest):
            place = os.path.join(folder, rest[number + 1].replace(".", os.sep))
            for name in (f"{place}.py", os.path.join(place, "__main__.py")):
                if os.path.isfile(name):
                    return f"-m {rest[number + 1]}"
    return None


def _without_shell(words: Sequence[str]) -> Sequence[str]:
    while len(words) > 2 and os.path.basename(words[0]) in _SHELLS and words[1] == "-c":
        words = shlex.split(words[2])
    if len(words) == 1 and " " in words[0]:
        return shlex.split(words[0])
    return words


def _is_python(word: str, *, is_first: bool) -> bool:
    """True for an interpreter, and as the first word for a program that begins with its name (`torchrun`)."""
    if word == sys.executable or os.path.basename(word).startswith("python"):
        return True
    path = shutil.which(word) if is_first else None
    if path is None:
        return False
    try:
        with open(path, "rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def user_function_of(process: object) -> str | None:
    """The function of the user's, by its name, that a process of `multiprocessing` is to call in a fresh interpreter; else None."""
    own, shared = getattr(process, "_start_method", None), sys.modules["multiprocessing"]
    if (own or shared.get_start_method(allow_none=True)) not in ("spawn", "forkserver"):
        return None  # a fork has everything that this process has, and says by itself that it trains
    # `torch.multiprocessing.spawn` gives its own function the user's; further arguments may be functions that only help.
    given = [getattr(process, "_target", None), *getattr(process, "_args", ())[:1]]
    for one in given:
        while isinstance(one, functools.partial):
            one = one.func
        if isinstance(one, types.FunctionType) and one.__module__ in user_modules | {"__main__"}:
            return f"{one.__qualname__}()"
    return None


#: The module that makes processes, and when it has been loaded what has their starts announced.
MAKER = "multiprocessing.process"


def announce_starts(module: types.ModuleType) -> None:
    """Have the start of each process announced."""
    plain = module.BaseProcess.start

    @functools.wraps(plain)
    def start(self: object) -> object:
        sys.audit(_PROCESS, self)
        return plain(self)

    module.BaseProcess.start = start


#: By the module that starts processes of `multiprocessing`'s, what has their starts announced.
PROCESS_MODULES: Mapping[str, Callable[[types.ModuleType], None]] = {MAKER: announce_starts}
