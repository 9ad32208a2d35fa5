"""Broken off after any weight update and run again, a training ends as one that was left alone: in one process, a few milliseconds each."""

import copyreg
import decimal
import lzma
import sys
import types

import pytest

from detrain import hooks
from detrain.errors import ResumeRefused
from detrain.session import saving, session
from detrain.session.goal import Goal
from detrain.store import checkpoint
from detrain.store.record import Change, Invocation
from tests.session.attempts import Again, Framework, Killed, Left, Run, differences, outcome
from tests.state.roundtrip import as_a_new_process

SCRIPTS = {
    "two loops": """
import framework
weights, history = [0.0, 1.0], []
for epoch in range(3):
    order = list(range(5))
    framework.rng.shuffle(order)
    for batch in order:
        framework.backward(weights[0] - batch)
        framework.step(weights, batch)
        history.append(weights[0])
""",
    "one loop that counts": """
import framework
weights, history, step = [0.0, 1.0], [], 0
while step < 12:
    framework.backward(weights[0])
    framework.step(weights, step)
    history.append(weights[0])
    step += 1
""",
    "loops that ask": """
import framework
class Trainer:
    asked = epoch = 0
    def __init__(self): self.weights, self.history = [0.0, 1.0], []
    @property
    def done(self):
        self.asked += 1
        return self.epoch == 3
    def fit(self):
        while not self.done:
            self.batch = 0
            while self.batch < 4:
                framework.backward(self.weights[0])
                framework.step(self.weights, self.batch)
                self.batch += 1
            else:
                self.history.append(self.weights[0])
            self.epoch += 1
        else:
            self.history.append(self.asked)
trainer = Trainer()
trainer.fit()
history = [trainer.history, trainer.weights, trainer.asked]
""",
    "micro-batches": """
import framework
weights, history = [0.0, 1.0], []
for epoch in range(3):
    for update in range(4):
        for micro in range(2):
            framework.backward(weights[0] - micro)
            if micro == 1: framework.step(weights, update)
        history.append(weights[0])
""",
    "in functions": """
import framework
class Trainer:
    def __init__(self): self.weights, self.seen, self.best = [0.0, 1.0], 0, None
    def fit(self, epochs):
        for epoch in range(epochs):
            total = self.epoch(epoch)
            if self.best is None or total > self.best[0]: self.best = (total, list(self.weights))
        return self.best
    def epoch(self, epoch):
        total = 0.0
        for number, batch in enumerate(range(4)):
            framework.backward(self.weights[0])
            framework.step(self.weights, batch + epoch)
            total += self.weights[0] * number
            self.seen += 1
        return total
trainer = Trainer()
best = trainer.fit(3)
history = [trainer.weights, trainer.seen, trainer.best]
""",
    "a loader of its own": """
import framework
class Loader:
    def __init__(self): self.passes = 0
    def __iter__(self):
        self.passes += 1
        for n in range(5): yield n * self.passes + framework.rng.random()
loader, weights, history = Loader(), [0.0, 1.0], []
for epoch in range(3):
    for batch in loader:
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append((epoch, weights[0]))
""",
    "folds around epochs": """
import framework, random
results, history = {}, []
for fold in "ab":
    weights = [random.random(), 1.0]
    for epoch in range(2):
        for batch in range(3):
            framework.backward(weights[0])
            framework.step(weights, batch)
            history.append(weights[0])
    results[fold] = weights
""",
    "two trainings, one after the other": """
import framework
weights, history = [0.0, 1.0], []
for epoch in range(2):
    for batch in range(3):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append(weights[0])
head = [weights[0], 2.0]
for epoch in range(2):
    for batch in range(3):
        framework.backward(head[0])
        framework.step(head, batch)
        history.append(head[0])
""",
    "an engine that trains and evaluates": """
import framework
class Engine:
    def __init__(self, process): self.process, self.handlers = process, []
    def run(self, data, epochs):
        self.epoch = 0
        while self.epoch < epochs:
            for batch in data: self.process(batch)
            self.epoch += 1
            for handler in self.handlers: handler()
weights, history = [0.0, 1.0], []
def train(batch):
    framework.backward(weights[0])
    framework.step(weights, batch)
trainer, evaluator = Engine(train), Engine(lambda batch: history.append(weights[0] * batch))
trainer.handlers = [lambda: evaluator.run(range(3), 1), lambda: history.append(framework.rng.random())]
evaluator.run(range(2), 1)
trainer.run(range(4), 3)
""",
    "a function that calls itself around the training": """
import framework
weights, history = [0.0, 1.0], []
def search(space, chosen):
    for value in space[0]:
        if space[1:]:
            search(space[1:], [*chosen, value])
        else:
            for batch in range(3):
                framework.backward(weights[0] - value)
                framework.step(weights, batch + sum(chosen))
                history.append(weights[0])
search([range(2), range(2, 4), range(2)], [])
""",
    "a loop that is left early": """
import framework
weights, history = [0.0, 1.0], []
for epoch in range(4):
    for batch in range(6):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append(weights[0])
        if batch == epoch + 2: break
    else:
        history.append("whole")
    if framework.rng.random() < 0.1: framework.mode = "eval"
""",
}


@pytest.fixture(scope="module", autouse=True)
def _as_a_new_process():
    with as_a_new_process():
        yield


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def new_run(tmp_path):
    """Makes runs, each in a folder of its own."""

    def make(source, every="3batches", name="run"):
        folder = tmp_path / name
        folder.mkdir()
        return Run(source, folder, every)

    return make


@pytest.mark.parametrize("name", ["loops that ask", "one loop that counts"])
def test_the_last_test_of_a_while_begins_no_batch(name, new_run):
    ended = new_run(SCRIPTS[name]).attempt()
    assert ended.by is None
    position = ended.session.context.position
    assert (position.batches, position.epochs) == {"loops that ask": (12, 3), "one loop that counts": (12, 0)}[name]
    assert ended.session.is_nest_exhausted


def test_a_loop_that_makes_up_one_update_is_no_batch_loop(new_run):
    run = new_run(SCRIPTS["micro-batches"], "epoch")
    ended = run.attempt()
    assert [one.name for one in run.checkpoints()] == ["checkpoint_1_0.h5", "checkpoint_2_0.h5", "checkpoint_3_0.h5"]
    assert all(len(one.meta.position) == 1 for one in run.directory.read_checkpoints()[0])
    assert [[one.part for one in nest] for nest in ended.session.context.info.nests] == [["epoch", "batch"]]
    position = ended.session.context.position
    assert position.epochs == 3
    assert 12 <= position.batches <= 14  # those that the wrong loop has counted may stay


def test_an_evaluation_by_the_loops_of_the_training_is_none_of_its_epochs(new_run):
    run = new_run(SCRIPTS["an engine that trains and evaluates"], "epoch")
    position = run.attempt().session.context.position
    assert (position.batches, position.epochs) == (12, 3)
    assert [one.name for one in run.checkpoints()] == ["checkpoint_1_0.h5", "checkpoint_2_0.h5", "checkpoint_3_0.h5"]


@pytest.mark.parametrize("name", ["loops that ask", "one loop that counts"])
def test_the_end_of_a_while_is_resumed_without_its_test(name, new_run):
    run = new_run(SCRIPTS[name], "epoch")
    expected = outcome(run.attempt())
    ended = run.attempt()
    assert ended.session.resume.checkpoint.meta.is_exhausted
    assert ended.steps == 0
    assert outcome(ended) == expected
    position = ended.session.context.position
    assert (position.batches, position.epochs) == {"loops that ask": (12, 3), "one loop that counts": (12, 0)}[name]


BROKEN_OFF = """
import framework
weights, history = [0.0, 1.0], []
for epoch in range(100):
    for batch in range(4):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append(weights[0])
    if len(history) == 12: break
evaluated = framework.rng.random()
"""


def test_a_training_that_ends_by_a_break_is_resumed_behind_it(new_run):
    run = new_run(BROKEN_OFF, "epoch")
    left_alone = run.attempt()
    expected = outcome(left_alone)
    assert left_alone.session.is_behind
    ended = run.attempt()
    assert (ended.steps, ended.session.resume.checkpoint.meta.is_exhausted) == (0, True)
    assert outcome(ended) == expected
    position = ended.session.context.position
    assert (position.batches, position.epochs) == (12, 3)


@pytest.mark.parametrize("loop", ["while True:\n    epoch = len(history) // 4", "for epoch in iter(int, 1):"])
def test_so_is_one_in_another_loop(loop, new_run):
    run = new_run(BROKEN_OFF.replace("for epoch in range(100):", loop), "epoch")
    expected = outcome(run.attempt())
    ended = run.attempt()
    assert ended.steps == 0
    assert outcome(ended) == expected
    position = ended.session.context.position
    assert (position.batches, position.epochs) == (12, 3)


def test_a_loop_that_a_signal_has_had_left_is_gone_on_with(new_run, monkeypatch):
    run = new_run(BROKEN_OFF, "epoch")
    made = session.Session.__init__

    def begin(self, *words, **more):
        made(self, *words, **more)
        self.end_asked_for = lambda: "SIGTERM"

    monkeypatch.setattr(session.Session, "__init__", begin)
    assert run.attempt().by is None
    assert not any(one.meta.is_exhausted for one in run.directory.read_checkpoints()[0])


def test_a_loop_with_an_else_that_a_break_leaves_is_not_taken_for_one_that_has_ended(new_run):
    source = BROKEN_OFF.replace("evaluated =", "else:\n    history.append('never')\nevaluated =")
    run = new_run(source, "epoch")
    expected = outcome(run.attempt())
    assert outcome(run.attempt()) == expected
    assert not any(one.meta.is_exhausted for one in run.directory.read_checkpoints()[0])


@pytest.mark.parametrize("every", ["1batch", "3batches", "epoch"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_killed_after_any_step_a_run_ends_as_one_left_alone(name, every, new_run):
    whole = new_run(SCRIPTS[name], every, "whole")
    left_alone = whole.attempt()
    expected = outcome(left_alone)
    for kill_at in range(1, left_alone.steps + 1, 2):
        killed = new_run(SCRIPTS[name], every, f"killed {kill_at}")
        assert isinstance(killed.attempt(kill_at).by, Killed)
        assert outcome(killed.attempt()) == expected, kill_at


def test_resume_of_a_resume_and_the_checkpoints_of_both(new_run):
    whole = new_run(SCRIPTS["two loops"], name="whole")
    expected = outcome(whole.attempt())
    killed = new_run(SCRIPTS["two loops"], name="killed")
    for kill_at in (4, 4, 3):
        assert isinstance(killed.attempt(kill_at).by, Killed)
    last = killed.attempt()
    assert outcome(last) == expected
    assert last.steps < 15
    assert len({one.name for one in killed.checkpoints()} & {one.name for one in whole.checkpoints()}) >= 4
    assert differences(whole, killed) == []


def test_checkpoint_that_is_named_is_gone_on_from(new_run):
    run = new_run(SCRIPTS["two loops"], "1batch")
    expected = outcome(run.attempt())
    again = run.attempt(start="checkpoint_1_2.h5")
    assert outcome(again) == expected
    assert again.steps == 8
    with pytest.raises(ResumeRefused, match="no such checkpoint"):
        run.attempt(start="checkpoint_9_9.h5")


def test_damaged_checkpoint_is_passed_over(new_run):
    run = new_run(SCRIPTS["two loops"], "1batch")
    expected = outcome(run.attempt())
    last = max(run.checkpoints(), key=lambda path: path.stat().st_mtime_ns)
    content = bytearray(last.read_bytes())
    content[5000] ^= 1
    last.write_bytes(content)
    assert outcome(run.attempt()) == expected


BAD_LUCK = """
import copyreg, decimal, framework
def rebuild(): raise RuntimeError("out of luck")
copyreg.pickle(decimal.Context, lambda one: (rebuild, ()))
held, weights, history = [], [0.0, 1.0], []
for epoch in range(3):
    for batch in range(4):
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append(weights[0])
        if len(history) == 6: held.append(decimal.Context())
        if len(history) == 12: del held[:]
"""


def test_checkpoint_that_cannot_be_restored_goes_aside_with_those_that_build_on_it(new_run, capfd, monkeypatch):
    monkeypatch.setitem(copyreg.dispatch_table, decimal.Context, None)  # as it is before, afterwards
    run = new_run(BAD_LUCK, "1batch")
    expected = outcome(new_run(BAD_LUCK, name="whole").attempt())
    assert isinstance(run.attempt(kill_at=10).by, Killed)
    there = {path.name for path in run.checkpoints()}
    ended = run.attempt(starts_again=True)
    while isinstance(ended.by, Again):  # the script begins anew, with the checkpoint before
        ended = run.attempt(starts_again=True)
    assert outcome(ended) == expected
    assert ended.steps > 12 - 6
    aside = {path.name for path in (run.directory.path / "aside").iterdir()}
    assert {"checkpoint_2_0.h5", "checkpoint_2_1.h5"} <= aside <= there
    assert "checkpoint_1_0.h5" not in aside
    said = capfd.readouterr().err
    assert "cannot be restored: RuntimeError: out of luck. " in said
    assert "went to the folder aside/; the run goes on from an earlier checkpoint [checkpoint-set-aside]" in said


def test_another_environment_is_refused(new_run, capfd):
    run = new_run(SCRIPTS["two loops"])
    run.attempt(7)
    other = Framework()
    other.version = "2.0"
    ended = run.attempt(framework=other)
    assert isinstance(ended.by, Left)
    assert "framework is 2.0, was 1.0" in capfd.readouterr().err
    other = Framework()
    other.version = "2.0"
    assert run.attempt(framework=other, is_trusting=True).by is None


def test_state_that_is_not_exact_is_refused_and_the_ledger_names_it(new_run, capfd):
    run = new_run(SCRIPTS["two loops"])
    run.attempt(8)
    other = Framework()
    plain = other.step
    other.step = lambda weights, by: plain(weights, by + 1e-9)
    assert isinstance(run.attempt(framework=other).by, Left)
    assert "differs from what the killed attempt had there" in capfd.readouterr().err


def test_what_cannot_be_captured_is_said_once_and_refused_at_the_resume(new_run, capfd):
    script = "async def f(): yield\nheld = f()\n" + SCRIPTS["two loops"]
    run = new_run(script, "1batch")
    run.attempt(7)
    assert capfd.readouterr().err.count("[not-captured]") == 1
    ended = run.attempt()
    assert isinstance(ended.by, Left)
    assert "may not be exact" in capfd.readouterr().err


def test_loop_that_is_reached_another_way_is_refused(new_run, capfd):
    script = """
import framework
def train(n):
    w = [0.0, 1.0]
    for epoch in range(n):
        for batch in range(3):
            framework.backward(w[0])
            framework.step(w, batch)
    return w
"""
    run = new_run(script + "history = train(3)\n", "1batch")
    run.attempt(5)
    run.source = script + "def other(n): return train(n)\nhistory = other(3)\n"
    ended = run.attempt(is_trusting=True)
    assert isinstance(ended.by, Left)
    assert "is now reached through" in capfd.readouterr().err


def test_full_disk_is_said_and_the_training_goes_on(new_run, capfd, monkeypatch):
    run = new_run(SCRIPTS["two loops"], "1batch")

    def fails(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(saving, "commit", fails)
        ended = run.attempt()
    assert ended.by is None
    said = capfd.readouterr().err
    assert said.count("no checkpoint could be written") == 1
    assert "to the end of the script" in said
    assert run.checkpoints() == []


def test_script_that_raises_has_its_checkpoints(new_run):
    fails = "    if len(history) == 11 and framework.kill_at == 0: raise ValueError\n        history.append"
    run = new_run(SCRIPTS["two loops"].replace("    history.append", fails), "1batch")
    expected = outcome(run.attempt())
    other = new_run(run.source, "1batch", "other")
    assert isinstance(other.attempt(0).by, ValueError)
    assert outcome(other.attempt()) == expected


@pytest.mark.parametrize("every", ["never", "auto", "0.001s"])
def test_by_the_clock_or_never_the_bits_are_the_same(every, new_run):
    expected = outcome(new_run(SCRIPTS["two loops"], "epoch", "whole").attempt())
    run = new_run(SCRIPTS["two loops"], every)
    assert isinstance(run.attempt(11).by, Killed)
    assert outcome(run.attempt()) == expected


@pytest.mark.parametrize(
    ("every", "names"),
    [
        # Nothing leads to the middle of the second epoch but the batches before it: wait for its end.
        ("never", ["checkpoint_2_0.h5"]),
        # Its beginning is held in memory.
        ("2epochs", ["checkpoint_1_0.h5", "checkpoint_1_3.h5", "checkpoint_3_0.h5"]),
    ],
)
def test_checkpoint_that_is_asked_for_is_taken_where_a_resume_gets_to(every, names, new_run):
    script = SCRIPTS["two loops"].replace(
        "    history.append", "    if len(history) == 7: framework.ask()\n        history.append"
    )
    run = new_run(script, every)
    framework = Framework()
    framework.ask = lambda: hooks.session.request_checkpoint()
    run.attempt(framework=framework)
    assert [path.name for path in run.checkpoints()] == names


def test_random_numbers_and_files_in_memory_come_back(new_run):
    script = """
import framework, io, random, logging, collections, functools, itertools
log = io.StringIO()
logging.getLogger("train").addHandler(logging.StreamHandler(log))
rng, weights, history = random.Random(1), [0.0, 1.0], collections.deque(maxlen=4)
@functools.lru_cache
def noise(n): return rng.random()
batches = itertools.cycle([1, 2, 3])
steps = itertools.count()
for epoch in range(3):
    for _ in range(4):
        batch = next(batches) + noise(next(steps) // 2) + random.gauss(0, 1)
        framework.backward(weights[0])
        framework.step(weights, batch)
        history.append((weights[0], noise.cache_info().currsize))
        logging.getLogger("train").warning("step %d", len(history))
text = log.getvalue()
del log, rng, batches, steps
"""
    expected = outcome(new_run(script, name="whole").attempt())
    for kill_at in range(1, 13):
        run = new_run(script, name=f"killed {kill_at}")
        run.attempt(kill_at)
        assert outcome(run.attempt()) == expected, kill_at


#: A loader that a script calls by itself, and that cannot be written down: its calls are counted, and replayed.
REPLAYED = """
import framework
class Loader:
    def __init__(self): self.pass_through, self.position = (n * n for n in range(99)), 0
    def take(self, count):
        self.position += count
        return [next(self.pass_through) for _ in range(count)]
loader, weights, history = Loader(), [0.0, 1.0], []
for epoch in range(3):
    for number in range(4):
        batch = loader.take(2)
        framework.backward(weights[0])
        framework.step(weights, sum(batch))
        history.append(weights[0])
"""


def test_calls_of_a_loader_are_replayed(new_run, monkeypatch):
    traced = {
        "loop_type": {"type": "ON_CUSTOM"},
        "dataloader": {"next": ["__main__", "Loader.take"], "persistent": False},
    }
    expected = outcome(new_run(REPLAYED, "1batch", "whole").attempt())
    for kill_at in (1, 5, 10):
        run = new_run(REPLAYED, "1batch", f"killed {kill_at}")
        run.extra = traced
        assert isinstance(run.attempt(kill_at).by, Killed)
        assert outcome(run.attempt()) == expected


ARGUMENTS = """
import framework
rate, epochs = 0.5, 3
weights, history = [0.0, 1.0], []
for epoch in range(epochs):
    for batch in range(4):
        framework.backward(weights[0])
        framework.step(weights, batch * rate)
        history.append(weights[0])
"""


def other_arguments(run, **options):
    """A later attempt of a script that has other arguments, with what the old ones made found out."""
    new = Invocation(("--rate", "2"), 0)
    run.source = run.source.replace("rate, epochs = 0.5, 3", options.pop("now"))
    run.arguments = list(new.arguments)
    run.changes = [Change(Invocation((), 0), new, options.pop("keeps", ""))]
    return run.attempt(is_trusting=True)


def test_with_other_arguments_what_the_loop_has_not_changed_follows_them(new_run, capfd):
    run = new_run(ARGUMENTS, "1batch")
    run.attempt(6)
    run.probe()
    ended = other_arguments(run, now="rate, epochs = 2.0, 4")
    assert ended.by is None
    assert "values follow" in capfd.readouterr().err
    assert (ended.variables["rate"], ended.variables["epochs"], len(ended.variables["history"])) == (2.0, 4, 16)


def test_with_other_arguments_what_the_loop_has_changed_too_is_refused(new_run, capfd):
    run = new_run(ARGUMENTS.replace("history.append(weights[0])", "history.append(weights[0]); rate *= 0.9"), "1batch")
    run.attempt(6)
    run.probe()
    ended = other_arguments(run, now="rate, epochs = 2.0, 3")
    assert isinstance(ended.by, Left)
    assert "the loop has changed what they would make otherwise" in capfd.readouterr().err
    ended = other_arguments(run, now="rate, epochs = 2.0, 3", keeps="conflicts")
    assert ended.by is None
    assert "[arguments-ignored]" in capfd.readouterr().err


def test_part_of_a_run_is_done_again_up_to_a_checkpoint(new_run):
    run = new_run(SCRIPTS["two loops"], "1batch")
    run.attempt()
    again = new_run(SCRIPTS["two loops"], "never", "again")
    (again.folder / "run").mkdir()
    last = next(path for path in run.checkpoints() if path.name == "checkpoint_1_3.h5")
    meta = checkpoint.read_header(last).meta
    position = [loop._replace(filename=str(again.folder / "train.py")) for loop in meta.position]
    again.goal = Goal(position)
    ended = again.attempt()
    assert isinstance(ended.by, Left)
    assert ended.steps == 8
    assert [path.name for path in again.checkpoints()] == ["checkpoint_1_3.h5"]


def test_what_a_library_holds_in_its_globals_is_not_the_scripts(new_run, monkeypatch, capfd):
    source = (
        SCRIPTS["two loops"].replace("import framework", "import framework\nfrom library import tool")
        + "\nprint(tool)\n"
    )
    library = types.ModuleType("library")
    library.tool = lzma.LZMACompressor()  # says nothing of its state
    monkeypatch.setitem(sys.modules, "library", library)
    run = new_run(source, "epoch")
    assert isinstance(run.attempt(12).by, Killed)
    assert "not-captured" not in capfd.readouterr().err
    assert run.attempt().by is None
    own = new_run(
        source.replace("from library import tool", "import lzma; tool = lzma.LZMACompressor()"), "epoch", "own"
    )
    own.attempt(12)
    assert "train.tool (_lzma:LZMACompressor)" in capfd.readouterr().err


WORKING = """
import framework, time
from concurrent.futures import ThreadPoolExecutor
weights, history, pool, done = [0.0, 1.0], [], ThreadPoolExecutor(2), []
def work(number):
    time.sleep(0.02)
    done.append(number)
    return number
for epoch in range(3):
    for batch in range(4):
        framework.backward(weights[0])
        framework.step(weights, batch)
        future = pool.submit(work, batch)
        if batch: history.append(last.result())
        last = future
history.append(last.result())
pool.shutdown()
done = len(done)
pool = future = last = None
"""


@pytest.mark.parametrize("kill_at", range(5, 12))
def test_work_that_ends_by_itself_is_waited_for(kill_at, new_run, capfd):
    expected = outcome(new_run(WORKING, "1batch", "whole").attempt())
    run = new_run(WORKING, "1batch")
    assert isinstance(run.attempt(kill_at).by, Killed)
    ended = run.attempt()
    assert ended.session.resume.checkpoint is not None
    assert outcome(ended) == expected
    assert "not-captured" not in capfd.readouterr().err


def test_work_that_does_not_end_is_named(new_run, monkeypatch, capfd):
    monkeypatch.setattr(saving, "LONGEST_WORK_S", 0.05)
    source = WORKING.replace("time.sleep(0.02)", "stop.wait()").replace("last.result()", "1")
    source = source.replace("pool.shutdown()", "stop.set(); pool.shutdown()").replace(
        "def work", "import threading; stop = threading.Event()\ndef work"
    )
    assert new_run(source, "epoch").attempt().by is None
    assert "work is under way in it" in capfd.readouterr().err
