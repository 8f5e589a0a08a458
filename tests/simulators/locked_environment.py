"""Virtual environments from a lock of their own, for what does not go with the locked packages.

Rules:
- An environment is found by the digest of its lock, and appears complete or not at all: it is made
  aside and renamed.
- Every file is checked by its hash. A file with another hash is a fault, not a reason to skip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.simulators.patience import PATIENCE_S

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "environments"
"""Ignored by git; `make clean` removes it."""

_TOLD: Final = 300


class NoEnvironmentError(Exception):
    """The packages of a lock cannot be had here."""


def locked_environment(lock: Path) -> Path:
    """Make an environment from a lock, once.

    Args:
        lock: Every file by hash, as pip reads it.

    Returns:
        Its interpreter.

    Raises:
        NoEnvironmentError: No package index can be reached, or it has no wheel for this machine.
        AssertionError: A file has another hash.
    """
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    minor = f"py{sys.version_info.major}{sys.version_info.minor}"
    home = FOLDER / f"{lock.stem}-{digest}-{minor}"
    python = home / "bin" / "python"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w", encoding="ascii") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not python.is_file():
            aside = Path(tempfile.mkdtemp(prefix="making-", dir=FOLDER))
            try:
                _fill(aside, lock)
                aside.replace(home)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    return python


def _fill(aside: Path, lock: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(aside)], check=True)
    done = subprocess.run(
        [
            str(aside / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input",
            "--disable-pip-version-check", "--only-binary=:all:", "--require-hashes",
            "-r", str(lock),
        ],
        capture_output=True, text=True, check=False, env=os.environ, timeout=10 * PATIENCE_S,
    )  # fmt: skip
    if done.returncode == 0:
        return
    faults = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    told = (faults or [done.stderr])[0][:_TOLD]
    assert "HASHES" not in told, done.stderr
    raise NoEnvironmentError(f"{lock.name} cannot be installed: {told}")
