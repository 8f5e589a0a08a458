"""A Debian root file system of a 64-bit Arm board, and the wheels that its agent is installed from.

Rules:
- Debian's packages come from where apt of this machine takes them, and are checked by its keys. The
  wheels come from pip's index, and each is checked by the hash in our locks.
- A root file system that is there is only read. Whoever runs something in it takes a copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.simulators import foreign_root
from tests.simulators.locked_environment import LOCKS, NoEnvironmentError, pip

RELEASE: Final = "bookworm"
PACKAGES: Final = ("openssl", "python3", "python3-venv")
"""What an agent needs of Debian."""

DEVICE_LOCK: Final = LOCKS / "device.lock"
WHEELS: Final = "srv/wheels"
"""Where the wheels lie in the root file system."""

RUNTIMES: Final = (
    "numpy", "onnxruntime", "flatbuffers", "packaging", "protobuf",
    "iree-base-runtime", "ml-dtypes",
    "ai-edge-litert", "backports-strenum", "tqdm", "typing-extensions",
)  # fmt: skip
"""The runtimes of the board and what they need; `dev.lock` has the hashes of all machines."""

ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}
"""Nothing of this machine's environment reaches the board."""

_MAKING_S: Final = 3600.0
_PLATFORMS: Final = tuple(f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 17))
_PIN: Final = re.compile(r"(?m)^(?P<name>[a-z0-9.-]+)==[^\n]*\\\n(?:    --hash[^\n]*\n)+")
_OF_APT: Final = ("Acquire::Check-", "Acquire::http", "Acquire::Languages")
"""What of this machine's settings for apt holds for the board's: proxies, wrong clocks."""

_TOLD: Final = 600


def inside(root: Path, *shared: Path, **more: str) -> list[str]:
    """Return the start of a command line that runs a program on the board.

    Args:
        root: Its root file system; it is written to.
        *shared: Folders of this machine that it sees under the same names.
        **more: Variables of its environment.
    """
    variables = [f"{key}={value}" for key, value in (ENVIRONMENT | more).items()]
    return [
        sys.executable, foreign_root.__file__, "--root", str(root),
        *(word for path in shared for word in ("--bind", str(path))),
        "--", "/usr/bin/env", "-i", *variables,
    ]  # fmt: skip


def ensure_root(root: Path) -> None:
    """Make the root file system with its wheels, if it is not there.

    Args:
        root: Where; it appears whole or not at all.

    Raises:
        NoEnvironmentError: Something that this needs cannot be had here.
    """
    if root.is_dir():
        if not (root / WHEELS).is_dir():
            raise NoEnvironmentError(f"{root} is no root file system that this program made")
        return
    if shutil.which("mmdebstrap") is None:
        raise NoEnvironmentError("mmdebstrap is not installed; apt-get install mmdebstrap")
    root.parent.mkdir(parents=True, exist_ok=True)
    aside = root.with_name(f"{root.name}.making")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        _debian(aside)
        _wheels(aside / WHEELS)
        aside.replace(root)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def told(command: list[str], what: str) -> str:
    """Run a command to its end and return what it printed.

    Raises:
        NoEnvironmentError: It failed.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_MAKING_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["it said nothing"]
        faults = [line for line in lines if line.startswith(("E: ", "Err:", "W: Fail", "ERROR"))]
        raise NoEnvironmentError(f"{what}: {'; '.join(faults or lines[-1:])[:_TOLD]}")
    return done.stdout


def _debian(root: Path) -> None:
    """Install Debian's packages into a folder, configured under emulation."""
    sources = root.with_name(f"{root.name}.list")
    settings = root.with_name(f"{root.name}.apt")
    sources.write_text(_sources(), encoding="utf-8")
    dump = ["apt-config", "dump", "--no-empty", "--format", '%f "%v";%n', "Acquire"]
    kept = [line for line in told(dump, "apt-config").splitlines() if line.startswith(_OF_APT)]
    settings.write_text("\n".join([*kept, 'Acquire::Retries "3";']) + "\n", encoding="utf-8")
    try:
        told(
            [
                sys.executable, foreign_root.__file__, "--",
                "mmdebstrap", "--mode=root", "--variant=apt", "--architectures=arm64",
                f"--include={','.join(PACKAGES)}", f"--aptopt={settings}",
                RELEASE, str(root), str(sources),
            ],
            "mmdebstrap",
        )  # fmt: skip
    finally:
        sources.unlink()
        settings.unlink()


def _sources() -> str:
    """Return where apt of this machine takes Debian's packages from, as lines for apt.

    Raises:
        NoEnvironmentError: It has another release.
    """
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    chosen = ["Created-By: Packages", "Origin: Debian"]
    found = told(["apt-get", "indextargets", "--format", form, *chosen], "apt-get").splitlines()
    lines = list(dict.fromkeys(found))
    if not any(f" {RELEASE} " in each for each in lines):
        raise NoEnvironmentError(
            f"apt has no list of Debian {RELEASE} here; run apt-get update, or prepare the root "
            "file system on a machine that has"
        )
    return "\n".join(each for each in lines if f" {RELEASE}" in each) + "\n"


def _wheels(folder: Path) -> None:
    """Download the wheels for the board."""
    folder.mkdir(parents=True)
    pins = folder / "runtimes.lock"
    pins.write_text(_runtime_pins(), encoding="ascii")
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    for lock in (DEVICE_LOCK, pins):
        pip([
            "download", "--no-deps", *platforms, "--python-version", "3.11", "-d", str(folder),
            "-r", str(lock),
        ])  # fmt: skip


def _runtime_pins() -> str:
    text = (LOCKS / "dev.lock").read_text(encoding="utf-8")
    found = {match["name"]: match.group() for match in _PIN.finditer(text)}
    return "".join(found[name] for name in RUNTIMES)


def default_root() -> Path:
    """Return where the root file system lies if nobody says: `EDGEFLEET_ARM64_ROOT`, or `build`."""
    named = os.environ.get("EDGEFLEET_ARM64_ROOT")
    return Path(named) if named else LOCKS.parent / "build" / "environments" / "arm64-root"
