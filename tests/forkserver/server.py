"""Loads a framework once, in the environment of a run, and forks an attempt of `detrain run` whenever it is asked.

Run as a script by `ForkServer` (`python server.py CONTROL MODULE...`, CONTROL being the descriptor of a socket). First it replaces itself
as `detrain run` does, so that hash seed, preload and addresses are those of an attempt. Then it imports the modules and waits.

Each request makes two processes, and one between them that ends at once. The keeper waits for the attempt, tells how it ended, and keeps
its process id from being given to another until the client has heard. The attempt is the head of a session of its own; it goes through
`detrain run` up to the place where that would replace the process, takes over environment and command line from there, and goes on as
the process would that `execve` makes.

Every attempt is forked in the same state, so all begin alike: the server itself runs no code between two forks but the few lines of
`serve`, has no other threads, and has not used the framework.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import re
import signal
import socket
import sys
from typing import NoReturn

#: Set in the process that has replaced itself.
IS_REPLACED = "FORKSERVER_IS_REPLACED"
#: Variables that libraries, the interpreter or the loader read as they begin.
READ_AT_START = re.compile(
    r"DETRAIN_(LEDGER_BUDGET|WAIT_FOR_DISK)|PYTHON|LD_|[A-Z]*_NUM_THREADS|OMP_|MKL_|KMP_|NPY_|ATEN_|(ONE)?DNN|TF_|XLA_|KERAS|TORCH|PYTORCH|CUDA|CUBLAS"
)
#: What an attempt loads by itself sooner or later; of packages, all that is in them.
OWN_MODULES = ["detrain.cli.run", "detrain.launch.attempt", "detrain.rewrite.transform"]
OWN_PACKAGES = [
    "detrain.session",
    "detrain.state",
    "detrain.state.handlers",
    "detrain.store",
    "detrain.loops",
    "detrain.outputs",
]

#: What the client sends, with three descriptors, for an attempt, and for a request that is to start none.
REQUEST, REHEARSAL = b"+", b"-"

STARTED_WITH = dict(os.environ)


class Replaced(BaseException):
    """Stands for the call of `execve` by which `detrain run` becomes an attempt; not an `Exception`, so that nobody handles it."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        super().__init__()
        self.words, self.environment = words, environment


def replace_process() -> NoReturn:
    """Become the server, in the environment of a run."""
    from detrain.launch import environment
    from detrain.launch.request import Request

    request = Request(__file__, "", sys.argv[1:], "server", "", entropy="fork server")
    _, own = environment.prepare(request)
    del own[environment.REQUEST]
    os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], {**own, IS_REPLACED: "1"})


def load(modules: list[str]) -> None:
    """Import the modules, and what detrain loads in an attempt."""
    own = [importlib.import_module(name) for name in OWN_PACKAGES]
    below = [f"{package.__name__}.{found.name}" for package in own for found in pkgutil.iter_modules(package.__path__)]
    for name in [*modules, *OWN_MODULES, *below]:
        importlib.import_module(name)


def fill_free_lists() -> None:
    """Let the interpreter keep as many dictionaries and lists for later use as it ever keeps.

    It allocates some dictionaries anew and keeps them when they are freed: without this the server would hold one more at each request,
    up to 80 of them, and attempts would begin in another memory.
    """
    for make in (dict, list):
        many = [make() for _ in range(1000)]
        many.clear()


def serve(control: socket.socket) -> None:
    """Fork an attempt for each request. Returns in the attempts alone, where `detrain run` would have replaced its process."""
    # Each request is one byte with three descriptors: the client's connection, and the attempt's standard output and error. A rehearsal
    # starts nothing; behind the first few, this loop leaves the memory as it has found it.
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 3)
        if not message:
            os._exit(0)  # the client has ended
        between = os.fork()
        if between == 0:
            # Of a process that has ended at once the server takes leave at once, whatever happens meanwhile: what it does is the same
            # for each request, and so is the memory that an attempt begins with.
            if message == REQUEST and os.fork() == 0:
                break
            os._exit(0)
        os.waitpid(between, 0)
        for number in descriptors:
            os.close(number)
    control.close()
    connection = socket.socket(fileno=descriptors[0])
    process = os.fork()
    if process:
        mark_not_saved(process, connection, descriptors[1:])
    os.setsid()
    connection.sendall(b"%d\n" % os.getpid())
    request = b""
    while not request.endswith(b"\n"):
        request += connection.recv(65536)
    connection.close()
    for number, taken in enumerate(descriptors[1:], 1):
        os.dup2(taken, number)
        os.close(taken)
    begin(**json.loads(request))


def mark_not_saved(process: int, connection: socket.socket, descriptors: list[int]) -> NoReturn:
    """Tell the client how an attempt has ended; reap it once the client has closed its end."""
    for number in descriptors:
        os.close(number)
    ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    connection.sendall(b"%d\n" % status)
    connection.recv(1)
    os.waitpid(process, 0)
    os._exit(0)


def begin(words: list[str], folder: str, environment: dict[str, str]) -> None:
    """Do what `python WORDS...` does up to `execve`, and then what the interpreter would do to begin the new program."""
    from detrain.cli import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.orig_argv = [sys.executable, *words]
    sys.argv = words[1:]  # behind `-m`
    execve = os.execve
    os.execve = replaced  # type: ignore[assignment]
    try:
        status = main()
    except Replaced as new:
        os.execve = execve
        take_over(new.words, new.environment)
    else:
        sys.exit(status)


def replaced(path: str, words: list[str], environment: dict[str, str]) -> NoReturn:
    """In place of `os.execve`."""
    raise Replaced(words, environment)


def take_over(words: list[str], environment: dict[str, str]) -> None:
    """Environment, command line and stream of entropy of the program that would have been started."""
    from detrain.world import preload

    if differing := {name for name, _ in environment.items() ^ STARTED_WITH.items() if READ_AT_START.match(name)}:
        raise RuntimeError(f"an attempt with other {', '.join(sorted(differing))} needs a start of its own")
    os.environ.clear()
    os.environ.update(environment)
    boot = next(place for place, word in enumerate(words) if os.path.basename(word) == "boot.py")
    sys.orig_argv = words
    sys.argv = words[boot:]
    sys.path[0] = os.path.dirname(words[boot])
    if "multiprocessing.process" in sys.modules:  # spawned processes begin in the folder in which it was loaded
        sys.modules["multiprocessing.process"].ORIGINAL_DIR = os.getcwd()
    seed = preload.function("detrain_entropy_seed", ctypes.c_char_p)
    if seed is not None:
        seed.restype = None
        seed(os.fsencode(environment[preload.SEED_VARIABLE]))


if __name__ == "__main__":
    if IS_REPLACED not in os.environ:
        replace_process()
    server = socket.socket(fileno=int(sys.argv[1]))
    server.set_inheritable(False)
    load(sys.argv[2:])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()  # what is loaded here is no garbage of an attempt's, whose end would otherwise look at all of it
    fill_free_lists()  # which `gc.collect` empties
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        sys.exit(f"{num_threads} threads run once {sys.argv[2:]} are loaded: a fork would lose them")
    server.sendall(b"ready")
    serve(server)
    # In an attempt, at the level of the module: what is below the script on the stack has no variables, as in `boot.py`.
    from detrain.launch import attempt

    attempt.main()
