"""A view of the machine in which a script can run again and change nothing: Linux namespaces, without privileges.

The whole file system becomes read-only, but for what /proc says of processes. Over each folder that the run may write lies an
overlay: what is written there goes to memory, and is gone with the last process inside. There is no network, so that nothing is
logged or uploaded a second time.
Sources: user_namespaces(7), mount_namespaces(7), mount_setattr(2); the kernel's documentation of overlayfs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from detrain.errors import DetrainError

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_SETTINGS = "/proc/sys"
_MOUNT_ATTR_RDONLY, _AT_RECURSIVE, _AT_FDCWD = 1, 0x8000, -100
_MOUNT_SETATTR = 442  # the same number on every architecture; glibc 2.36 is the first with a function for it
_IFF_UP, _SIOCSIFFLAGS = 1, 0x8914
_SHARED_MEMORY, _RUN = Path("/dev/shm"), Path("/run")
#: No program of a user's writes there.
_SYSTEM = (
    "/proc/", "/sys/", "/dev/", "/run/", "/boot/", "/etc/", "/usr/", "/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/",
)  # fmt: skip


class NoSandbox(DetrainError):  # noqa: N818 - a refusal
    """The system does not let a process shut itself off; the message says at which step."""


class _MountAttributes(ctypes.Structure):
    """`struct mount_attr`."""

    _fields_ = (
        ("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
        ("namespace", ctypes.c_uint64),
    )  # fmt: skip


def outermost(folders: Iterable[Path], mounts: Iterable[Path] = ()) -> list[Path]:
    """These folders with links resolved, outer ones first; without the root, those that do not exist, and those within another one.

    `mounts`: where something is mounted. What lies on a mount within another folder is not seen through that folder.
    """
    found: list[Path] = []
    for folder in sorted({Path(os.path.realpath(folder)) for folder in folders}):
        if folder.is_dir() and folder != Path("/") and not any(_covers(outer, folder, mounts) for outer in found):
            found.append(folder)
    return found


def _covers(outer: Path, folder: Path, mounts: Iterable[Path]) -> bool:
    if not folder.is_relative_to(outer):
        return False
    return not any(folder.is_relative_to(one) and one.is_relative_to(outer) and one != outer for one in mounts)


def mount_points() -> list[Path]:
    """Folders on which something is mounted, apart from those of the system."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    # Blanks and the like are written as octal numbers there.
    named = {re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines}
    return sorted(
        Path(name) for name in named if name != "/" and not f"{name}/".startswith(_SYSTEM) and os.path.isdir(name)
    )


def user_folders() -> list[Path]:
    """Where programs keep what is theirs: the folders below the root but for the system's, and what is mounted."""
    top = [f"/{name}" for name in os.listdir("/")]
    return [Path(name) for name in top if not f"{name}/".startswith(_SYSTEM) and os.path.isdir(name)] + mount_points()


def enter(needed: Iterable[Path], wished: Iterable[Path], place: Path) -> dict[Path, int]:
    """Shut this process, and what it starts, off; call it while it has one thread.

    `needed` and `wished` name folders that may be changed, in this process's eyes only; a wished one that the system will not have
    stays read-only. `place`: an empty folder, for the mount that takes what is written. Returns, for each folder that may be
    changed, a descriptor of where what is written below it goes. What has been opened before stays as it was. Raises `NoSandbox`.
    """
    if platform.system() != "Linux":
        raise NoSandbox("a run can be repeated without touching your files only on Linux")
    system, folder, mounts = _System(), os.getcwd(), mount_points()
    needed = outermost(needed)
    targets = outermost([*needed, *wished, _SHARED_MEMORY], mounts)
    system.unshare()
    system.mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    system.protect("/")
    system.release_processes()
    system.mount("tmpfs", str(place), "tmpfs")
    system.place = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    uppers: dict[Path, int] = {}
    while targets:
        target = targets.pop(0)
        try:
            uppers[target] = system.overlay(target)
        except NoSandbox:
            if target in needed:
                raise
            within = [one for one in [*needed, *wished] if one != target and one.is_relative_to(target)]
            targets = [*outermost(within, mounts), *[one for one in targets if not one.is_relative_to(target)]]
    if _RUN.is_dir() and not any(one.is_relative_to(_RUN) for one in needed):
        system.mount("tmpfs", str(_RUN), "tmpfs")  # sockets of the system's services
    os.chdir(folder)  # the one until now lies below an overlay
    _switch_loopback_on()
    return uppers


def _escaped(path: Path) -> str:
    """As a value among mount's options, where a colon parts layers and a comma options."""
    text = str(path)
    for character in ("\\", ":", ","):
        text = text.replace(character, f"\\{character}")
    return text


def _switch_loopback_on() -> None:
    """Processes of one script may talk to each other (torch.distributed, managers)."""
    import fcntl
    import socket
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


class _System:
    """The calls that Python has no function for."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.place = -1  # a descriptor: its path may come to lie below an overlay
        self._num_overlays = 0

    def unshare(self) -> None:
        """Namespaces of its own for mounts and network; with one for users where that takes privileges that this process lacks."""
        if self._libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET) == 0:
            return
        user, group = os.getuid(), os.getgid()
        status = self._libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET)
        self._check(status, "no namespace of its own can be made for a process")
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")

    def mount(self, source: str | None, target: str, kind: str | None, flags: int = 0, data: str | None = None) -> None:
        texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
        status = self._libc.mount(*texts[:3], ctypes.c_ulong(flags), texts[3])
        self._check(status, f"{kind or 'a view'} cannot be mounted on {target}")

    def overlay(self, target: Path) -> int:
        """Let what is written below a folder go to memory; returns a descriptor of where."""
        self._num_overlays += 1
        place = Path(f"/proc/self/fd/{self.place}/{self._num_overlays}")
        upper, work = place / "upper", place / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir={_escaped(target)},upperdir={upper},workdir={work},userxattr"
        self.mount("overlay", str(target), "overlay", data=options)
        return os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def protect(self, path: str) -> None:
        """Read-only, with everything that is mounted below."""
        status = self._set_attributes(path, _MountAttributes(set=_MOUNT_ATTR_RDONLY), _AT_RECURSIVE)
        self._check(status, "the file system cannot be made read-only for a process")

    def release_processes(self) -> None:
        """What /proc says of processes may be written again, but not the kernel's settings.

        CUDA's driver names its threads there. Where the system will not have it, /proc stays read-only, and CUDA says that it fails.
        """
        with contextlib.suppress(NoSandbox):
            self.mount(_SETTINGS, _SETTINGS, None, _MS_BIND)  # read-only, as what it shows is by now
            self._set_attributes("/proc", _MountAttributes(clear=_MOUNT_ATTR_RDONLY), 0)

    def _set_attributes(self, path: str, attributes: _MountAttributes, flags: int) -> int:
        return int(self._libc.syscall(
            ctypes.c_long(_MOUNT_SETATTR), ctypes.c_int(_AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags),
            ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
        ))  # fmt: skip

    def _check(self, status: int, what: str) -> None:
        if status != 0:
            reason = os.strerror(ctypes.get_errno())
            raise NoSandbox(
                f"{what} here ({reason}), so the script cannot be repeated without touching your files. Unprivileged user namespaces "
                "must be allowed (kernel.unprivileged_userns_clone, user.max_user_namespaces, AppArmor, the container's seccomp profile), "
                "and Linux be 5.12 or later"
            )
