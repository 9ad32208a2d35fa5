"""A kill before any system call of a save, and the failure of any: a good checkpoint is there to load."""

import errno
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DRIVER = """
    import ctypes, os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    import numpy as np
    from conftest import make_meta, make_tree
    from detrain.store import checkpoint
    from detrain.store.commit import commit
    from detrain.store.directory import RunDirectory

    place, number = RunDirectory(Path(sys.argv[1])), int(sys.argv[3])
    faults = ctypes.CDLL(None)
    kept = np.arange(50_000.0)  # big enough to be held for the later ones

    def tree(step):
        return make_tree({"data": kept, "weight": np.full(200_000, float(step)), "small": np.arange(7)}, {"step": step})

    def save(step, last):
        saved = commit(place.checkpoint_path(step, 0), tree(step), make_meta(step + 1), last)
        return saved, place.retain(1, [saved, *([last] if last else [])], set())

    def is_whole(step):
        found, loaded = checkpoint.load(place.checkpoint_path(step, 0))
        wanted = tree(step)
        assert loaded.roots == wanted.roots and found.meta == make_meta(step + 1)
        for one, two in zip(loaded.arrays, wanted.arrays, strict=True):
            assert one.data.tobytes() == two.data.tobytes()

    at = survived = 0
    while True:
        for path in place.path.iterdir():
            path.unlink()
        first, _ = save(0, None)
        child = os.fork()
        if not child:
            faults.faults_arm(ctypes.c_long(at), number)
            try:
                save(1, first)
            except OSError as error:
                assert error.errno == number
                os._exit(2)
            os._exit(1 if faults.faults_fired() else 0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        good, bad = place.read_checkpoints()
        assert not bad
        for one in good:
            is_whole(one.meta.sequence - 1)
        assert good, at
        place.remove_temporaries()
        assert not list(place.path.glob(".*"))
        save(2, good[0])  # and the next one succeeds
        is_whole(2)
        if status == 0:
            break
        assert status in (({2, 1} if number else {-9})), status
        at += 1
        survived += good[0].sequence >= 1
    print(survived, at)
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.mark.parametrize("number", [0, errno.ENOSPC, errno.EIO], ids=["kill", "ENOSPC", "EIO"])
def test_fault_at_every_system_call_of_a_save_leaves_a_good_checkpoint(tmp_path, faults, number, note_count):
    (tmp_path / "run").mkdir()
    program = [
        sys.executable,
        "-c",
        textwrap.dedent(DRIVER),
        str(tmp_path / "run"),
        str(Path(__file__).parent),
        str(number),
    ]
    done = subprocess.run(
        program,
        env={"LD_PRELOAD": str(faults), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    survived, tried = map(int, done.stdout.split())
    note_count(f"{errno.errorcode.get(number, 'a kill')} at each system call of a save: survived", survived, tried)
    assert survived == tried > 8
