"""Signals, sent by itself and from outside."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

Same = Callable[..., Any]
LOOPS = {
    "while_sleeping": "time.sleep(30)\n",
    "in_a_for_loop": "for i in range(3000):\n    time.sleep(0.01)\n",
    "in_a_while_loop": "while True:\n    x = [k for k in range(9)]\n",
}


def ctrl_c(process: Any) -> None:
    """As a terminal does it: to the whole process group."""
    time.sleep(0.1)  # so that the script has left the print that says it is ready
    os.killpg(process.pid, signal.SIGINT)


def terminate(process: Any) -> None:
    """As `kill`, and a batch system, do it."""
    os.kill(process.pid, signal.SIGTERM)


def without_lines(script: str) -> str:
    """Wrap a script so that the line where the signal hit, which is a matter of chance, does not show."""
    return (
        "import sys, time\nsys.excepthook = lambda t, e, b: print(t.__name__, e.args)\nprint('ready', flush=True)\n"
        + script
    )


@pytest.mark.parametrize("where", LOOPS)
def test_ctrl_c_ends_the_script(same: Same, where: str) -> None:
    same(without_lines(LOOPS[where]), steer=ctrl_c, status=-signal.SIGINT, says="KeyboardInterrupt ()")


def test_ctrl_c_shows_the_line_it_hit(same: Same) -> None:
    script = """
        import time

        def wait():
            for i in range(1):
                print("ready", flush=True) or time.sleep(30)

        wait()
        """
    outcome = same(script, steer=ctrl_c, status=-signal.SIGINT, says="KeyboardInterrupt")
    assert outcome.stderr.count("File ") == 2


def test_ctrl_c_can_be_caught(same: Same) -> None:
    same(
        """
        import sys, time
        try:
            print("ready", flush=True)
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt as error:
            print("saving", repr(error), error.__context__)
        finally:
            print("closing")
        sys.exit(130)
        """,
        steer=ctrl_c,
        status=130,
        says="saving KeyboardInterrupt()",
    )


@pytest.mark.parametrize("where", LOOPS)
def test_sigterm_ends_the_script_at_once(same: Same, where: str) -> None:
    script = "import time, atexit\natexit.register(print, 'never')\nprint('ready', flush=True)\n" + LOOPS[where]
    assert same(script, steer=terminate, status=-signal.SIGTERM).stdout == "ready\n"


def test_sigterm_reaches_the_scripts_own_handler(same: Same) -> None:
    same(
        """
        import signal, sys, time

        def handler(number, frame):
            print("handler", number, frame.f_code.co_name, frame.f_code.co_filename == __file__)
            sys.exit(4)

        print(repr(signal.signal(signal.SIGTERM, handler)))
        print(signal.getsignal(signal.SIGTERM) is handler)

        def train():
            print("ready", flush=True)
            while True:
                time.sleep(0.01)

        train()
        """,
        steer=terminate,
        status=4,
        says=["<Handlers.SIG_DFL: 0>", "handler 15 train True"],
    )


def test_a_handler_that_sets_a_flag_lets_the_loop_finish(same: Same) -> None:
    same(
        """
        import signal, time
        stop = []
        signal.signal(signal.SIGTERM, lambda *_: stop.append("asked"))
        signal.signal(signal.SIGUSR2, lambda *_: stop.append("unused"))
        print("ready", flush=True)
        while not stop:
            time.sleep(0.01)
        print(stop)
        """,
        steer=terminate,
        says="['asked']",
    )


def test_a_script_finds_the_handlers_that_python_gives_it(same: Same) -> None:
    same(
        """
        import signal
        for number in sorted(signal.valid_signals()):
            print(number, repr(signal.getsignal(number)))
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        for name in ("SIGTERM", "SIGUSR2", "SIGINT", "SIGHUP"):
            number = getattr(signal, name)
            print(name, [signal.signal(number, h) for h in (signal.SIG_IGN, signal.SIG_DFL)], signal.getsignal(number))
        print(signal.set_wakeup_fd(-1), signal.getitimer(signal.ITIMER_REAL), signal.alarm(0))
        """,
        says="SIGTERM [<Handlers.SIG_DFL: 0>, <Handlers.SIG_IGN: 1>]",
    )


SENT_TO_ITSELF = {
    "sigterm_by_default": ("os.kill(os.getpid(), signal.SIGTERM)\n", -15),
    "sigterm_ignored": ("signal.signal(15, signal.SIG_IGN)\nos.kill(os.getpid(), 15)\n", 0),
    "sigterm_put_back": ("h = signal.signal(15, print)\nsignal.signal(15, h)\nos.kill(os.getpid(), 15)\n", -15),
    "sigterm_raised": ("signal.raise_signal(signal.SIGTERM)\n", -15),
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)\n", -9),
    "alarm": ("signal.signal(signal.SIGALRM, lambda n, f: exit(8))\nsignal.setitimer(0, 0.01)\nwhile True: pass\n", 8),
    "two_handlers": (
        "signal.signal(15, lambda *a: print('first'))\nold = signal.getsignal(15)\n"
        "signal.signal(15, lambda *a: (print('second'), old(*a)))\nos.kill(os.getpid(), 15)\n",
        0,
    ),
    "a_handler_that_fails": (
        "def h(n, f):\n    raise RuntimeError('in the handler')\n"
        "signal.signal(15, h)\nfor i in range(2):\n    os.kill(os.getpid(), 15)\n",
        1,
    ),
}


@pytest.mark.parametrize("name", SENT_TO_ITSELF)
def test_a_signal_that_the_script_sends_itself(same: Same, name: str) -> None:
    script, status = SENT_TO_ITSELF[name]
    script = "import os, signal\nprint('sent', flush=True)\n" + script + "print('survived')\n"
    assert ("survived" in same(script, status=status, says="sent").stdout) == (status == 0)
