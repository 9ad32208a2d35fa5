"""`errno` is what the real call has left, whatever else is done on the way."""

BEGIN = """
import ctypes, errno, os, sys
from detrain.world import preload

libc = ctypes.PyDLL(None, use_errno=True)  # called with Python's lock
def left_by(call, *args):
    ctypes.set_errno(77)
    return call(*args), ctypes.get_errno()
"""

FOLDERS = (
    BEGIN
    + """
os.chdir(sys.argv[1])
for name in ("own", "own too", "there", "deep"):
    os.mkdir(name)
open("file", "w").close()
for name in ("own", "own too"):
    preload.own_folder(os.path.realpath(name))
here = os.open(".", os.O_RDONLY)
for name in ("there", "deep/../there", "file", "./there", "missing/new"):
    for folder in (None, here):
        try:
            os.mkdir(name, dir_fd=folder)
        except OSError as error:
            print(name, type(error).__name__, errno.errorcode[error.errno])
print(left_by(libc.mkdir, b"own", 0o777), left_by(libc.mkdirat, -100, b"own too", 0o777))
"""
)


def test_folder_that_is_not_ours_exists_already(python, tmp_path) -> None:
    expected = "".join(f"{name} FileExistsError EEXIST\n" * 2 for name in ("there", "deep/../there", "file", "./there"))
    expected += "missing/new FileNotFoundError ENOENT\n" * 2
    assert python(FOLDERS, "7", str(tmp_path)) == expected + "(0, 77) (0, 77)\n"


QUIET = (
    BEGIN
    + """
def answer(what, real):
    os.path.exists("/nowhere")  # ENOENT
    return real

preload.answer_process(answer, os.getpid())
print("getpid", left_by(libc.getpid)[1])
places = preload.function("detrain_clock_places", ctypes.c_char_p, ctypes.c_char_p)
assert places(b"", b"")
assert preload.set_answering("detrain_answer_clocks", answer)
room = ctypes.create_string_buffer(64)
print("clock_gettime", *left_by(libc.clock_gettime, 0, room))
print("gettimeofday", *left_by(libc.gettimeofday, room, None))
print("time", left_by(libc.time, None)[1])
libc.opendir.restype = ctypes.c_void_p
libc.readdir.restype = ctypes.c_void_p
folder = ctypes.c_void_p(libc.opendir(sys.argv[1].encode()))
while libc.readdir(folder):
    pass
print("readdir", *left_by(libc.readdir, folder))
print("rewinddir", left_by(libc.rewinddir, folder)[1])
for _ in range(2):
    print("readdir64", left_by(libc.readdir64, folder)[1])
print("closedir", *left_by(libc.closedir, folder))
print("open", left_by(libc.open, b"/dev/urandom", 0)[1])
print("getrandom", *left_by(libc.getrandom, room, 8, 0))
print("wrong flags", *left_by(libc.getrandom, room, 8, 64))
print("too much", *left_by(libc.getentropy, room, 257))
"""
)


def test_calls_that_succeed_leave_it_alone(python, tmp_path) -> None:
    lines = dict(line.rsplit(" ", 1) for line in python(QUIET, "7", str(tmp_path)).splitlines())
    failing = {"wrong flags -1": "22", "too much -1": "5"}
    assert {name: number for name, number in lines.items() if name not in failing and number != "77"} == {}
    assert {name: lines[name] for name in failing} == failing
    assert len(lines) == 12
