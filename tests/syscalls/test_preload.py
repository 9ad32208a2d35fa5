"""The preload library: the same entropy in every attempt, its own in every child, real entropy without a seed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.world import preload
from tests.syscalls.conftest import output

# One expression for each way to ask; all are evaluated, in this order, by one process.
QUESTIONS = {
    "os.urandom": "os.urandom(16).hex()",
    "an odd number of bytes": "os.urandom(3).hex()",
    "uuid4": "str(uuid.uuid4())",
    "secrets": "secrets.token_hex(8)",
    "random.Random": "random.Random().random()",
    "the random module, as imported": "random.random()",
    "SystemRandom": "random.SystemRandom().random()",
    "numpy": "float(np.random.default_rng().random())",
    "numpy's legacy generator": "float(np.random.RandomState().random())",
    "open /dev/urandom": "open('/dev/urandom', 'rb').read(16).hex()",
    "open /dev/random unbuffered": "open('/dev/random', 'rb', buffering=0).read(16).hex()",
    "os.open": "os.read(os.open('/dev/urandom', os.O_RDONLY), 16).hex()",
    "openat": "os.read(os.open('/dev/urandom', os.O_RDONLY, dir_fd=os.open('/', os.O_RDONLY)), 16).hex()",
    "fopen": "c_file()",
    "getentropy": "c_buffer('getentropy')",
    "syscall": "c_syscall()",
    "a thread": "in_thread()",
}
PRELUDE = """
import ctypes, json, os, random, secrets, threading, uuid
import numpy as np
c = ctypes.CDLL(None)
def c_buffer(name):
    out = ctypes.create_string_buffer(16)
    getattr(c, name)(out, ctypes.c_size_t(16))
    return out.raw.hex()
def c_file():
    out = ctypes.create_string_buffer(16)
    c.fopen.restype = ctypes.c_void_p
    c.fread(out, ctypes.c_size_t(1), ctypes.c_size_t(16), ctypes.c_void_p(c.fopen(b'/dev/urandom', b'rb')))
    return out.raw.hex()
def c_syscall():
    out = ctypes.create_string_buffer(16)
    number = {'x86_64': 318, 'aarch64': 278}[os.uname().machine]
    c.syscall(ctypes.c_long(number), out, ctypes.c_size_t(16), ctypes.c_long(0))
    return out.raw.hex()
def in_thread():
    out = []
    thread = threading.Thread(target=lambda: out.append(os.urandom(8).hex()))
    thread.start(); thread.join()
    return out[0]
"""
ASK = PRELUDE + "print(json.dumps({" + ",".join(f"{name!r}: {code}" for name, code in QUESTIONS.items()) + "}))"


# One stream


def test_two_processes_with_one_seed_get_the_same_answers(python) -> None:
    assert json.loads(python(ASK)) == json.loads(python(ASK))


def test_without_a_seed_every_answer_is_the_machines_own(python) -> None:
    first, second = json.loads(python(ASK, None)), json.loads(python(ASK, None))
    assert [name for name in QUESTIONS if first[name] == second[name]] == []


@pytest.mark.parametrize("other", ["8", "0", "-7", "seven", ""])
def test_another_seed_gives_other_answers(python, other: str) -> None:
    first, second = json.loads(python(ASK)), json.loads(python(ASK, other))
    assert [name for name in QUESTIONS if first[name] == second[name]] == []


def test_no_answer_repeats_another(python) -> None:
    answers = list(json.loads(python(ASK)).values())
    assert len(set(answers)) == len(answers)


def test_the_stream_does_not_depend_on_how_it_is_cut_into_requests(python) -> None:
    whole = python("import os; print(os.urandom(40).hex())")
    assert python("import os; print(''.join(os.urandom(n).hex() for n in (1, 2, 8, 13, 16)))") == whole


def test_the_stream_looks_random(python) -> None:
    bits = python("import os; print(sum(byte.bit_count() for byte in os.urandom(1_000_000)))")
    assert abs(int(bits) - 4_000_000) < 8_000  # 5.7 standard deviations of a fair coin


def test_hash_seed_is_fixed_even_without_pythonhashseed(python) -> None:
    # -E ignores PYTHONHASHSEED: Python asks for a random hash seed, which comes from the stream
    code = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-ERc', 'print(hash(\"a\"))']))"
    assert python(code) == python(code)


def test_a_device_that_is_read_to_its_end_gives_one_mebibyte(python) -> None:
    assert python("print(len(open('/dev/urandom', 'rb').read()))") == f"{2**20}\n"


def test_writing_to_the_device_goes_to_the_device(python) -> None:
    assert python("import os; print(os.write(os.open('/dev/urandom', os.O_WRONLY), b'abc'))") == "3\n"


def test_close_on_exec_is_kept(python) -> None:
    assert python("import os; print(os.get_inheritable(os.open('/dev/urandom', os.O_RDONLY)))") == "False\n"


@pytest.mark.parametrize("call", ["getrandom", "getentropy"])
def test_a_wrong_request_fails_as_in_the_c_library(python, call: str) -> None:
    arguments = "16, 64" if call == "getrandom" else "257"
    code = (
        "import ctypes, errno; c = ctypes.CDLL(None, use_errno=True)\n"
        f"print(c.{call}(ctypes.create_string_buffer(300), {arguments}), errno.errorcode[ctypes.get_errno()])"
    )
    assert python(code) == python(code, None)


def test_opening_what_is_no_device_is_as_ever(python, tmp_path: Path) -> None:
    code = (
        "import os, sys; p = sys.argv[1]; os.umask(0)\n"
        "os.close(os.open(p, os.O_CREAT | os.O_WRONLY, 0o640)); print(oct(os.stat(p).st_mode))\n"
        "try: open(p + '/x')\n"
        "except OSError as e: print(e.strerror)"
    )
    outputs = [python(code, seed, str(tmp_path / f"{seed}")) for seed in ("7", None)]
    assert outputs == ["0o100640\nNot a directory\n"] * 2


def test_tls_keeps_real_randomness(python) -> None:
    code = "import ssl, _ssl; print(open('/proc/self/maps').read().count('libcrypto')); print(ssl.RAND_bytes(16).hex())"
    (mapped, first), (_, second) = python(code).split(), python(code).split()
    if mapped == "0":
        pytest.skip("this Python carries its OpenSSL inside; it cannot be told apart (see syscalls/README.md)")
    assert first != second


def test_a_library_in_a_folder_with_blanks_is_preloaded_through_a_link(library, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a b:c").mkdir()
    path = Path(shutil.copy(library, tmp_path / "a b:c" / "libdetrain_syscalls.so"))
    link = preload.without_separators(path)
    assert link is not None
    assert link == preload.without_separators(path)
    assert link.resolve() == path
    code = [sys.executable, "-c", "import os; print(os.urandom(8))"]
    assert output(code, link, "7") == output(code, library, "7")


def test_a_library_that_no_link_can_reach_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "blank cache"))
    assert preload.without_separators(tmp_path / "a b" / "libdetrain_syscalls.so") is None


# Children

FORKS = """
import os
def child():
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, os.urandom(8).hex().encode()); os._exit(0)
    os.wait()
    return os.read(read, 100).decode()
"""
SPAWNS = """
import os, subprocess, sys
def child():
    return subprocess.check_output([sys.executable, '-c', 'import os; print(os.urandom(8).hex())'], text=True).strip()
"""
CLEAN_SPAWNS = SPAWNS.replace("text=True", "text=True, env=dict(os.environ)")
POSIX_SPAWNS = """
import os, sys
def child():
    read, write = os.pipe()
    code = f"import os; os.write({write}, os.urandom(8).hex().encode())"
    os.set_inheritable(write, True)
    os.waitpid(os.posix_spawn(sys.executable, [sys.executable, '-c', code], os.environ), 0)
    return os.read(read, 100).decode()
"""
STARTS = {"fork": FORKS, "subprocess": SPAWNS, "subprocess with env": CLEAN_SPAWNS, "posix_spawn": POSIX_SPAWNS}


@pytest.mark.parametrize("start", STARTS)
def test_children_differ_from_each_other_and_are_the_same_in_the_next_run(python, start: str) -> None:
    code = STARTS[start] + "print(child(), os.urandom(8).hex(), child(), child())"
    first = python(code).split()
    assert len(set(first)) == 4
    assert python(code).split() == first
    assert not set(python(code, None).split()) & set(first)


def test_a_process_that_begins_again_draws_the_same_numbers_again(python) -> None:
    draw = "import os; print(os.urandom(8).hex(), flush=True)"
    code = f"{IMPORT}{draw}\nimport sys\nif sys.argv[1] == 'again': preload.keep_seed()\n"
    code += f"os.execv(sys.executable, [sys.executable, '-c', {draw!r}])"
    (first, again), (same, as_a_child) = (python(code, "7", how).split() for how in ("again", "as a child"))
    assert first == again == same != as_a_child


def test_making_children_takes_nothing_from_the_parents_stream(python) -> None:
    with_children = python(FORKS + "child(); child(); print(os.urandom(8).hex())")
    assert with_children == python("import os; print(os.urandom(8).hex())")


def test_grandchildren_have_streams_of_their_own(python) -> None:
    code = FORKS + (
        "import sys\nfor depth in range(3):\n"
        "    print(os.urandom(4).hex(), child(), child(), flush=True)\n"
        "    if os.fork(): os.wait(); os._exit(0)\n"
    )
    words = python(code).split()
    assert len(set(words)) == len(words) == 9
    assert python(code).split() == words


def test_a_program_that_cannot_be_started_counts_for_nothing(python) -> None:
    failing = "\ntry: os.execv('/nowhere', ['x'])\nexcept OSError: pass\n"
    assert python(SPAWNS + failing + "print(child())") == python(SPAWNS + "print(child())")


def test_workers_of_a_spawn_pool_draw_different_uuids(python, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(
        "import multiprocessing, uuid\n"
        "def draw(queue): queue.put(str(uuid.uuid4()))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn'); queue = context.Queue()\n"
        "    for _ in range(2):\n"
        "        worker = context.Process(target=draw, args=(queue,))\n"
        "        worker.start(); print(queue.get()); worker.join()\n"
    )
    code = f"import subprocess, sys; print(subprocess.check_output([sys.executable, {str(script)!r}], text=True))"
    first = python(code)
    assert len(set(first.split())) == 2
    assert python(code) == first


# Tell and seek

IMPORT = "import os\nfrom detrain.world import preload\n"


def test_seek_to_what_tell_told_gives_the_same_bytes_again(python) -> None:
    code = IMPORT + (
        "os.urandom(5); state = preload.entropy_state(); first = os.urandom(11)\n"
        "preload.set_entropy_state(state); print(first == os.urandom(11), state[1])"
    )
    assert python(code) == "True 0\n"


def test_a_state_told_in_one_process_is_sought_in_another(python) -> None:
    told, rest = python(IMPORT + "os.urandom(5); print(*preload.entropy_state(), os.urandom(8).hex())").rsplit(" ", 1)
    position, children = map(int, told.split())
    sought = python(
        IMPORT + f"os.urandom(100); preload.set_entropy_state(({position}, {children})); print(os.urandom(8).hex())"
    )
    assert sought == rest


def test_seek_sets_the_count_of_children_too(python) -> None:
    second = python(FORKS + "child(); print(child())")
    assert python(IMPORT + FORKS + "preload.set_entropy_state((0, 1)); print(child())") == second


def test_the_kernel_s_uuid_is_one_and_another_each_time(python) -> None:
    code = (
        "import uuid\n"
        "def read(): return open('/proc/sys/kernel/random/uuid').read()\n"
        "one, other = read(), read(); parsed = uuid.UUID(one.strip())\n"
        "print(one == f'{parsed}\\n', parsed.version, parsed.variant == uuid.RFC_4122, one != other, parsed)"
    )
    told = python(code, "7")
    assert told.startswith("True 4 True True ")
    assert python(code, "7") == told != python(code, "8")


def test_tell_takes_nothing(python) -> None:
    code = IMPORT + "print(preload.is_loaded(), preload.entropy_state() == preload.entropy_state())"
    assert python(code) == "True True\n"


def test_threads_share_a_stream_without_losing_a_byte_of_it_or_taking_one_of_the_main_thread_s(python) -> None:
    code = IMPORT + (
        "import threading; before = preload.entropy_state(); start = preload.entropy_of_threads()[0]\n"
        "out = []; draw = lambda: out.extend(os.urandom(24) for _ in range(2000))\n"
        "threads = [threading.Thread(target=draw) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(preload.entropy_of_threads()[0] - start, len(set(out)), preload.entropy_state() == before, os.urandom(24) in out)"
    )
    assert python(code) == f"{4 * 2000 * 24} 8000 True False\n"


def test_keyed_streams_are_a_function_of_the_key_alone(python) -> None:
    code = IMPORT + (
        "import threading\n"
        "def draws():\n"
        "    out = [os.urandom(8)]; thread = threading.Thread(target=lambda: out.append(os.urandom(8)))\n"
        "    thread.start(); thread.join(); return out\n"
        "plain = draws(); preload.key_entropy(5, 2**64 - 1); one = draws(); preload.key_entropy(6, 2**64 - 1); other = draws()\n"
        "preload.key_entropy(5, 1); third = draws(); print(len({*plain, *one, *other, *third}))\n"
        "preload.key_entropy(5, 2**64 - 1); print(draws() == one, one[0].hex())"
    )
    told = python(code, "7")
    assert told.startswith("8\nTrue ")
    assert python(code, "8") == told


def test_a_process_that_is_given_a_seed_draws_what_one_draws_that_began_with_it(python) -> None:
    draw = "print(os.urandom(8).hex(), preload.entropy_state())\n"
    seeded = IMPORT + "os.urandom(3); preload.function('detrain_entropy_seed', ctypes.c_char_p)(b'7')\n" + draw
    begun = IMPORT + "preload.set_entropy_state((0, 0))\n" + draw
    assert python("import ctypes\n" + seeded, "8") == python(begun, "7")


LIBRARYS_THREAD = """
#include <pthread.h>
#include <unistd.h>
static void *draw(void *out) { getentropy(out, 8); return NULL; }
void draw_in_a_thread(void *out) {
    pthread_t thread;
    pthread_create(&thread, NULL, draw, out);
    pthread_join(thread, NULL);
}
"""


def test_threads_that_python_does_not_know_draw_from_a_stream_of_their_own(python, tmp_path: Path) -> None:
    (tmp_path / "draw.c").write_text(LIBRARYS_THREAD, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "draw.so", "draw.c", "-lpthread"], cwd=tmp_path, check=True)
    code = IMPORT + (
        "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); out = ctypes.create_string_buffer(8)\n"
        "def draw(): library.draw_in_a_thread(out); return out.raw\n"
        "state = preload.entropy_state(); first = draw(); there = preload.entropy_of_threads(); second = draw()\n"
        "print(state == preload.entropy_state(), there, first != second, os.urandom(8) not in (first, second))\n"
        "preload.set_entropy_of_threads(there); print(draw() == second, first.hex())"
    )
    told = python(code, "7", str(tmp_path / "draw.so"))
    assert told.startswith("True (0, 8) True True\nTrue ")
    assert python(code, "7", str(tmp_path / "draw.so")) == told


def test_without_a_seed_there_is_no_state(python) -> None:
    code = IMPORT + (
        "print(preload.is_loaded(), preload.entropy_state())\n"
        "try: preload.set_entropy_state((1, 2))\n"
        "except RuntimeError as error: print(error)"
    )
    first, second = python(code, None).splitlines()
    assert first == "False None"
    assert "DETRAIN_ENTROPY_SEED was not set when the process started" in second


@pytest.mark.parametrize("state", [(-1, 0), (0, 2**64)])
def test_a_state_that_is_none_is_refused(state: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not two unsigned 64-bit numbers"):
        preload.set_entropy_state(state)


# std::random_device

RANDOM_DEVICE = """
#include <fstream>
#include <iostream>
#include <random>
int main() {
    std::random_device device, rdrand_or_other("default");
    unsigned int word = 0;
    std::ifstream file("/dev/urandom", std::ios::binary);
    file.read(reinterpret_cast<char *>(&word), sizeof word);
    std::cout << device() << ' ' << rdrand_or_other() << ' ' << word << std::endl;
}
"""


@pytest.fixture(scope="session")
def random_device(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine to compile a program that uses std::random_device")
    folder = tmp_path_factory.mktemp("random_device")
    (folder / "program.cpp").write_text(RANDOM_DEVICE)
    subprocess.run([compiler, "-o", folder / "program", folder / "program.cpp"], check=True)
    return str(folder / "program")


def test_random_device_and_ifstream_are_answered(random_device: str, library: Path) -> None:
    first = output([random_device], library, "7")
    assert len(set(first.split())) == 3
    assert output([random_device], library, "7") == first
    assert not set(output([random_device], library, "8").split()) & set(first.split())


def test_random_device_without_a_seed_is_the_machines_own(random_device: str, library: Path) -> None:
    first, second = (output([random_device], library, None).split() for _ in range(2))
    assert not set(first) & set(second)
