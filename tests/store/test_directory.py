"""The run directory: who holds it, what stays in it, what a killed or failing writer leaves behind."""

import contextlib
import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from detrain.errors import CheckpointError, ResumeRefused
from detrain.store import checkpoint, directory
from detrain.store.commit import commit
from detrain.store.directory import RunDirectory
from detrain.store.record import RunRecord

WRITER = """
    import sys
    from pathlib import Path
    import numpy as np
    from detrain.state.tree import Array, Tree
    from detrain.store.commit import commit
    from detrain.store.directory import RunDirectory
    from detrain.store.meta import Meta

    place, big, last, known = RunDirectory(Path(sys.argv[1])), np.arange(40_000.0), None, []
    first = int(sys.argv[2])
    for number in range(first, first + 100_000):
        arrays = [Array("data", big), Array("step", np.full(20_000, float(number)))]
        nodes = [{"k": "buffer", "t": "builtins:bytearray", "p": None, "s": a.path, "array": n} for n, a in enumerate(arrays)]
        tree = Tree(nodes, arrays, {a.path: ["@", n] for n, a in enumerate(arrays)} | {"number": number})
        meta = Meta(number + 1)
        last = commit(place.checkpoint_path(number, 0), tree, meta, last)
        known = place.retain(3, [*known, last], set())
        print(number, flush=True)
"""
HOLDER = """
    import sys, time
    from pathlib import Path
    from detrain.store.directory import RunDirectory
    place = RunDirectory(Path(sys.argv[1]))
    place.lock()
    print("held", flush=True)
    time.sleep(60)
"""
READER = """
    import sys, time
    from pathlib import Path
    from detrain.store.directory import RunDirectory
    with RunDirectory(Path(sys.argv[1])).shared():
        print("held", flush=True)
        time.sleep(60)
"""
FORKER = """
    import os, sys, time
    from pathlib import Path
    from detrain.store.directory import RunDirectory
    place = RunDirectory(Path(sys.argv[1]))
    place.lock()
    child = os.fork()
    if child:
        print(child, flush=True)
    time.sleep(20)
"""


def start(program: str, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *words], stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def holder(path: Path, program: str = HOLDER):
    process = start(program, str(path))
    with process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


# --- writing ---


def test_kill_at_any_moment_of_a_save_leaves_all_committed_checkpoints_good(tmp_path):
    chosen, place, first = random.Random(0), RunDirectory(tmp_path), 0
    for _ in range(5):
        with start(WRITER, str(tmp_path), str(first)) as process:
            process.stdout.readline()
            time.sleep(chosen.random() * 0.15)
            process.kill()
            said = [int(line) for line in process.stdout.read().split()]
        committed = [place.checkpoint_path(number, 0) for number in said[-1:]]
        assert all(path.exists() for path in committed)
        good, bad = place.read_checkpoints()
        assert not bad
        for found in good:
            _, tree = checkpoint.load(found.path)
            assert tree.arrays[1].data[0] == tree.roots["number"] == found.sequence - 1
        first = good[0].sequence
    place.remove_temporaries()
    assert not list(tmp_path.glob(".*.tmp"))


def test_write_beyond_the_space_there_is_raises_and_leaves_no_file(tmp_path, tree, meta):
    """RLIMIT_FSIZE stands for a full disk: HDF5 sees the same failing write."""
    program = """
        import resource, sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        import numpy as np
        from conftest import make_meta, make_tree
        from detrain.store.commit import commit
        path = Path(sys.argv[1])
        commit(path / "checkpoint_0_0.h5", make_tree({"a": np.zeros(10)}), make_meta(1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            commit(path / "checkpoint_1_0.h5", make_tree({"a": np.zeros(100_000)}), make_meta(2))
        except OSError as error:
            print("refused:", error)
        commit(path / "checkpoint_2_0.h5", make_tree({"a": np.zeros(10)}), make_meta(3))
    """
    with start(program, str(tmp_path), str(Path(__file__).parent)) as process:
        said = process.communicate(timeout=30)[0]
    assert process.returncode == 0
    assert "refused: " in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_0_0.h5", "checkpoint_2_0.h5"]
    assert not RunDirectory(tmp_path).read_checkpoints()[1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_failing_sync_raises_and_leaves_no_file(tmp_path, tree, meta, monkeypatch, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(number)):
        commit(tmp_path / "checkpoint_0_0.h5", tree({"a": np.zeros(3)}), meta())
    assert list(tmp_path.iterdir()) == []


def test_failing_rename_leaves_the_earlier_file_of_that_name(tmp_path, tree, meta, monkeypatch):
    path = tmp_path / "checkpoint_0_0.h5"
    commit(path, tree({"a": np.zeros(3)}), meta())
    before = path.read_bytes()

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="Input/output error"):
        commit(path, tree({"a": np.ones(3)}), meta())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_is_gone_raises(tmp_path, tree, meta):
    with pytest.raises(OSError, match="No such file"):
        commit(tmp_path / "gone" / "checkpoint_0_0.h5", tree({"a": np.zeros(3)}), meta())


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_read_only_folder_raises(tmp_path, tree, meta):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="Permission denied"):
        commit(tmp_path / "checkpoint_0_0.h5", tree({"a": np.zeros(3)}), meta())


def test_half_written_files_are_no_checkpoints_and_are_cleaned_up(tmp_path):
    (tmp_path / ".checkpoint_1_0.h5.123.tmp").write_bytes(b"half")
    (tmp_path / ".run.json.123.tmp").write_text("{")
    place = RunDirectory(tmp_path)
    assert place.read_checkpoints() == ([], [])
    place.remove_temporaries()
    assert list(tmp_path.iterdir()) == []


# --- what stays ---


def save_many(place, tree, meta, count, changes):
    """Checkpoints 0 … count-1 of a run whose big array changes at the numbers in `changes`."""
    found, value = [], 0.0
    for number in range(count):
        value += number in changes
        earlier = found[-1] if found else None
        arrays = {"data": np.full(10_000, value), "step": np.array(number)}
        found.append(commit(place.checkpoint_path(number, 0), tree(arrays), meta(number + 1), earlier))
    return found


def test_latest_checkpoint_is_the_one_saved_last_whatever_its_name(tmp_path, tree, meta):
    place = RunDirectory(tmp_path)
    for sequence, (epoch, batch) in enumerate([(9, 0), (10, 0), (10, 100), (2, 0)], 1):
        commit(place.checkpoint_path(epoch, batch), tree({}), meta(sequence))
    good, bad = place.read_checkpoints()
    assert [found.name for found in good] == [
        "checkpoint_2_0.h5", "checkpoint_10_100.h5", "checkpoint_10_0.h5", "checkpoint_9_0.h5",
    ]  # fmt: skip
    assert not bad


def test_retention_keeps_the_newest(tmp_path, tree, meta):
    place = RunDirectory(tmp_path)
    found = save_many(place, tree, meta, 6, changes=set(range(6)))
    left = place.retain(2, found, set())
    assert [one.name for one in left] == ["checkpoint_5_0.h5", "checkpoint_4_0.h5"]
    assert [path.name for path in place.checkpoint_paths()] == ["checkpoint_4_0.h5", "checkpoint_5_0.h5"]


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("changes", [set(), {3}, {1, 4}, {2, 5}])
def test_retention_never_deletes_a_file_that_another_needs(tmp_path, tree, meta, keep, changes):
    place = RunDirectory(tmp_path)
    found = save_many(place, tree, meta, 7, changes)
    left = place.retain(keep, found, set())
    assert [one.name for one in left[:keep]] == [f"checkpoint_{6 - n}_0.h5" for n in range(keep)]
    for one in left[:keep]:
        checkpoint.load(one.path)
    assert len(left) <= keep + 2


def test_retention_keeps_the_chain_and_what_is_asked_for(tmp_path, tree, meta):
    place = RunDirectory(tmp_path)
    first = commit(place.checkpoint_path(0, 0), tree({}), meta(1))
    second = commit(place.checkpoint_path(1, 0), tree({}), meta(2, chain=[first.name]))
    third = commit(place.checkpoint_path(2, 0), tree({}), meta(3))
    fourth = commit(place.checkpoint_path(3, 0), tree({}), meta(4, chain=[second.name]))
    left = place.retain(1, [first, second, third, fourth], set())
    assert [one.name for one in left] == [fourth.name, second.name, first.name]
    assert (
        place.retain(1, [fourth, second, first], {"checkpoint_9_9.h5"})[0] == fourth
    )  # needs one that is gone: no error


# --- who holds it ---


def test_second_attempt_is_refused_and_told_who_holds_the_directory(tmp_path):
    refused = RunDirectory(tmp_path / "run")
    with holder(refused.path) as process:
        with pytest.raises(
            ResumeRefused, match=rf"run is held by process {process.pid} on .* since .*\. Wait for it, stop it, or"
        ):
            refused.lock()
        refused.unlock()
        assert f"process {process.pid} on " in (RunDirectory(tmp_path / "run").holder() or "")


def test_lock_of_a_dead_holder_is_taken_over(tmp_path):
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        place = RunDirectory(tmp_path)
        place.lock()
    assert f"process {os.getpid()} on " in (tmp_path / "lock").read_text()
    place.unlock()
    assert RunDirectory(tmp_path).holder() is None


def test_whoever_reads_a_run_keeps_attempts_from_beginning(tmp_path):
    attempt = RunDirectory(tmp_path)
    with holder(tmp_path, READER) as process:
        with RunDirectory(tmp_path).shared():
            assert RunDirectory(tmp_path).holder() is None  # no attempt does
        with pytest.raises(
            ResumeRefused, match=rf"held by process {process.pid}, which does the run again to prove it"
        ):
            attempt.lock()
    attempt.lock()
    attempt.unlock()


def test_run_that_goes_on_cannot_be_shared(tmp_path):
    with (
        holder(tmp_path) as process,
        pytest.raises(ResumeRefused, match=rf"is going on; it is held by process {process.pid}"),
        RunDirectory(tmp_path).shared(),
    ):
        pass


def test_forked_child_does_not_keep_the_lock(tmp_path):
    with start(FORKER, str(tmp_path)) as process:
        child = int(process.stdout.readline())
        process.kill()
        process.wait()
        try:
            os.kill(child, 0)  # it lives
            place = RunDirectory(tmp_path)
            place.lock()
            assert f"process {os.getpid()} on " in (tmp_path / "lock").read_text()
            place.unlock()
        finally:
            os.kill(child, signal.SIGKILL)


def test_refused_attempt_does_not_take_the_holder_s_name_out_of_the_lock(tmp_path):
    with holder(tmp_path) as process:
        before = (tmp_path / "lock").read_text()
        for _ in range(2):
            refused = RunDirectory(tmp_path)
            with pytest.raises(ResumeRefused, match=f"process {process.pid} "):
                refused.lock()
            refused.unlock()
        assert (tmp_path / "lock").read_text() == before


def test_file_in_the_directory_s_place_is_an_error_of_the_system(tmp_path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OSError, match="File exists"):
        RunDirectory(tmp_path / "run").lock()


# --- moved aside, recorded ---


def test_directories_moved_aside_are_numbered(tmp_path):
    place = RunDirectory(tmp_path / "run")
    for number in (1, 2, 3):
        place.path.mkdir()
        (place.path / "run.json").write_text(f"{number}")
        assert place.move_aside() == tmp_path / f"run.old{number}"
    assert [(tmp_path / f"run.old{number}" / "run.json").read_text() for number in (1, 2, 3)] == ["1", "2", "3"]
    assert not place.path.exists()


def test_directory_with_nothing_but_a_lock_is_not_moved(tmp_path):
    place = RunDirectory(tmp_path / "run")
    assert place.move_aside() is None
    place.lock()
    assert place.move_aside() is None
    place.unlock()


def test_folder_that_is_worked_in_stays_when_the_run_in_it_is_moved_aside(tmp_path, monkeypatch):
    place = RunDirectory(tmp_path / "project")
    (place.path / "cache").mkdir(parents=True)
    for name in ("train.py", "run.json", "checkpoint_0_1.h5", "lock"):
        (place.path / name).write_text(name)
    monkeypatch.chdir(place.path)
    assert place.move_aside() == tmp_path / "project.old1"
    assert sorted(path.name for path in place.path.iterdir()) == ["lock", "train.py"]
    assert sorted(path.name for path in (tmp_path / "project.old1").iterdir()) == [
        "cache",
        "checkpoint_0_1.h5",
        "run.json",
    ]
    assert place.move_aside() is None


@pytest.mark.parametrize("name", sorted(directory.OWN_NAMES - {"inst.info"}))
def test_folder_with_somebody_elses_file_under_a_name_of_ours_is_refused_untouched(tmp_path, name):
    (tmp_path / name).write_text('["mine"]')
    (tmp_path / "train.py").write_text("pass")
    with pytest.raises(
        ResumeRefused,
        match=rf"contains a file that detrain would overwrite: {re.escape(name)}\. Nothing was touched; choose",
    ):
        RunDirectory(tmp_path).lock()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: '["mine"]', "train.py": "pass"}


@pytest.mark.parametrize(
    "files",
    [
        {}, {"train.py": "", "data": ""}, {"inst.info": "{}"}, {"lock": ""},
        {"lock": "process 7 on here since then\n", "trace-1.log": "", "inst.info": "{}"},
        {"run.json": '{"script": "train.py", "attempts": 1}', "ledger": "", "finished": ""}, {"run.json": "{", "ledger": ""},
    ],
    ids=["empty", "others", "traced by hand", "killed at once", "traced", "run", "run that is damaged"],
)  # fmt: skip
def test_folder_without_such_files_or_with_a_run_is_taken(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    place = RunDirectory(tmp_path)
    place.lock()
    assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")
    place.unlock()


def test_somebody_elses_temporary_files_stay(tmp_path):
    for name in (
        ".notes.tmp",
        ".x.5.tmp",
        ".ledger.5.tmp",
        ".finished.tmp",
        ".detrain-0a1b.tmp",
        ".checkpoint_1_2.h5.77.tmp",
    ):
        (tmp_path / name).touch()
    RunDirectory(tmp_path).remove_temporaries()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.tmp", ".x.5.tmp"]


def test_record_is_replaced_whole(tmp_path):
    place = RunDirectory(tmp_path)
    assert place.read_record() is None
    place.write_record(RunRecord(attempts=1))
    place.write_record(RunRecord(attempts=2, arguments=["größe"]))
    assert place.read_record() == RunRecord(attempts=2, arguments=["größe"])
    assert json.loads((tmp_path / "run.json").read_text())["arguments"] == ["größe"]
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_record_that_is_no_json_is_refused_saying_what_to_do(tmp_path):
    (tmp_path / "run.json").write_text('{"attempts": ')
    with pytest.raises(CheckpointError, match=r"run.json is not readable JSON: .*Start over with --fresh"):
        RunDirectory(tmp_path).read_record()


def test_failing_write_of_a_small_file_leaves_no_temporary(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        directory.write_atomically(tmp_path / "run.json", "{}")
    assert list(tmp_path.iterdir()) == []


def test_damaged_checkpoints_are_told_beside_the_good(tmp_path, tree, meta):
    place = RunDirectory(tmp_path)
    commit(place.checkpoint_path(0, 0), tree({"a": np.zeros(3)}), meta(1))
    place.checkpoint_path(1, 0).write_bytes(b"no HDF5")
    with h5py.File(place.checkpoint_path(2, 0), "w"):
        pass
    good, bad = place.read_checkpoints()
    assert [found.name for found in good] == ["checkpoint_0_0.h5"]
    assert [str(error).split()[0] for error in bad] == ["checkpoint_1_0.h5", "checkpoint_2_0.h5"]
