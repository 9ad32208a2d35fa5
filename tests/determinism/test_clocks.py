"""What a script reads from the clocks while it trains: the same where a batch is done again, and never in the way of a deadline."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from detrain.world import loop_clock_log
from tests.tiers import full_but

#: Readings end up in variables, in the script's file, in a library's object, and decide what is trained.
TIMED = """
import datetime, os, sys, time
import torch
from tqdm import tqdm

begin = time.perf_counter()
torch.manual_seed(time.perf_counter_ns() % 2**31)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
data = torch.randn(30, 8, 4)
took, stamps, since = [], [], time.time()
log = open("log.txt", "a")
for epoch in range(3):
    start = time.time()
    bar = tqdm(data, mininterval=0.001, file=sys.stdout)
    for number, batch in enumerate(bar):
        before = time.monotonic()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        took.append(time.monotonic() - before)
        if time.time() - since > 0.01:
            since = time.time()
            stamps.append(datetime.datetime.now())
            with torch.no_grad():
                model.weight.mul_(0.99)
        log.write(f"{epoch} {number} {time.time()} {time.process_time()}\\n")
        log.flush()
        time.sleep(0.002)
        if os.environ.get("DIE") == f"{epoch} {number}":
            os.kill(os.getpid(), 9)
    seconds = time.time() - start, time.thread_time_ns(), time.perf_counter() - begin
print("the end", len(stamps), min(took) >= 0, seconds[2] > 0)
"""


@pytest.mark.full
@pytest.mark.usefixtures("sandbox")
@pytest.mark.whole  # `verify` starts a process, in which loading a library reads clocks as well
def test_a_run_of_times_that_was_killed_reads_them_again_and_is_proved(script) -> None:
    one = script(TIMED)
    log, plain = one.folder / "log.txt", []
    for _ in range(2):
        one.plainly()
        plain.append(log.read_text(encoding="utf-8"))
        log.unlink()
    assert plain[0] != plain[1]
    lines = []
    for place in ("0 4", "1 27", "2 11"):  # the first before any checkpoint
        one.attempt("run", "--every", "40batches", status=-9, DIE=place)
        lines.append(log.read_text(encoding="utf-8").splitlines())
    end = one.attempt("run", "--every", "40batches")
    assert re.search(r"the end \d+ True True", end)
    assert "resumed at epoch 2, batch 0" in one.said
    last = log.read_text(encoding="utf-8").splitlines()
    for before in lines:
        assert last[: len(before)] == before  # the batches that were done again wrote the very lines
    assert len(last) == 90
    seconds = [float(line.split()[3]) for line in last]
    assert seconds == sorted(seconds)  # of processor time: each attempt begins at none, the clock goes on
    found = json.loads(one.command("verify", "run", "--json"))
    assert [row["result"] for row in found["segments"]] == ["same"] * len(found["segments"])
    assert found["segments"][-1]["files"]["different"] == []


PLAIN = """
import os, time
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
{setup}
for epoch in range(3):
    for number in range(6):
        loss = model(torch.ones(2, 4)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {loop}
        if os.environ.get("DIE") == f"{{epoch}} {{number}}":
            os.kill(os.getpid(), 9)
{end}
"""


def test_a_seed_from_a_clock_that_only_runs_forward_is_told_again(script) -> None:
    one = script(
        PLAIN.format(setup="print(time.perf_counter(), time.monotonic_ns(), time.process_time())", loop="", end="")
    )
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1 2")
    assert one.attempt("run", "--every", "epoch") == before
    assert one.plainly() != before


def test_the_time_of_day_is_the_real_one_where_nothing_is_done_again(script) -> None:
    setup = "import threading\nbegan = time.time()\ndef look(): seen.append(time.time())"
    loop = "seen = []; one = threading.Thread(target=look); one.start(); one.join(); print(epoch, number, time.time(), *seen)"
    one = script(PLAIN.format(setup=setup, loop=loop, end="print('began', began)"))
    one.attempt("run", "--every", "epoch", status=-9, DIE="1 2")
    move_readings(one.folder / "run" / loop_clock_log.NAME, -3600)
    lines = [line.split() for line in one.attempt("run", "--every", "epoch").splitlines()]
    real = float(lines[-1][1])
    times = {(int(words[0]), int(words[1])): [float(word) for word in words[2:]] for words in lines[:-1]}
    assert list(times) == [(epoch, number) for epoch in (1, 2) for number in range(6)]
    for place, (main, thread) in times.items():
        was_done_before = place in ((1, 0), (1, 1), (1, 2))
        assert (main < real - 3000) == was_done_before
        assert abs(thread - main) < 60 or place in ((1, 0), (1, 3))  # others see the clock that the last reading left


def move_readings(path: Path, seconds: int) -> None:
    """As if the killed attempt had run at another time."""
    found = loop_clock_log.read(path)
    found["ns"] += seconds * 10**9
    path.write_bytes(found.tobytes())


@pytest.mark.full
@pytest.mark.whole  # `verify` starts a process, in which loading a library reads clocks as well
@pytest.mark.usefixtures("sandbox")
def test_deadlines_of_the_standard_library_and_of_locks_hold_where_a_run_is_done_again(script) -> None:
    loop = """
        with contextlib.suppress(queue.Empty): queue.Queue().get(timeout=0.02)
        lock.acquire(timeout=0.01)
        with ready: ready.wait(0.01)
        pool.submit(time.sleep, 0.001).result(timeout=50)
        subprocess.run(["true"], timeout=50)
        assert 0 <= plain() - queue.time() + 1 < 50
    """
    setup = (
        "import concurrent.futures, contextlib, queue, subprocess, threading\nlock = threading.Lock(); lock.acquire()\n"
        "ready = threading.Condition(); pool = concurrent.futures.ThreadPoolExecutor(1)\nplain = threading._time"
    )
    one = script(PLAIN.format(setup=setup, loop=loop, end="print('the end')"))
    assert one.attempt("run", "--every", "12batches") == "the end\n"
    assert json.loads(one.command("verify", "run", "--json"))["same"]


@pytest.mark.full
@pytest.mark.whole  # a module that was loaded before the fork keeps the clocks that it took then
def test_the_clocks_look_as_under_python(script) -> None:
    facts = """
class Timer:
    clock = time.perf_counter  # no method is made of a built-in function
import copy, inspect, pickle, timeit
for name in ("monotonic", "perf_counter_ns", "process_time", "thread_time_ns"):
    one = getattr(time, name)
    print(one, type(one), one.__module__, one.__qualname__, one.__doc__, one.__self__, inspect.isbuiltin(one))
    print(pickle.loads(pickle.dumps(one)) is one, copy.deepcopy(one) is one, type(one()))
    try:
        one(1)
    except TypeError as error:
        print(error)
print(Timer().clock() > 0, timeit.default_timer is time.perf_counter, time.get_clock_info("monotonic"))
before = time.monotonic(), time.monotonic_ns(), time.perf_counter()
print(before[0] <= before[1] / 1e9 <= before[2] <= before[0] + 50)
"""
    one = script(PLAIN.format(setup=facts, loop="", end=""))
    assert one.attempt("run") == one.plainly()


def test_what_a_changed_script_reads_is_not_taken_from_before(script) -> None:
    one = script(PLAIN.format(setup="", loop="print(epoch, number, time.time(), flush=True)", end=""))
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1 4")
    again = one.attempt("run", "--every", "epoch", "--trust-changes", status=-9, DIE="2 1")
    times = [line.split()[2] for line in before.splitlines()[6:]]
    assert not set(times) & {line.split()[2] for line in again.splitlines()}
    # And what stands in the log now is what the second attempt has read.
    rest = one.attempt("run", "--every", "epoch")
    assert set(rest.splitlines()) > set(again.splitlines()[6:])


CRITIC = """
import os, time, torch
model, critic = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
optimizer, of_critic = torch.optim.SGD(model.parameters(), 0.01), torch.optim.SGD(critic.parameters(), 0.01)
def step(model, optimizer):
    loss = model(torch.ones(2, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for epoch in range(3):
    for number in range(6):
        for _ in range(3):
            time.sleep(float(os.environ.get("SLOW", 0)))
            step(critic, of_critic)
            print(time.time(), time.monotonic(), flush=True)
        step(model, optimizer)
        print(time.time(), time.monotonic(), flush=True)
        if os.environ.get("DIE") == f"{epoch} {number}":
            os.kill(os.getpid(), 9)
"""
TWO_LOOPS = """
import os, time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for number in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print(time.time(), time.monotonic(), flush=True)
for number in range(6):
    time.sleep(float(os.environ.get("SLOW", 0)))
    print(time.time(), time.monotonic(), flush=True)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    print(time.time(), time.monotonic(), flush=True)
    if os.environ.get("DIE") == str(number):
        os.kill(os.getpid(), 9)
"""


@pytest.mark.full
@pytest.mark.parametrize(("text", "place"), [(CRITIC, "0 4"), (CRITIC, "1 2"), (TWO_LOOPS, "2")])
@pytest.mark.parametrize("slow_s", ["0", "0.05"])  # the later attempt, while it does again what the first has done
def test_no_clock_goes_back_where_the_first_attempt_counted_its_batches_otherwise(
    script, text: str, place: str, slow_s: str
) -> None:
    """It took an inner loop for the batch loop, or found a second one in the middle of its first batch."""
    one = script(text)
    one.attempt("run", "--every", "never", status=-9, DIE=place)
    again = one.attempt("run", "--every", "never", SLOW=slow_s)
    assert len(again.splitlines()) > 12
    for times in zip(*(map(float, line.split()) for line in again.splitlines()), strict=True):
        assert list(times) == sorted(times)


def test_another_thread_is_given_a_deadline_that_it_can_keep(script) -> None:
    setup = (
        "import concurrent.futures\npool = concurrent.futures.ThreadPoolExecutor(1)\n"
        "def left(deadline): return deadline - time.monotonic()"
    )
    loop = (
        "time.sleep(float(os.environ.get('SLOW', 0)) * (epoch == 1))\n"
        "        print(epoch, number, pool.submit(left, time.monotonic() + 2).result(), flush=True)"
    )
    one = script(PLAIN.format(setup=setup, loop=loop, end="pool.shutdown()"))
    one.attempt("run", "--every", "epoch", status=-9, DIE="1 4")
    left = [float(line.split()[2]) for line in one.attempt("run", "--every", "epoch", SLOW="0.7").splitlines()]
    assert len(left) == 12
    assert all(0 < seconds < 2.1 for seconds in left)


@pytest.mark.parametrize(
    "clock", full_but(["time.time()"], ["time.perf_counter()", "time.time()", "datetime.datetime.now()"])
)
def test_what_a_signal_handler_raises_while_set_up_code_reads_a_clock_is_not_lost(script, clock: str) -> None:
    setup = f"""
import datetime, signal
def stop(*_): raise TimeoutError("stopped")
signal.signal(signal.SIGALRM, stop)
for _ in range(10):
    signal.setitimer(signal.ITIMER_REAL, 0.03)
    try:
        now = 1
        while now:
            now = {clock}
            more = now
    except TimeoutError as error:
        print(error)
"""
    one = script(PLAIN.format(setup=setup, loop="", end=""))
    assert one.attempt("run") == one.plainly() == "stopped\n" * 10


def test_readings_stand_where_a_resume_that_trusts_changes_has_passed_through(script) -> None:
    one = script(
        PLAIN.format(setup="", loop="print(epoch, number, time.time(), flush=True)", end="").replace(
            "range(6)", "range(20)"
        )
    )
    one.attempt("run", "--every", "5batches", status=-9, DIE="1 16")
    one.attempt("run", "--every", "5batches", "--trust-changes", status=-9, DIE="1 18")
    assert "resumed at epoch 1, batch 15" in one.said
    found = loop_clock_log.read(one.folder / "run" / loop_clock_log.NAME)["batch"].tolist()
    assert found == sorted(found)
    assert set(found) == set(range(2, 40))


def test_the_real_time_is_back_behind_the_loop(script) -> None:
    end = """
print("a", time.time(), flush=True)
if "AFTER" in os.environ: os.kill(os.getpid(), 9)
print("b", time.time())
print("c", time.time())
"""
    one = script(PLAIN.format(setup="", loop="", end=end))
    one.attempt("run", "--every", "epoch", status=-9, AFTER="1")
    move_readings(one.folder / "run" / loop_clock_log.NAME, -3600)
    real = (one.folder / "run" / loop_clock_log.NAME).stat().st_mtime
    times = {line.split()[0]: float(line.split()[1]) for line in one.attempt("run", "--every", "epoch").splitlines()}
    assert times["a"] < real - 3000  # done again
    assert times["b"] > real - 60
    assert times["c"] >= times["b"]


def test_clocks_can_be_read_while_the_interpreter_ends(script) -> None:
    setup = """
class Late:
    def __del__(self, clock=time.perf_counter, write=os.write, range=range, bytes=bytes):
        junk = [bytes(n) + b"\\xff" * n for i in range(3000) for n in (16, 24, 32, 48)]
        clock()
        write(1, b"deleted\\n")
os._late = Late()
"""
    one = script(PLAIN.format(setup=setup, loop="", end=""))
    said = one.attempt("run", PYTHONMALLOC="malloc", MALLOC_PERTURB_="165")
    assert said == "deleted\n"


def test_an_interpreter_within_the_interpreter_can_be_made(script) -> None:
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    one = script(f"import time, {name} as made\nmade.destroy(made.create())\nprint(time.time() > time.perf_counter())")
    assert one.attempt("run") == "True\n"
