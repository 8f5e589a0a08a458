"""Runs a program below strace, and turns what it did to a directory into operations.

A program tells what it has promised with `say`, by a line on its standard output.

Rules:
- Only calls that cannot change a file are left out (`NEUTRAL`). Every other one that names the
  directory, and that is not understood here, is an error: nothing is ignored.
- The operations must rebuild the directory as it is in the end, byte by byte; else the recording
  is refused.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.crash_states.recorder import SAID, Recorder, RecordingError
from tests.crash_states.states import ROOT, Disk, Link, Operation, Tree

NEUTRAL: Final = (
    "read", "readv", "pread64", "preadv", "preadv2", "close", "close_range", "dup", "dup2",
    "dup3", "fcntl", "flock", "ioctl", "fadvise64", "readahead", "stat", "lstat", "fstat",
    "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat",
    "getdents", "getdents64", "statfs", "fstatfs", "getcwd", "execve", "chmod", "fchmod",
    "fchmodat", "chown", "fchown", "lchown", "fchownat", "utime", "utimes", "futimesat",
    "utimensat", "getxattr", "lgetxattr", "fgetxattr", "listxattr", "inotify_add_watch",
    "sync_file_range", "mprotect", "munmap", "brk", "futex", "clock_nanosleep", "clock_gettime",
    "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "rt_sigaction",
    "rt_sigprocmask", "getrandom", "getpid", "gettid", "wait4", "sched_yield", "madvise", "exit",
    "exit_group",
)  # fmt: skip
"""Calls that change no file, or promise nothing of it: `sync_file_range` leaves out the size. An
`ioctl` that copies within a file system would show in the comparison at the end."""


@dataclass(frozen=True)
class Recording:
    """What a program did to a directory."""

    before: Disk
    """The directory as it was, with the inodes that the program made and no name leads to yet."""

    operations: tuple[Operation, ...]


def say(text: str) -> None:
    """Note in the recording what a program tells somebody who relies on it from now on."""
    os.write(1, SAID + text.encode() + b"\n")


def lacking() -> str:
    """Return why nothing can be recorded on this machine; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is missing: apt install strace"
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "this machine lets no process be traced (ptrace)"


def record(command: Sequence[str], directory: Path, *, limit_s: float = 300.0) -> Recording:
    """Run a program, and return what it did to a directory.

    Args:
        command: The program; it must end with status 0.
        directory: The directory.
        limit_s: It must end within this time.

    Returns:
        The recording.

    Raises:
        RecordingError: The program failed, or did what is not understood.
    """
    root = directory.resolve()
    before = disk_of(root)
    log = root.with_name(f"{root.name}.strace")
    options = ["-f", "--seccomp-bpf", "-y", "-xx", "-s", str(2**26), "-e", "signal=none"]
    traced = "trace=!" + ",".join(f"?{name}" for name in NEUTRAL)
    ended = subprocess.run(
        ["strace", *options, "-e", traced, "-o", str(log), *command],
        capture_output=True,
        timeout=limit_s,
        check=False,
    )
    if ended.returncode != 0:
        raise RecordingError(f"the program ended with {ended.returncode}: {ended.stderr.decode()}")
    with log.open() as lines:
        recorder = Recorder(root, before)
        recorder.read(lines)
    log.unlink()
    rebuilt, real = recorder.disk.tree(), tree_of(root)
    if rebuilt != real:
        different = sorted(
            path for path in {*rebuilt, *real} if rebuilt.get(path, 0) != real.get(path, 0)
        )
        raise RecordingError(f"the log does not tell how these came about: {different}")
    return Recording(recorder.before, tuple(recorder.operations))


def tree_of(root: Path) -> Tree:
    """Return what is in a directory."""
    return {
        str(path.relative_to(root)): Link(str(path.readlink()))
        if path.is_symlink()
        else None
        if path.is_dir()
        else path.read_bytes()
        for path in root.rglob("*")
    }


def disk_of(root: Path) -> Disk:
    """Return a directory as a disk with inodes of its own."""
    disk = Disk()
    numbers = {"": ROOT}
    for inode, (path, content) in enumerate(sorted(tree_of(root).items()), 1):
        folder, _, name = path.rpartition("/")
        disk.folders[numbers[folder]][name] = numbers[path] = inode
        disk.put(inode, content)
    return disk
