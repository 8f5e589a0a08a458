"""Runs a program for a 64-bit Arm board on this machine, in a root file system of such a board.

```
python tests/simulators/foreign_root.py --root DIR --bind DIR... -- /usr/bin/python3 ...
```

Whatever the program starts is emulated too: the kernel hands every aarch64 program to the emulator
(binfmt_misc). Without `--root` the program has this machine's files, as mmdebstrap needs it.

Rules:
- Nothing on this machine changes. Mounts, processes and the kernel's table of foreign programs are
  those of namespaces of our own, and are gone with the program, also when this one is killed.
- The network is this machine's: what listens on loopback here is reached there.
- The processor is a Raspberry Pi 4's, whatever environment a program hands on to what it starts.
  The emulator's default has instructions that such a board lacks.
- It is a program of its own, because a process with threads must not enter such namespaces.

Source:
    Linux, Documentation/admin-guide/binfmt-misc.rst: the form of an entry, the flag F, and since
    Linux 6.7 a table for each user namespace. user_namespaces(7), pid_namespaces(7).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

EMULATOR: Final = "qemu-aarch64-static"
UNABLE: Final = 125
"""The status that says: this machine cannot do it, and the last line on stderr says why."""

_NEW_MOUNTS, _NEW_USERS, _NEW_PIDS = 0x00020000, 0x10000000, 0x20000000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_SET_DEATH_SIGNAL: Final = 1
_IDS: Final = 65_536
_CPUINFO: Final = Path(__file__).with_name("rpi4_cpuinfo.txt")
_TABLE: Final = Path("/proc/sys/fs/binfmt_misc")
# An ELF file of 64 bits, the lesser byte first, an executable or a library, for machine 183.
_MAGIC: Final = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK: Final = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"

CPU: Final = "cortex-a72"
COMPILER: Final = "gcc"
_INSIDE: Final = "/.emulator"
_WRAPPER: Final = """
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    setenv("QEMU_CPU", "%s", 1);
    execv("%s", words);
    return 126;
}
"""

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class UnableError(Exception):
    """This machine has no emulator, or its kernel does not allow what is needed."""


def main() -> int:
    """Run the program; return its status, or 128 and the number of the signal that ended it."""
    parser = argparse.ArgumentParser(description="Run a program for a 64-bit Arm board.")
    parser.add_argument("--root", type=Path, help="the root file system; without, this machine's")
    parser.add_argument("--bind", type=Path, action="append", default=[], help="also seen there")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        return _unable(f"{EMULATOR} is not installed; apt-get install qemu-user-static")
    if os.geteuid() != 0:
        return _unable("a root file system with its users and groups needs root")
    entered, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _guarded(lambda: _enter(options, emulator, entered[1], mapped[0]))
    os.close(entered[1])
    if os.read(entered[0], 1):
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{kind}").write_text(f"0 0 {_IDS}\n", encoding="ascii")
    os.write(mapped[1], b"!")
    return _wait(child)


def _enter(options: argparse.Namespace, emulator: str, entered: int, mapped: int) -> int:
    """Enter the namespaces; the next process is the first of its own process ids."""
    _die_with_parent()
    _call(_LIBC.unshare(_NEW_MOUNTS | _NEW_USERS | _NEW_PIDS), "namespaces of users")
    os.write(entered, b"!")
    os.close(entered)
    os.read(mapped, 1)
    # A process that has changed its user no longer dies with its parent.
    os.setgid(0)
    os.setuid(0)
    _die_with_parent()
    first = os.fork()
    if first == 0:
        _guarded(lambda: _begin(options, emulator))
    return _wait(first)


def _begin(options: argparse.Namespace, emulator: str) -> int:
    """Set up what is seen, run the program, and take in what it leaves behind."""
    _die_with_parent()
    _mount("none", Path("/"), flags=_RECURSIVE | _PRIVATE)
    _mount("proc", Path("/proc"), "proc")
    try:
        _mount("binfmt_misc", _TABLE, "binfmt_misc")
    except UnableError as exc:
        raise UnableError(f"{exc}: no table of foreign programs before Linux 6.7") from exc
    if options.root is None:
        _register(emulator)
    else:
        with tempfile.TemporaryDirectory(prefix="ef-") as folder:
            _register(_wrapper(Path(folder)))
        _see(options.root.resolve(), emulator, [path.resolve() for path in options.bind])
    program = os.fork()
    if program == 0:
        try:
            os.execvp(options.command[0], options.command)  # noqa: S606 - what we are asked to run
        except OSError as exc:
            os.write(2, f"{options.command[0]}: {exc.strerror}\n".encode())
            os._exit(127)
    return _wait(program)


def _register(interpreter: str) -> None:
    """Let the kernel hand each aarch64 program to another one, which it opens now."""
    entry = f":edgefleet-aarch64:M::{_MAGIC}:{_MASK}:{interpreter}:F"
    (_TABLE / "register").write_text(entry, encoding="ascii")


def _wrapper(folder: Path) -> str:
    """Return a program that runs the emulator as a processor; the kernel's table takes no option.

    Raises:
        UnableError: It cannot be compiled.
    """
    source, program = folder / "wrapper.c", folder / "wrapper"
    source.write_text(_WRAPPER % (CPU, _INSIDE), encoding="ascii")
    if shutil.which(COMPILER) is None:
        raise UnableError(f"{COMPILER} is not installed; apt-get install gcc libc6-dev")
    command = [COMPILER, "-static", "-o", str(program), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnableError(f"{COMPILER}: {done.stderr.strip()}")
    return str(program)


def _see(root: Path, emulator: str, shared: list[Path]) -> None:
    """Make a folder the root, with the emulator, the kernel's folders and what is shared."""
    inside = root / _INSIDE.lstrip("/")
    inside.touch()
    _mount(emulator, inside, flags=_BIND)
    for path in (Path("/dev"), Path("/sys"), *shared):
        inside = root / path.relative_to("/")
        inside.mkdir(parents=True, exist_ok=True)
        _mount(str(path), inside, flags=_BIND | _RECURSIVE)
    (root / "proc").mkdir(exist_ok=True)
    _mount("proc", root / "proc", "proc")
    # The kernel's own describes the processor of this machine; emulators before QEMU 8.1 show it.
    _mount(str(_CPUINFO), root / "proc/cpuinfo", flags=_BIND)
    os.chroot(root)
    os.chdir("/")


def _wait(child: int) -> int:
    """Hand signals on to a child, and return its status; the first process reaps all others too."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda which, _frame: os.kill(child, which))
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _guarded(work: Callable[[], int]) -> NoReturn:
    """End this process with what a function returns, whatever happens in it."""
    code = UNABLE
    try:
        code = work()
    except (UnableError, OSError) as exc:
        _unable(str(exc))
    finally:
        os._exit(code)


def _unable(why: str) -> int:
    os.write(2, f"foreign_root: {why}\n".encode())
    return UNABLE


def _die_with_parent() -> None:
    _call(_LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0), "prctl")


def _mount(source: str, target: Path, kind: str = "", *, flags: int = 0) -> None:
    done = _LIBC.mount(source.encode(), str(target).encode(), kind.encode(), flags, None)
    _call(done, f"mount {kind or source} at {target}")


def _call(done: int, what: str) -> None:
    if done != 0:
        raise UnableError(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    sys.exit(main())
