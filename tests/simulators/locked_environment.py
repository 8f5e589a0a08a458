"""Virtual environments from a lock of their own, for what does not go with the locked packages.

Rules:
- An environment is found by the digest of its locks, and appears complete or not at all: it is made
  aside and renamed.
- Every file is checked by its hash. A file with another hash is a fault, not a reason to skip.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.simulators.patience import PATIENCE_S

ROOT: Final = Path(__file__).resolve().parents[2]
LOCKS: Final = ROOT / "requirements"
FOLDER: Final = ROOT / "build" / "environments"
"""Ignored by git."""

_TOLD: Final = 300


class NoEnvironmentError(Exception):
    """The packages of a lock cannot be had here."""


def locked_environment(lock: Path) -> Path:
    """Make a virtual environment from a lock, once.

    Args:
        lock: Every file by hash, as pip reads it.

    Returns:
        Its interpreter.

    Raises:
        NoEnvironmentError: No package index can be reached, or it has no wheel for this machine.
    """

    def fill(folder: Path) -> None:
        run([sys.executable, "-m", "venv", str(folder)])
        pip(["install", "-r", str(lock)], python=folder / "bin" / "python")

    minor = f"py{sys.version_info.major}{sys.version_info.minor}"
    return made_once(f"{lock.stem}-{minor}", (lock,), fill) / "bin" / "python"


def made_once(name: str, locks: tuple[Path, ...], fill: Callable[[Path], None]) -> Path:
    """Make a folder from locks, once.

    Args:
        name: What the folder's name begins with.
        locks: What decides its content.
        fill: Fills a folder, which then gets its name.

    Returns:
        The folder.
    """
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:16]
    home = FOLDER / f"{name}-{digest}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w", encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not home.is_dir():
            aside = Path(tempfile.mkdtemp(prefix="making-", dir=FOLDER))
            try:
                fill(aside)
                aside.replace(home)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return home


def pip(arguments: list[str], *, python: Path | str = sys.executable) -> None:
    """Let pip take files by hash from where it is told to look.

    Raises:
        NoEnvironmentError: It cannot have them.
        AssertionError: A file has another hash.
    """
    command, *more = arguments
    fixed = ["--quiet", "--no-input", "--disable-pip-version-check", "--require-hashes"]
    if "--no-binary" not in " ".join(more):
        fixed.append("--only-binary=:all:")
    run([str(python), "-m", "pip", command, *fixed, *more])


def run(command: list[str], *, cwd: Path | None = None) -> None:
    """Run a command that may lack what it needs.

    Raises:
        NoEnvironmentError: It failed.
        AssertionError: A file has another hash.
    """
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
    )
    if done.returncode == 0:
        return
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    told = next((line for line in lines if line.startswith(("ERROR", "E: "))), lines[-1])
    assert "HASHES" not in told, done.stderr
    raise NoEnvironmentError(f"{Path(command[0]).name} {command[-1]}: {told[:_TOLD]}")
