"""The script's own files: whatever it does to them, a later attempt finds them as they were."""

import contextlib
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detrain.errors import RestoreError
from detrain.launch import events
from detrain.outputs import following as files_module
from detrain.outputs.following import OutputFiles
from tests.tiers import full_but

World = dict[str, tuple[str, object]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Callable[..., OutputFiles]]:
    """Begins an attempt, after the end of the one before."""
    begun: list[OutputFiles] = []

    def begin(*, is_resuming: bool = False) -> OutputFiles:
        for one in begun:
            one.stop()
        (tmp_path / "run").mkdir(exist_ok=True)
        files = OutputFiles(tmp_path / "run")
        begun.append(files)
        files.rewind(is_resuming=is_resuming)
        events.hear(files.handlers())
        return files

    yield begin
    for one in begun:
        one.stop()


def world() -> World:
    """Everything below the working folder."""
    found: World = {}
    for folder, folders, names in os.walk("."):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[path] = ("link", os.readlink(path))
            else:
                found[path] = ("folder", None) if os.path.isdir(path) else ("file", Path(path).read_bytes())
    return found


def permitted_world() -> dict[str, tuple[str, object, str]]:
    """The same, with the permissions."""
    return {path: (*what, oct(os.lstat(path).st_mode)) for path, what in world().items()}


def write(path: str, text: str, mode: str = "w") -> None:
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, mode, encoding="utf-8") as file:
        file.write(text)


def test_log_is_as_long_as_at_the_checkpoint(place, attempt):
    first = attempt()
    write("log.csv", "header\n")
    first.is_in_loop = True
    write("log.csv", "1\n", "a")
    offset = first.capture()
    write("log.csv", "2\n", "a")
    second = attempt(is_resuming=True)
    assert world() == {}, "set-up code finds what the first attempt found"
    write("log.csv", "header\n")
    second.put_back(offset, is_trusting=False)
    assert Path("log.csv").read_text() == "header\n1\n"


@pytest.mark.parametrize("destroy", ["remove", "replace", "rewrite", "rename", "truncate", "patch", "rmtree"])
def test_what_was_destroyed_after_the_checkpoint_comes_back(place, attempt, destroy):
    first = attempt()
    first.is_in_loop = True
    write("out/best.pt", "first best")
    os.symlink("best.pt", "out/latest")
    before = world()
    offset = first.capture()
    if destroy == "remove":
        os.remove("out/best.pt")
    elif destroy == "replace":
        write("out/new", "x")
        os.replace("out/new", "out/best.pt")
    elif destroy == "rewrite":
        write("out/best.pt", "second")
    elif destroy == "rename":
        os.rename("out", "elsewhere")
        write("elsewhere/best.pt", "second")
    elif destroy == "truncate":
        os.truncate("out/best.pt", 3)
    elif destroy == "patch":
        write("out/best.pt", "FIRST", "r+")
    else:
        shutil.rmtree("out")
    assert world() != before
    second = attempt(is_resuming=True)
    assert world() == {}
    second.put_back(offset, is_trusting=False)
    assert world() == before


def look_of(*paths: str) -> list[tuple[str, int]]:
    return [(oct(os.stat(path).st_mode), os.stat(path).st_mtime_ns) for path in paths]


def test_permissions_and_times_come_back(place, attempt):
    paths = ["secret", "secret/deep", "secret/key", "log", "state/9", "state/10"]
    first = attempt()
    first.is_in_loop = True
    os.mkdir("secret", 0o700)
    os.mkdir("secret/deep", 0o511)
    write("secret/key", "12")
    os.chmod("secret/key", 0o600)
    os.makedirs("state/10")
    os.makedirs("state/9")
    write("state/9/weights", "x")
    write("log", "1")
    os.chmod("log", 0o640)
    for number, path in enumerate(reversed(paths)):
        os.utime(path, (10**9 + number, 10**9 + number))
    before, offset = look_of(*paths), first.capture()
    write("log", "2", "a")
    write("secret/key", "3")
    second = attempt(is_resuming=True)
    assert world() == {}
    second.put_back(offset, is_trusting=False)
    assert look_of(*paths) == before
    second.end_rewind()
    third = attempt(is_resuming=True)
    third.put_back(offset, is_trusting=False)
    assert look_of(*paths) == before


@pytest.mark.parametrize("by_number", [False, True])
def test_permissions_that_were_changed_since_come_back(place, attempt, by_number):
    def permit(path: str, mode: int) -> None:
        opened = os.open(path, os.O_RDONLY) if by_number else -1
        os.chmod(opened if by_number else path, mode)
        if by_number:
            os.close(opened)

    write("data/own", "there before the run")
    os.chmod("data/own", 0o644)
    os.chmod("data", 0o755)
    there, first = permitted_world(), attempt()
    permit("data/own", 0o600)
    first.is_in_loop = True
    write("large", "x" * 100)
    os.chmod("large", 0o644)
    before, offset = permitted_world(), first.capture()
    for path in ("data/own", "data", "large"):
        permit(path, 0o777)
    with pytest.raises(FileNotFoundError):
        os.chmod("missing", 0o600)
    assert not (first.journal.kept.exists() and os.listdir(first.journal.kept)), "nothing had to be copied"
    after = permitted_world()
    second = attempt(is_resuming=True)
    assert permitted_world() == there
    second.give_up()
    assert permitted_world() == after
    third = attempt(is_resuming=True)
    permit("data/own", 0o600)
    third.put_back(offset, is_trusting=False)
    assert permitted_world() == before
    assert "missing" not in {os.path.basename(path) for path in third.journal.paths()}


def test_a_journal_that_tells_no_permissions_is_read(place, tmp_path, attempt):
    files = attempt()
    write("log", "12")
    (tmp_path / "run" / "files.log").write_text(
        f'[0, "{place}/log", "grown", 1, "", true]\n[1, "{place}/folder", "folder", 0, "", true]\n'
    )
    files = attempt(is_resuming=True)
    files.put_back(0, is_trusting=False)
    assert Path("log").read_text() == "1"
    assert os.path.isdir("folder")


def test_opening_that_fails_destroys_nothing(place, attempt):
    write("data", "x" * 2**20)
    attempt().is_in_loop = True
    with pytest.raises(FileExistsError):
        os.open("data", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_EXCL)
    os.mkdir("sub")
    folder = os.open("sub", os.O_RDONLY)
    os.close(os.open("data", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, dir_fd=folder))
    os.close(folder)
    assert os.stat("data").st_size == 2**20


def test_without_links_what_is_removed_is_copied_and_said(place, attempt, monkeypatch, capfd):
    def refuse(*_args, **_kwargs):
        raise OSError("this file system has none")

    monkeypatch.setattr(files_module, "LARGE", 10)
    monkeypatch.setattr(os, "link", refuse)
    first = attempt()
    first.is_in_loop = True
    write("a", "more than ten bytes")
    write("b", "more than ten bytes")
    offset = first.capture()
    os.remove("a")
    os.remove("b")
    assert capfd.readouterr().err.count("[file-copied]") == 1
    second = attempt(is_resuming=True)
    second.put_back(offset, is_trusting=False)
    assert sorted(os.listdir()) == ["a", "b"]


def test_what_cannot_be_had_is_left_as_it_is_where_the_user_trusts_it(place, attempt, capsys, monkeypatch):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    first = attempt()
    first.is_in_loop = True
    write("log", "one\n", "a")
    offset = first.capture()
    write("log", "two\n", "a")
    first.stop()
    write("log", "by")  # by somebody else
    second = attempt(is_resuming=True)
    assert world() == {}
    with pytest.raises(RestoreError, match="had 4 bytes"):
        second.put_back(offset, is_trusting=False)
    second.put_back(offset, is_trusting=True)
    assert Path("log").read_text() == "by"
    assert "log is left as it is: " in capsys.readouterr().err


def test_what_is_open_gets_its_content_in_place(place, attempt):
    first = attempt()
    with open("log", "w") as log:
        first.is_in_loop = True
        log.write("one\n")
        log.flush()
        offset = first.capture()
        log.write("two\n")
    second = attempt(is_resuming=True)
    with open("log", "w") as log:
        second.put_back(offset, is_trusting=False)
        second.end_rewind()
        log.seek(4)
        log.write("2\n")
    assert Path("log").read_text() == "one\n2\n"


def test_who_has_a_file_open_goes_on_behind_what_it_got_back(place, attempt):
    first = attempt()
    with open("log", "wb", buffering=0) as log:
        log.write(b"header\n")
        first.is_in_loop = True
        log.write(b"1\n2\n")
        offset = first.capture()
        log.write(b"3\n")
    second = attempt(is_resuming=True)
    # Of a library's thread, say, with which nobody but that deals.
    with open("log", "wb", buffering=0) as log, open("log", "rb") as reader:
        log.write(b"header\n")
        assert reader.read(3) == b"hea"
        second.put_back(offset, is_trusting=False)
        second.end_rewind()
        log.write(b"3\n")
        assert reader.tell() == 3
    assert world() == {"./log": ("file", b"header\n1\n2\n3\n")}


def test_file_that_was_there_before_the_run_is_there_for_set_up_code(place, attempt):
    write("best.pt", "of another run")
    first = attempt()
    first.is_in_loop = True
    write("best.pt", "ours")
    offset = first.capture()
    second = attempt(is_resuming=True)
    assert Path("best.pt").read_text() == "of another run"
    second.put_back(offset, is_trusting=False)
    assert Path("best.pt").read_text() == "ours"


def test_what_set_up_code_made_stays_and_can_be_made_again(place, attempt):
    first = attempt()
    write("cache.bin", "long to compute", "x")
    os.symlink("cache.bin", "data")
    first.is_in_loop = True
    offset = first.capture()
    second = attempt(is_resuming=True)
    assert Path("cache.bin").read_text() == "long to compute"
    write("cache.bin", "long to compute", "x")
    os.symlink("cache.bin", "data")
    second.put_back(offset, is_trusting=False)
    assert Path("data").read_text() == "long to compute"
    with pytest.raises(FileExistsError):
        write("cache.bin", "again", "x")


def test_folder_that_the_loop_writes_into_is_not_there_for_set_up_code(place, attempt):
    first = attempt()
    os.makedirs("out")
    write("out/config", "lr 1")
    first.is_in_loop = True
    write("out/model", "weights")
    before, offset = world(), first.capture()
    second = attempt(is_resuming=True)
    assert not os.path.exists("out")
    os.makedirs("out")
    write("out/config", "lr 1", "x")
    second.put_back(offset, is_trusting=False)
    assert world() == before


def test_folder_with_little_in_it_is_made_again_and_one_with_much_is_not(place, attempt):
    first = attempt()
    os.makedirs("out/logs")
    write("out/config", "lr 1")
    os.makedirs("data")
    write("data/download", "x" * 2**21)
    first.is_in_loop = True
    before, offset = world(), first.capture()
    second = attempt(is_resuming=True)
    assert sorted(os.listdir()) == ["data"]
    second.put_back(offset, is_trusting=False)
    assert world() == before


def test_small_folder_within_a_large_one_stays(place, attempt):
    first = attempt()
    os.makedirs("data/meta")
    write("data/download", "x" * 2**21)
    write("data/meta/labels", "cat")
    first.is_in_loop = True
    first.capture()
    before = world()
    attempt(is_resuming=True)
    assert world() == before


def test_file_that_set_up_code_counts_in_is_as_the_first_attempt_found_it(place, attempt):
    def set_up():
        write("number", str(int(Path("number").read_text()) + 1))
        if os.path.exists("stale"):
            os.remove("stale")

    write("number", "6")
    write("stale", "")
    first = attempt()
    set_up()
    first.is_in_loop = True
    offset = first.capture()
    first.retain([offset])
    write("number", "loop")
    for _ in range(2):
        second = attempt(is_resuming=True)
        assert Path("number").read_text() == "6"
        assert os.path.exists("stale")
        set_up()
        second.put_back(offset, is_trusting=False)
        assert world() == {"./number": ("file", b"7")}
        second.end_rewind()


def test_kill_while_set_up_code_runs_again_and_then_a_refusal(place, attempt):
    first = attempt()
    first.is_in_loop = True
    write("best.pt", "weights")
    first.capture()
    attempt(is_resuming=True)  # killed
    assert world() == {}
    attempt(is_resuming=True).give_up()
    assert world() == {"./best.pt": ("file", b"weights")}


def test_record_that_could_not_be_written_whole_leaves_the_journal_readable(
    place, attempt, tmp_path, monkeypatch, capfd
):
    first = attempt()
    first.is_in_loop = True
    write("a", "1")
    log = tmp_path / "run" / "files.log"
    plain = os.stat(log).st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (plain + 5, limits[1]))
    try:
        with contextlib.suppress(OSError):
            write("b", "")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "its content before the change could not be kept" in capfd.readouterr().err
    assert log.stat().st_size == plain
    write("c", "1")
    offset = first.capture()
    write("c", "2")
    second = attempt(is_resuming=True)
    second.put_back(offset, is_trusting=False)
    assert Path("c").read_text() == "1"


def test_leftover_of_a_kill_while_files_are_put_back_is_swept(place, attempt):
    first = attempt()
    first.is_in_loop = True
    write("out/a", "1")
    offset = first.capture()
    write("out/a", "2")
    before = world()
    second = attempt(is_resuming=True)
    os.makedirs("out", exist_ok=True)
    files_module._temporary(os.path.realpath("out/a")).write_bytes(b"half")
    second = attempt(is_resuming=True)
    assert world() == {}
    second.put_back(offset, is_trusting=False)
    assert world() == {**before, "./out/a": ("file", b"1")}


@pytest.mark.parametrize("name", ["n" * 250, "\u6f22" * 84, "\udcff"])
def test_long_and_odd_names(place, attempt, name):
    first = attempt()
    first.is_in_loop = True
    write(name, "1")
    offset = first.capture()
    os.remove(name)
    second = attempt(is_resuming=True)
    second.put_back(offset, is_trusting=False)
    assert Path(name).read_text() == "1"


def test_place_is_the_systems_not_the_texts(place, attempt):
    os.makedirs("real/deep")
    os.symlink("real/deep", "link")
    write("real/x", "1")
    first = attempt()
    first.is_in_loop = True
    offset = first.capture()
    os.remove("link/../x")
    second = attempt(is_resuming=True)
    second.put_back(offset, is_trusting=False)
    assert Path("real/x").read_text() == "1"


def test_refused_resume_leaves_the_files_as_the_dead_attempt_left_them(place, attempt):
    first = attempt()
    first.is_in_loop = True
    write("log", "1")
    first.capture()
    write("log", "2", "a")
    write("epoch1", "x")
    left = world()
    second = attempt(is_resuming=True)
    assert world() == {}
    write("log", "set-up")
    second.give_up()
    assert world() == left


def test_log_that_somebody_cut_is_refused_by_name_unless_trusted(place, attempt, capfd):
    first = attempt()
    first.is_in_loop = True
    with open("log", "w") as log:
        log.write("12345")
        log.flush()
        offset = first.capture()
    first.stop()
    os.truncate("log", 1)
    second = attempt(is_resuming=True)
    with pytest.raises(RestoreError, match=r"log had 5 bytes at the checkpoint"):
        second.put_back(offset, is_trusting=False)
    second.put_back(offset, is_trusting=True)
    assert "file-lost" in capfd.readouterr().err


def test_only_what_kept_checkpoints_need_is_kept(place, attempt, tmp_path):
    first = attempt()
    first.is_in_loop = True
    offsets = []
    for number in range(6):
        write("last.pt", f"weights {number}")
        offsets.append(first.capture())
        first.retain(offsets[-2:])
    assert len(os.listdir(tmp_path / "run" / "kept")) == 1
    second = attempt(is_resuming=True)
    second.put_back(offsets[-2], is_trusting=False)
    assert Path("last.pt").read_text() == "weights 4"


_NAMES = ["a", "b", "d/c", "d/e", "f/g/h", "f/k"]


def _act(dice: random.Random) -> None:
    """Do something to some file, as far as it can be done."""
    path, other, what = dice.choice(_NAMES), dice.choice(_NAMES), dice.randrange(10)
    text = str(dice.random())
    try:
        if what == 0:
            os.remove(path)
        elif what == 1:
            os.makedirs(os.path.dirname(other) or ".", exist_ok=True)
            os.replace(path, other)
        elif what == 2:
            shutil.rmtree(dice.choice(["d", "f", "f/g"]))
        elif what == 3:
            os.rename(*dice.choice([("d", "e"), ("e", "d"), ("f/g", "d/g"), ("f", "q"), ("q", "f")]))
        elif what == 4:
            os.symlink(os.path.basename(other), path)
        elif what == 5:
            shutil.copyfile(path, other)
        elif what == 6:
            write(path, text[:4], "r+")
        elif what == 7:
            write(path, text, "a")
        elif what == 8:
            os.chmod(path, dice.choice([0o700, 0o751, 0o755]))
        else:
            write(path, text)
    except OSError:
        pass


@pytest.mark.parametrize("seed", full_but(range(50), range(150)))
def test_any_history_comes_out_as_without_the_kills(place, attempt, seed):
    """Set-up, loop with checkpoints, killed somewhere, resumed, killed, resumed: as many worlds as batches, each as before."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(4)):
        _act(random.Random(chance.random()))  # was there before
    num_batches, seed_of_set_up, has_log = 12, chance.random(), chance.randrange(2)

    def set_up() -> None:
        os.makedirs("f", exist_ok=True)
        write("f/config", "fixed")
        if has_log:
            write("a", "header")
            write("a", "more", "a")

    def train(files: OutputFiles, start: int, end: int) -> None:
        for batch in range(start, end):
            if batch % 3 == 0:
                offsets[batch] = files.capture()
                files.retain(list(offsets.values()))
                assert worlds.setdefault(batch, permitted_world()) == permitted_world()
            dice = random.Random(seed_of_set_up + batch)
            for _ in range(3):
                _act(dice)

    worlds: dict[int, dict[str, tuple[str, object, str]]] = {}
    offsets: dict[int, int] = {}
    files = attempt()
    set_up()
    files.is_in_loop = True
    train(files, 0, chance.randrange(1, num_batches))
    for end in (chance.randrange(1, num_batches), num_batches):
        files = attempt(is_resuming=True)
        set_up()
        files.is_in_loop = True
        start = max(offsets)
        files.put_back(offsets[start], is_trusting=False)
        assert permitted_world() == worlds[start]
        files.end_rewind()
        train(files, start, max(end, start + 1))
