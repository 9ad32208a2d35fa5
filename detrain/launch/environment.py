"""The process environment of an attempt: fixed once, before any framework is loaded, by replacing this process."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from detrain.adapters import environment as frameworks
from detrain.errors import InexactResume
from detrain.launch import entropy
from detrain.launch.request import Request
from detrain.store.directory import RunDirectory
from detrain.store.record import RunRecord
from detrain.world import machine, preload

#: The request for the attempt, on its way through `execve`; the attempt takes it out of its environment.
REQUEST = "DETRAIN_REQUEST"

#: Set unless the user has set them. Each line: what it fixes.
_DEFAULTS = {
    "PYTHONHASHSEED": "0",  # order of sets and of dicts keyed by hash; read by the interpreter before any Python runs
    **frameworks.DEFAULTS,
}
_ADDR_NO_RANDOMIZE = 0x0040000  # <sys/personality.h>
_READ_ONLY = 0xFFFFFFFF


def replace_process(request: Request) -> NoReturn:
    """Become the attempt, in this very process (same pid). Raises `InexactResume` if this machine cannot go on with the run."""
    request.machine = machine.describe(frameworks.VARIABLES)
    record = _record_of_run(request)
    try:
        held = _held(request, record)
    except InexactResume as error:
        if not request.may_restart:
            raise
        request, record, held = request.restarted(error.why), None, {}
    request.entropy = entropy.key_of(request, record)
    for name, value in held.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    words, environment = prepare(request)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, words, environment)


class Begun:
    """The process as it was when the attempt began; made before the script can change anything."""

    def __init__(self) -> None:
        self._variables = dict(os.environ)
        self._folder = os.getcwd()
        self._mask = os.umask(0)
        os.umask(self._mask)
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}

    def put_back(self, defaults: Sequence[str]) -> None:
        """Undo the script's changes before this process restarts by `exec`; variables of `defaults`, which detrain has set, are removed."""
        os.environ.clear()
        os.environ.update({name: value for name, value in self._variables.items() if name not in defaults})
        os.chdir(self._folder)
        os.umask(self._mask)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is signal.SIG_IGN and number not in self._ignored:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)


def _record_of_run(request: Request) -> RunRecord | None:
    """The record of the run that the attempt goes on with; None if it begins one, or begins one again."""
    directory = RunDirectory(Path(request.ckpt_dir))
    if not directory.path.is_dir() or request.fresh:
        return None
    if directory.finished_at() and not request.trust_changes:
        return None  # it ends at once
    if not directory.checkpoint_paths() and request.goal is None:
        return None
    return directory.read_record()


def _held(request: Request, record: RunRecord | None) -> dict[str, str | None]:
    """What a run that goes on wants of the environment, where it is another now."""
    if record is None or record.machine is None or request.trusts:
        return {}
    return machine.restrict_to_recorded(record.machine, request.machine or machine.describe(frameworks.VARIABLES))


def prepare(request: Request) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of a process that runs the script: `python boot.py SCRIPT ARGS…`.

    Switches address-space randomisation off for what this process becomes or starts.
    """
    environment = dict(os.environ)
    request.defaults = [name for name in _DEFAULTS if name not in environment]
    for name in request.defaults:
        environment[name] = _DEFAULTS[name]
    library = preload.library()
    if library is not None:
        environment[preload.SEED_VARIABLE] = request.entropy or entropy.key_of_program(request)
        others = [name for name in environment.get("LD_PRELOAD", "").split(":") if name and name != str(library)]
        environment["LD_PRELOAD"] = ":".join([str(library), *others])
    request.is_address_space_fixed = fix_address_space()
    environment[REQUEST] = request.encode()
    boot = Path(__file__).with_name("boot.py")
    target = ["-m", request.module] if request.module else [request.script]
    flags = interpreter_flags(sys.orig_argv[1:]) if request.interpreter is None else request.interpreter
    return [sys.executable, *flags, str(boot), *target, *request.arguments], environment


def fix_address_space() -> bool:
    """Switch address-space randomisation off for what this process becomes; False where the system does not let us.

    With it, `id()` and so the order of sets of objects differ from one process to the next.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        before = libc.personality(ctypes.c_ulong(_READ_ONLY))
        return bool(before >= 0 and libc.personality(ctypes.c_ulong(before | _ADDR_NO_RANDOMIZE)) >= 0)
    except (OSError, AttributeError):
        return False


def can_fix_address_space() -> bool:
    """True if the system lets a process switch address-space randomisation off; nothing is changed for good."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        before = libc.personality(ctypes.c_ulong(_READ_ONLY))
        is_possible = before >= 0 and fix_address_space()
        if before >= 0:
            libc.personality(ctypes.c_ulong(before))
    except (OSError, AttributeError):
        return False
    return is_possible


def interpreter_flags(words: list[str]) -> list[str]:
    """The interpreter's own flags (-O, -u, -W …, -X …) at the beginning of its command line; they are the script's as well."""
    flags: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-") or word in ("-", "--") or word[1] in "mc":
            break
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            flags += words[position : position + 2]
            position += 2
            continue
        if word[1] not in "WX-" and word[-1] in "mc":  # `-um detrain`
            flags.append(word[:-1])
            break
        flags.append(word)
        position += 1
    return flags
