"""Virtual environments for tools whose pinned versions conflict with the packager's.

Such a tool is started as a process of its own, with the interpreter of its environment. What goes
into one is a lock beside this module: every file by hash, no registry's address. The lock of
onnx2tf leaves out what its direct writer of TFLite files does without, so nothing is resolved.

Rules:
- Only `install` downloads packages, and only a person calls it.
- An environment appears complete or not at all: it is made aside and renamed. Its scripts then name
  a folder that is gone, so that only `python -m` is for use.
- An environment is found by the digest of its lock, so a new lock gives a new environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from packager.errors import BuildError

LOCKS: Final = Path(__file__).with_suffix("")
ROOT_VARIABLE: Final = "EDGEFLEET_ENVIRONMENTS"
TIMEOUT_S: Final = 1800
_FRESH: Final = "making-"
_REACH: Final = "check that pip reaches a registry, or set PIP_FIND_LINKS to a folder of wheels"
_NEEDED_PYTHON: Final = {"onnx2tf": (3, 12)}
"""What a tool declares where it runs on older ones too: onnx2tf 2.6.9 gives equal files on 3.11."""

_FOREIGN: Final = {"aarch64": "manylinux_2_28_aarch64"}
"""Last word of a lock's name to the platform of its wheels: they are for another processor, are
unpacked beside the interpreter, and their programs run emulated."""

FOREIGN_FOLDER: Final = "foreign"

Progress = Callable[[str], None]


def names() -> tuple[str, ...]:
    """Return the names of the tools that have an environment of their own."""
    return tuple(sorted(lock.stem for lock in LOCKS.glob("*.lock")))


def default_root() -> Path:
    """Return where environments are: EDGEFLEET_ENVIRONMENTS, or below the user's cache folder."""
    if root := os.environ.get(ROOT_VARIABLE, ""):
        return Path(root)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "edgefleet" / "environments"


def environment_version(name: str) -> str:
    """Return what stands for an environment's content in cache keys.

    Args:
        name: The tool.

    Returns:
        The first 16 hexadecimal digits of its lock's SHA-256.
    """
    return hashlib.sha256(_lock(name).read_bytes()).hexdigest()[:16]


def locked_version(name: str) -> str:
    """Return the version of a tool in its environment.

    Args:
        name: The tool.

    Returns:
        The version that its lock names; where it names none of that name, `environment_version`.
    """
    found = re.search(rf"(?m)^{re.escape(name)}==([^ \\]+)", _lock(name).read_text())
    return found[1] if found is not None else environment_version(name)


def environment_python(name: str, root: Path) -> Path | None:
    """Find a tool's environment.

    Args:
        name: The tool.
        root: The folder that holds environments.

    Returns:
        Its interpreter, or None when it is not set up.
    """
    python = _home(name, root) / "bin" / "python"
    return python if python.is_file() else None


def foreign_files(name: str, root: Path) -> Path | None:
    """Find the files of a tool that was made for another processor.

    Args:
        name: The tool.
        root: The folder that holds environments.

    Returns:
        The folder, or None when it is not set up.
    """
    python = environment_python(name, root)
    return None if python is None else python.parent.parent / FOREIGN_FOLDER


def install(name: str, root: Path, progress: Progress = lambda _line: None) -> Path:
    """Set up a tool's environment; the locked files come from where pip is told to look.

    Args:
        name: The tool.
        root: The folder that holds environments; made when needed.
        progress: Is told what happens.

    Returns:
        The environment's interpreter.

    Raises:
        BuildError: It cannot be made or filled.
    """
    home = _home(name, root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _locked(root):
            if (found := environment_python(name, root)) is not None:
                progress(f"{name} is set up already: {found.parent.parent}")
                return found
            _remove_leftovers(root)
            aside = Path(tempfile.mkdtemp(prefix=_FRESH, dir=root))
            try:
                _fill(name, aside, progress)
                aside.replace(home)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except OSError as exc:
        raise BuildError(
            f"the environment of {name} cannot be made: {exc.filename or root}: {exc.strerror}",
            remedy=f"name another folder with {ROOT_VARIABLE}",
        ) from exc
    progress(f"{name} is set up: {home}")
    return home / "bin" / "python"


def _lock(name: str) -> Path:
    """Return a tool's lock.

    Raises:
        BuildError: There is no tool of that name.
    """
    if name not in names():
        raise BuildError(
            f"there is no environment {name[:80]!r}",
            remedy=f"the environments are {', '.join(names())}",
        )
    return LOCKS / f"{name}.lock"


def _home(name: str, root: Path) -> Path:
    minor = f"py{sys.version_info.major}{sys.version_info.minor}"
    return root / f"{name}-{environment_version(name)}-{minor}"


def _fill(name: str, aside: Path, progress: Progress) -> None:
    progress("making a virtual environment")
    _run([sys.executable, "-m", "venv", str(aside)], "python -m venv")
    count = sum("==" in line for line in _lock(name).read_text(encoding="utf-8").splitlines())
    progress(f"installing {count} locked packages for {name}")
    command = [
        str(aside / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input",
        "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--require-hashes",
        "-r", str(_lock(name)),
    ]  # fmt: skip
    platform = _FOREIGN.get(name.rpartition("-")[2])
    if platform is not None:
        command += ["--platform", platform, "--target", str(aside / FOREIGN_FOLDER)]
    if sys.version_info < _NEEDED_PYTHON.get(name, (0,)):
        command.append("--ignore-requires-python")
    _run(command, "pip", remedy=_REACH)


def _run(command: list[str], what: str, *, remedy: str = "") -> None:
    """Run a command.

    Raises:
        BuildError: It failed, or ran over its time.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise BuildError(f"{what} ran over {TIMEOUT_S} s") from exc
    if done.returncode != 0:
        lines = done.stdout.decode(errors="replace").split("\n")
        told = [line.strip() for line in lines if line.startswith("ERROR")] or lines[-2:]
        raise BuildError(f"{what} failed: {' '.join(told[0].split())[:200]}", remedy=remedy)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with (root / "lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(root: Path) -> None:
    """Remove what a killed installation left; the lock says that there is no other."""
    for folder in root.glob(f"{_FRESH}*"):
        shutil.rmtree(folder, ignore_errors=True)
