"""A 32-bit Arm board's Python with tflite-runtime, under user-mode emulation.

Python and NumPy are Debian's packages for armhf, unpacked into a folder of their own. tflite-
runtime is its armv7 wheel. msgspec, of which there is no armv7 wheel, is compiled from its source.

Rules:
- Nothing on this machine changes: apt keeps its lists and files in a folder of ours, and needs no
  root.
- Every file is checked by its hash. Debian keeps only the newest version of a package, so a version
  may be gone one day: then `requirements/armv7.debs` names newer ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tarfile
from pathlib import Path
from typing import Final

from tests.simulators.locked_environment import LOCKS, NoEnvironmentError, made_once, pip, run

DEBS: Final = LOCKS / "armv7.debs"
WHEELS: Final = LOCKS / "armv7.lock"
EMULATOR: Final = "qemu-arm-static"
COMPILER: Final = "arm-linux-gnueabihf-gcc"
CPU: Final = "cortex-a7"
"""Of a Raspberry Pi 2. The emulator's default has instructions that such boards lack."""

_LIBRARIES: Final = "usr/lib/arm-linux-gnueabihf"
_SITE: Final = "site"


def armv7_python(*paths: Path) -> list[str]:
    """Return the start of a command line that runs Python as on such a board.

    Args:
        *paths: Folders in which it finds modules besides.

    Raises:
        NoEnvironmentError: The emulator, the compiler or a package cannot be had here.
    """
    for tool, package in ((EMULATOR, "qemu-user-static"), (COMPILER, "gcc-arm-linux-gnueabihf")):
        if shutil.which(tool) is None:
            raise NoEnvironmentError(f"{tool} is not installed; apt-get install {package}")
    root = made_once("armv7", (DEBS, WHEELS), _fill)
    libraries = [str(root / _LIBRARIES / name) for name in ("blas", "lapack")]
    modules = [root / _SITE, root / "usr/lib/python3/dist-packages", *paths]
    return [
        EMULATOR, "-cpu", CPU, "-L", str(root),
        "-E", f"LD_LIBRARY_PATH={':'.join(libraries)}",
        "-E", f"PYTHONPATH={':'.join(map(str, modules))}",
        str(root / "usr/bin/python3.11"),
    ]  # fmt: skip


def _fill(root: Path) -> None:
    for deb in _debs(root / "apt"):
        run(["dpkg", "-x", str(deb), str(root)])
    shutil.rmtree(root / "apt")
    site, source = root / _SITE, root / "source"
    tflite, msgspec = _pins(root)
    pip([
        "install", "--no-deps", "--platform", "manylinux_2_34_armv7l", "--python-version", "3.11",
        "--target", str(site), "-r", str(tflite),
    ])  # fmt: skip
    pip(["download", "--no-deps", "--no-binary=:all:", "-d", str(source), "-r", str(msgspec)])
    (packed,) = source.glob("msgspec-*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(source, filter="data")
    (package,) = source.glob("msgspec-*/src/msgspec")
    shutil.copytree(package, site / "msgspec")
    headers = root / "usr/include"
    run([
        COMPILER, "-shared", "-fPIC", "-O1", "-w", f"-I{headers / 'python3.11'}", f"-I{headers}",
        "-o", str(site / "msgspec" / "_core.cpython-311-arm-linux-gnueabihf.so"),
        str(package / "_core.c"),
    ])  # fmt: skip
    shutil.rmtree(source)


def _pins(root: Path) -> tuple[Path, Path]:
    """Write each pin of the lock to a file of its own: one is a wheel, the other a source."""
    text = WHEELS.read_text(encoding="utf-8")
    msgspec, _, tflite = text.partition("tflite-runtime")
    files = root / "tflite.txt", root / "msgspec.txt"
    for file, pin in zip(files, (f"tflite-runtime{tflite}", msgspec), strict=True):
        file.write_text(pin, encoding="utf-8")
    return files


def _debs(folder: Path) -> list[Path]:
    """Download the packages, and check them.

    Raises:
        NoEnvironmentError: apt is missing, or does not have one in that version.
        AssertionError: One has another hash.
    """
    if shutil.which("apt-get") is None:
        raise NoEnvironmentError("this machine has no apt-get")
    for part in ("state/lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    apt = [
        "apt-get", "-qq", "-o", "APT::Architecture=armhf", "-o", "APT::Architectures=armhf",
        "-o", f"Dir::State={folder / 'state'}", "-o", "Dir::State::status=/dev/null",
        "-o", f"Dir::Cache={folder / 'cache'}", "-o", "APT::Sandbox::User=",
    ]  # fmt: skip
    with contextlib.suppress(NoEnvironmentError):  # another source may have nothing for armhf
        run([*apt, "update"])
    found: list[Path] = []
    for line in DEBS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, version, digest = line.split()
        run([*apt, "download", f"{name}={version}"], cwd=folder)
        (deb,) = folder.glob(f"{name}_*.deb")
        assert hashlib.sha256(deb.read_bytes()).hexdigest() == digest, f"{name} has another hash"
        found.append(deb)
    return found
