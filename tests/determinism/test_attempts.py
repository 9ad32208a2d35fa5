"""What differs between two attempts of one run under plain `python`, and does not under detrain."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from detrain.world.machine import FEATURES
from tests.tiers import full_but

#: Trains for two epochs; with DIE set it ends in the middle of the second, as a killed process does.
TRAINING = """
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    for batch in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        if os.environ.get("DIE") and epoch == 1 and batch == 2:
            os.kill(os.getpid(), 9)
print("the end", [round(x, 9) for x in model.weight.flatten().tolist()])
"""

SETUPS = {
    "a seed from time.time": "seed = int(time.time() * 1e7)",
    "a seed from time.time_ns": "seed = time.time_ns()",
    "a seed from the process id": "seed = os.getpid()",
    "a seed from both": "seed = hash((os.getpid(), time.time()))",
    "a name from datetime.now": "seed = 1; print(datetime.datetime.now().isoformat())",
    "a name from strftime and the process id": "seed = 1; print(time.strftime('%H:%M:%S'), time.time() % 1, os.getpid())",
    "the time in uuid1": "seed = 1; print(uuid.uuid1().time)",
    "numpy's now": "seed = 1; print(np.datetime64('now'), np.datetime64(datetime.datetime.now()))",
    "the time of a log line": "seed = 1; logging.basicConfig(stream=sys.stdout, format='%(asctime)s %(msecs)s'); logging.error('')",
}


def program(setup: str) -> str:
    return (
        "import datetime, logging, os, sys, time, uuid\nimport numpy as np\nimport torch\n"
        f"{setup}\ntorch.manual_seed(seed % 2**31)\nprint('seed', seed, flush=True)\n{TRAINING}"
    )


@pytest.mark.parametrize("name", full_but(["a seed from both"], SETUPS))
def test_set_up_code_is_told_again_what_the_first_attempt_was_told(script, name: str) -> None:
    one = script(program(SETUPS[name]))
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    after = one.attempt("run", "--every", "epoch")
    assert "resumed at epoch 1" in one.said
    assert after.startswith(before)
    assert after.splitlines()[-1].startswith("the end ")
    assert one.plainly().splitlines()[:-1] != before.splitlines(), "this source cannot be shown here"


OFF = "open('new', 'w').close(); off = time.time() - os.stat('new').st_mtime\n"


def test_the_clock_is_the_real_one_once_the_loop_runs(script) -> None:
    loop = TRAINING.replace(
        "loss.backward()", "loss.backward()\n        " + OFF.strip().replace("; off", "\n        off")
    )
    one = script(f"import os, time\nimport torch\n{OFF}print('set-up', off)\n{loop}print('loop', off)")
    one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    move_answers(one.folder / "run" / "answers.log", -3600)
    after = one.attempt("run", "--every", "epoch")
    in_setup, in_loop = (float(re.findall(rf"{where} (\S+)", after)[0]) for where in ("set-up", "loop"))
    assert in_setup < -3600
    assert abs(in_loop) < 10


def move_answers(path: Path, seconds: int) -> None:
    """As if the first attempt had begun at another time."""
    told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    moved = [[place, ordinal, answer + seconds * 10**9] for place, ordinal, answer in told]
    path.write_text("".join(json.dumps(line) + "\n" for line in moved), encoding="utf-8")


def test_set_up_code_that_waits_longer_than_before_reads_a_clock_that_goes_on(script) -> None:
    wait = (
        "began = time.time(); polls = 0\n"
        "while polls < int(os.environ.get('POLLS', 3)):\n"
        "    polls += 1; time.sleep(0.01)\n"
        "    assert time.time() - began < 5, 'timed out'\n"
    )
    one = script(f"import os, time\nimport torch\n{wait}{TRAINING}")
    one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    move_answers(one.folder / "run" / "answers.log", -90_000)
    assert "the end" in one.attempt("run", "--every", "epoch", POLLS="8")


def test_the_process_id_that_the_script_was_told_can_be_used(script) -> None:
    use = """
    import os, psutil, signal
    me = os.getpid()
    print(psutil.Process(me).memory_info().rss > 0, psutil.Process(me).name() == psutil.Process().name())
    print(os.path.exists(f"/proc/{me}/stat"), len(open(f"/proc/{me}/stat").read()) > 10, "fd" in os.listdir(f"/proc/{me}"))
    print(os.readlink(f"/proc/{me}/exe") == os.readlink("/proc/self/exe"), os.sched_getaffinity(me) == os.sched_getaffinity(0))
    print(os.getpriority(os.PRIO_PROCESS, me) == os.getpriority(os.PRIO_PROCESS, 0))
    signal.signal(signal.SIGUSR1, lambda *_: print("got the signal"))
    os.kill(me, signal.SIGUSR1)
    print(me)
    """
    one = script("\n".join(line.removeprefix("    ") for line in use.splitlines()) + "import torch\n" + TRAINING)
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    after = one.attempt("run", "--every", "epoch")
    assert after.startswith(before)
    assert "False" not in before
    assert "got the signal" in after


def test_children_of_a_later_attempt_know_who_they_are(script) -> None:
    children = (
        "def report(end): end.send((os.getpid() == int(os.readlink('/proc/self')), os.getpid()))\n"
        "def ask():\n"
        "    here, there = multiprocessing.Pipe()\n"
        "    child = multiprocessing.get_context('fork').Process(target=report, args=(there,)); child.start()\n"
        "    is_real, number = here.recv(); child.join(); print(is_real, number != os.getpid(), child.exitcode)\n"
        "ask()\n"
    )
    one = script(f"import multiprocessing, os\nimport torch\n{children}{TRAINING}")
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    assert before == "True True 0\n"
    assert one.attempt("run", "--every", "epoch").startswith(before)


HELD = {
    "fewer processors": {},
    "another number of threads asked for": {"OMP_NUM_THREADS": "1"},
    "another instruction set asked for": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "another hash seed asked for": {"PYTHONHASHSEED": "7"},
}


@pytest.mark.whole
@pytest.mark.parametrize("name", full_but([], HELD))
def test_a_run_that_goes_on_elsewhere_computes_as_where_it_began(script, name: str) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor: there is no other number of threads to compare with")
    facts = "print(torch.get_num_threads(), torch.backends.cpu.get_cpu_capability(), list({'a', 'b', 'c', 'd', 'e'}), flush=True)\n"
    one = script(f"import os, sys\nimport torch\n{facts}torch.manual_seed(0)\n{TRAINING}")
    where = os.sched_getaffinity(0)
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    try:
        if name == "fewer processors":
            os.sched_setaffinity(0, {min(where)})
        assert one.plainly(**HELD[name]).splitlines()[0] != before.splitlines()[0], "this source cannot be shown here"
        after = one.attempt("run", "--every", "epoch", **HELD[name])
    finally:
        os.sched_setaffinity(0, where)
    assert after.startswith(before)
    assert "detrain: restricted to what the run began with: " in one.said
    assert "resumed at epoch 1" in one.said


@pytest.mark.skipif(sys.platform != "linux", reason="the processor is read from /proc")
def test_a_processor_without_the_run_s_instruction_sets_is_refused_until_trusted(script) -> None:
    one = script(f"import os\nimport torch\n{TRAINING}")
    one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    path = one.folder / "run" / "run.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    lacking = next(name for name in FEATURES if name not in record["machine"]["features"])  # x86 has none of ARM's
    record["machine"]["features"].append(lacking)
    path.write_text(json.dumps(record), encoding="utf-8")
    assert one.attempt("run", "--every", "epoch", status=2) == ""
    assert f"lacks {lacking}" in one.said
    assert "the end" in one.attempt("run", "--every", "epoch", "--trust-changes")


def test_new_folders_are_made_again_in_set_up_code_and_in_the_loop(script) -> None:
    folders = (
        "name = datetime.datetime.now().strftime('run-%H%M%S-%f')\nos.makedirs(f'{name}/plots')\nos.mkdir('results')\n"
        "os.mkdir(f'id-{uuid.uuid4()}')\n"
    )
    loop = TRAINING.replace(
        "    for batch in range(4):", "    os.mkdir(f'results/{epoch}')\n    for batch in range(4):"
    )
    one = script(f"import datetime, os, uuid\nimport torch\n{folders}{loop}")
    one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    assert "the end" in one.attempt("run", "--every", "epoch")
    assert sorted(os.listdir(one.folder / "results")) == ["0", "1"]
    assert len([path for path in os.listdir(one.folder) if path.startswith(("run-", "id-"))]) == 2
    # A folder of somebody else's is in the way as ever.
    assert one.attempt("other", "--every", "epoch", status=1) == ""


def test_experiments_with_other_arguments_draw_other_ids(script) -> None:
    one = script("import uuid; print(uuid.uuid4())")
    ids = [
        one.command("run", "--ckpt-dir", f"{n}{word}", "script.py", word) for word in ("0.1", "0.01") for n in (1, 2)
    ]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_programs_draw_other_ids_and_one_program_the_same_in_any_folder(script, tmp_path) -> None:
    text = "import uuid; print(uuid.uuid4())"
    one = script(text)
    ids = [one.anew()]
    (tmp_path / "elsewhere").mkdir()
    for name in ("elsewhere/script.py", "other.py"):
        one.path = tmp_path / name
        one.path.write_text(text)
        ids.append(one.anew())
    one.path.write_text(f"{text}  # another")
    ids.append(one.anew())
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.full
@pytest.mark.whole  # `verify` starts a process, in which loading a library draws from the stream
@pytest.mark.parametrize("change", ["source", "arguments"])
def test_a_run_draws_its_own_ids_also_where_changes_are_trusted_and_is_proved(script, sandbox, change: str) -> None:
    loop = TRAINING.replace("loss.backward()", "loss.backward(); drawn = uuid.uuid4().hex; print(drawn, flush=True)")
    text = f"import os, uuid\nimport torch\ntorch.manual_seed(0)\nname = uuid.uuid4().hex; print(name)\n{loop}"
    one = script(text)
    before = one.attempt("run", "--every", "epoch", status=-9, DIE="1").splitlines()
    assert "proved" in one.command("verify", "run")
    if change == "source":
        one.path.write_text(f"{text}# changed\n")
    else:
        one.arguments = ["changed"]
    after = one.attempt("run", "--every", "epoch", "--trust-changes").splitlines()
    assert "resumed at epoch 1" in one.said
    assert after[:4] == [before[0], *before[5:8]]  # the set-up's, and those of the second epoch


def test_a_program_that_was_changed_before_its_first_checkpoint_begins_as_itself(script) -> None:
    text = f"import os, uuid\nimport torch\ntorch.manual_seed(uuid.uuid4().int % 2**31)\n{TRAINING}"
    one = script(text)
    one.attempt("run", "--every", "never", status=-9, DIE="1")
    one.path.write_text(f"{text}# changed\n")
    assert one.attempt("run", "--every", "never") == one.anew()


#: What the loop's first batch does, and how to see it. Under plain `python` a later attempt would not know.
SWITCHES = {
    "TF32": ("torch.set_float32_matmul_precision('high')", "torch.get_float32_matmul_precision()", "high"),
    "cuDNN's choice by timing": ("torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark", "True"),
    "filling of new memory": (
        "torch.utils.deterministic.fill_uninitialized_memory = False",
        "torch.utils.deterministic.fill_uninitialized_memory",
        "False",
    ),
    "number of threads": ("torch.set_num_threads(3)", "torch.get_num_threads()", "3"),
    "default type": ("torch.set_default_dtype(torch.float64)", "torch.get_default_dtype()", "torch.float64"),
}


@pytest.mark.parametrize("name", full_but(["default type"], SWITCHES))
def test_switches_that_the_loop_made_stand_as_they_stood_after_a_resume(script, name: str) -> None:
    change, look, expected = SWITCHES[name]
    loop = TRAINING.replace(
        "        optimizer.zero_grad()",
        f"        if epoch == batch == 0:\n            {change}\n        optimizer.zero_grad()",
    ).replace("torch.randn(8, 4)", "torch.randn(8, 4, dtype=torch.float32)")
    one = script(f"import os\nimport torch\nprint('before', {look})\n{loop}print('after', {look})")
    one.attempt("run", "--every", "epoch", status=-9, DIE="1")
    after = one.attempt("run", "--every", "epoch")
    assert "resumed at epoch 1" in one.said
    assert after.splitlines()[0] != f"before {expected}", "this switch cannot be told apart here"
    assert after.splitlines()[-1] == f"after {expected}"
