"""Worker processes outlast what is sent to all of a job's processes, and never the process that they work for."""

WORKERS = """
import os, signal, subprocess, sys
from detrain.world import preload

class Worker:
    def __init__(self, begin):
        inward, outward = os.pipe(), os.pipe()
        self.number = os.fork()
        if not self.number:
            os.close(inward[1])
            begin()
            os.write(outward[1], b"+")
            while os.read(inward[0], 1):
                os.write(outward[1], b"+")
            os._exit(3)
        self.ask, self.answer = inward[1], outward[0]
        os.read(self.answer, 1)

    def survives(self, number):
        subprocess.run(["sh", "-c", f"kill -{int(number)} {self.number}"], check=True)  # somebody else
        os.write(self.ask, b"?")
        return os.read(self.answer, 1) == b"+"

    def end(self):
        status = os.waitpid(self.number, 0)[1]
        return os.waitstatus_to_exitcode(status)

def outlast():
    preload.outlast(os.getppid())

def leave(*_):
    os._exit(5)

"""


def test_what_somebody_else_sends_waits_and_what_the_parent_sends_ends(python) -> None:
    code = """
worker = Worker(outlast)
print(worker.survives(signal.SIGTERM), worker.survives(signal.SIGUSR2), worker.survives(signal.SIGTERM))
os.kill(worker.number, signal.SIGTERM)
print(worker.end())
"""
    assert python(WORKERS + code) == "True True True\n-15\n"


def test_handler_that_was_there_gets_what_the_parent_sends(python) -> None:
    code = """
def begin():
    signal.signal(signal.SIGTERM, leave)
    outlast()
    outlast()

worker = Worker(begin)
print(worker.survives(signal.SIGTERM))
os.kill(worker.number, signal.SIGTERM)
print(worker.end())
"""
    assert python(WORKERS + code) == "True\n5\n"


def test_handler_that_comes_later_stays_and_ignored_signals_stay_ignored(python) -> None:
    code = """
def begin():
    outlast()
    signal.signal(signal.SIGTERM, leave)

worker = Worker(begin)
subprocess.run(["sh", "-c", f"kill {worker.number}"], check=True)
print(worker.end())

def ignore():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    outlast()

worker = Worker(ignore)
os.kill(worker.number, signal.SIGTERM)
os.close(worker.ask)
print(worker.end())
"""
    assert python(WORKERS + code) == "5\n3\n"


def test_what_a_worker_starts_is_no_worker(python) -> None:
    code = """
def begin():
    outlast()
    for number in (signal.SIGTERM, signal.SIGUSR2):
        inward, outward = os.pipe()
        child = os.fork()
        if not child:
            os.write(outward, b"+")  # it is no worker by now
            signal.pause()
        os.read(inward, 1)
        subprocess.run(["sh", "-c", f"kill -{int(number)} {child}"], check=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print(subprocess.run(["sh", "-c", f"kill -{int(number)} $$; echo lives"]).returncode, flush=True)

worker = Worker(begin)
"""
    assert python(WORKERS + code) == "-15\n-15\n-12\n-12\n"


def test_worker_ends_with_its_parent(python) -> None:
    code = """
ready, told = os.pipe()
for _ in range(2):
    number = os.fork()
    if not number:
        outlast()
        os.write(told, b"+")
        signal.alarm(300)
        while True:
            signal.pause()
    os.read(ready, 1)
    subprocess.run(["sh", "-c", f"kill {number}"], check=True)
os._exit(0)
"""
    assert python(WORKERS + code) == ""  # returns when nobody can write to the output any more
