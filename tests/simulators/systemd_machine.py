"""A machine that systemd runs: its own processes, files and units, on this machine's kernel.

Process, mount, cgroup, host name and IPC name spaces are its own. Its network is this machine's, so
that a test reaches what listens on loopback. Its root is this machine's with every change kept in
memory, so nothing that it does to files outlives it or is seen outside.

Rules:
- It needs root, util-linux, and a kernel with cgroup v2 and overlayfs; `start` says what is
  missing.
- `/sys` and `/proc/sys` are read-only for it, and of `/dev` it has what every program needs.
- It starts no unit of this machine but the journal: no timer, no network, no mount.
- Its first process ends with `stop`, and all that it runs with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil

from tests.simulators.patience import until

SYSTEMD = Path("/usr/lib/systemd/systemd")
BOOT = """\
mount --make-rprivate /
mount -t tmpfs tmpfs "$FOLDER"
mkdir "$FOLDER/changes" "$FOLDER/work" "$FOLDER/root"
root="$FOLDER/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$FOLDER/changes,workdir=$FOLDER/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,ro,bind "$root/proc/sys"
mount --bind /sys "$root/sys"
mount -o remount,ro,bind "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for node in null zero full random urandom tty; do
  touch "$root/dev/$node"
  mount --bind "/dev/$node" "$root/dev/$node"
done
mkdir -m 1777 "$root/dev/shm" "$root/dev/mqueue"
mkdir "$root/dev/pts" "$root/dev/hugepages"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
rm -rf "$root"/usr/lib/systemd/system/*.wants "$root"/etc/systemd/system/*.wants "$root/etc/fstab"
units="$root/run/systemd/system"
mkdir -p "$units"
printf '[Unit]\\nRequires=basic.target systemd-journald.service\\nAfter=basic.target\\n' \\
  > "$units/test.target"
ROOT="$root" sh -e "$PREPARE"
mkdir -p "$root/mnt"
cd "$root"
pivot_root . mnt
umount -l mnt
exec /usr/lib/systemd/systemd --system --unit=test.target --show-status=no \\
  --log-target=journal-or-kmsg
"""
JOIN = """\
echo $$ > "$GROUP/cgroup.procs"
exec unshare --pid --mount --ipc --uts --cgroup --fork --kill-child sh -ec "$BOOT"
"""


class NoSystemdError(Exception):
    """systemd cannot run here."""


class SystemdMachine:
    """A machine.

    Args:
        folder: An empty directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder.with_suffix(".log")

    def start(self, prepare: str) -> None:
        """Boot.

        Args:
            prepare: A shell script that makes users and files below `$ROOT` before systemd starts.

        Raises:
            NoSystemdError: What is missing.
        """
        if os.geteuid() != 0:
            raise NoSystemdError("only root can start systemd")
        for program in ("unshare", "nsenter"):
            if shutil.which(program) is None:
                raise NoSystemdError(f"{program} is not installed")
        if not SYSTEMD.exists():
            raise NoSystemdError("systemd is not installed")
        self._group = _cgroup2() / f"edgefleet-test-{os.getpid()}"
        self._group.mkdir()
        self._folder.mkdir()
        script = self._folder.with_suffix(".prepare")
        script.write_text(prepare)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-ec", JOIN], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={
                    "FOLDER": str(self._folder), "PREPARE": str(script), "BOOT": BOOT,
                    "GROUP": str(self._group), "PATH": os.environ["PATH"], "container": "test",
                },
            )  # fmt: skip
        until(self._is_up, lambda: f"systemd: {self.log}", step_s=0.2)

    def _is_up(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise NoSystemdError(f"systemd ended at once: {self.log}")
        return self._first() is not None and self.state() in {"running", "degraded"}

    def state(self) -> str:
        """Return the state of the whole machine, such as `running`."""
        return self.run("systemctl", "is-system-running").stdout.strip()

    @property
    def log(self) -> str:
        """What systemd wrote to its console."""
        return self._log.read_text(errors="replace")[-2000:]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        first = self._first()
        assert first is not None, "systemd does not run"
        return subprocess.run(
            ["nsenter", "-t", str(first), "-a", *command],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _first(self) -> int | None:
        """Return systemd's process; None before it has begun, when files are still outside's."""
        assert self._process is not None
        for child in psutil.Process(self._process.pid).children():
            if child.name() == SYSTEMD.name:
                return int(child.pid)
        return None

    def stop(self) -> None:
        """End it, and all that it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            until(lambda: _removed(self._group), "the end of its processes")


def _cgroup2() -> Path:
    """Return where cgroup v2 is mounted.

    Raises:
        NoSystemdError: Nowhere.
    """
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(place)
    raise NoSystemdError("cgroup v2 is not mounted")


def _removed(group: Path) -> bool:
    try:
        for inner in sorted(group.rglob("*/"), reverse=True):
            inner.rmdir()
        group.rmdir()
    except OSError:  # a process in it has not ended yet
        return False
    return True
