"""The preload library lists a directory by name, however it was filled and whoever asks."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syscalls.conftest import output

NAMES = [f"img_{number}.png" for number in range(40)] + ["Übung", "ubung", "A", "_", "~", ".hidden"]
PLAIN = "import os, sys; print(os.listdir(sys.argv[1]))"


@pytest.fixture
def twins(tmp_path: Path, python) -> Iterator[tuple[str, str]]:
    """Two folders of the same files, filled in another order, which the file system lists in another order."""
    for parent in (tmp_path, Path("/dev/shm")):
        if not parent.is_dir():
            continue
        folder = Path(tempfile.mkdtemp(dir=parent))
        for name, order in (("first", NAMES), ("second", NAMES[::-1])):
            (folder / name).mkdir()
            for one in order:
                (folder / name / one).touch()
        if python(PLAIN, None, str(folder / "first")) != python(PLAIN, None, str(folder / "second")):
            yield str(folder / "first"), str(folder / "second")
            shutil.rmtree(folder)
            return
        shutil.rmtree(folder)
    pytest.skip("no file system here lists the same files in two orders")


@pytest.mark.parametrize(
    "expression",
    [
        "os.listdir(d)",
        "os.listdir(os.open(d, os.O_RDONLY))",
        "[one.name for one in os.scandir(d)]",
        "[one.name for one in pathlib.Path(d).iterdir()]",
        "[os.path.basename(one) for one in glob.glob(d + '/img*')]",
        "[files for _, _, files in os.walk(d)][0]",
        "[one.name for one in pathlib.Path(d).rglob('*')]",
    ],
)
def test_two_folders_filled_in_another_order_are_listed_alike(python, twins, expression: str) -> None:
    code = f"import glob, os, pathlib, sys; d = sys.argv[1]; print({expression})"
    first, second = (python(code, "7", folder) for folder in twins)
    assert first == second
    assert ast.literal_eval(first) == sorted(ast.literal_eval(first), key=os.fsencode)
    assert len(ast.literal_eval(first)) >= 40


def test_without_a_seed_the_order_is_the_file_systems(python, twins) -> None:
    first, second = (python(PLAIN, None, folder) for folder in twins)
    assert first != second


def test_what_has_been_added_since_is_seen_by_the_next_listing(python, tmp_path: Path) -> None:
    code = (
        "import os, sys; d = os.open(sys.argv[1], os.O_RDONLY); print(os.listdir(d))\n"
        "open(sys.argv[1] + '/b', 'w'); open(sys.argv[1] + '/a', 'w'); print(os.listdir(d)); print(os.listdir(sys.argv[1]))"
    )
    assert python(code, "7", str(tmp_path)) == "[]\n['a', 'b']\n['a', 'b']\n"


def test_files_can_be_removed_while_their_folder_is_listed(python, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}").touch()
    code = "import os, sys\nfor one in os.scandir(sys.argv[1]): os.unlink(one)\nprint(os.listdir(sys.argv[1]))"
    assert python(code, "7", str(tmp_path)) == "[]\n"


def test_threads_and_children_list_without_getting_stuck(python, tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}").touch()
    code = (
        "import os, sys, threading\n"
        "def work():\n"
        "    for _ in range(200): assert len(os.listdir(sys.argv[1])) == 50\n"
        "threads = [threading.Thread(target=work) for _ in range(4)]; [t.start() for t in threads]\n"
        "for _ in range(20):\n"
        "    if os.fork() == 0: os._exit(len(os.listdir(sys.argv[1])))\n"
        "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 50\n"
        "[t.join() for t in threads]; print('done')"
    )
    assert python(code, "7", str(tmp_path)) == "done\n"


def test_a_folder_that_is_none_fails_as_ever(python) -> None:
    code = "import os\ntry: os.listdir('/nowhere')\nexcept OSError as error: print(error)"
    assert python(code) == python(code, None)


C_READER = """
#include <dirent.h>
#include <stdio.h>
#include <string.h>
int main(int count, char **words) {
    DIR *directory = opendir(words[count - 1]);
    struct dirent *entry;
    long place = 0;
    char marked[256] = "";
    for (int number = 0; (entry = readdir(directory)) != NULL; number++) {
        if (number == 5) strcpy(marked, entry->d_name);
        puts(entry->d_name);
        if (number == 4) place = telldir(directory);
    }
    seekdir(directory, place);
    printf("%d ", strcmp(readdir(directory)->d_name, marked));
    rewinddir(directory);
    printf("%s\\n", readdir(directory)->d_name);
    return closedir(directory);
}
"""


def test_a_c_program_reads_tells_and_seeks_in_the_same_order(twins, library: Path, tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    (tmp_path / "reader.c").write_text(C_READER)
    subprocess.run([compiler, "-o", tmp_path / "reader", tmp_path / "reader.c"], check=True)
    first, second = (output([str(tmp_path / "reader"), folder], library, "7").split("\n") for folder in twins)
    assert first == second
    *names, last, _ = first
    assert names == sorted([".", "..", *NAMES], key=os.fsencode)
    assert last == "0 ."
    assert output([str(tmp_path / "reader"), twins[0]], library, None).split("\n")[-2] == "0 ."
