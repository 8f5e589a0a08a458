"""Finds Mosquitto on this machine, and gets it where it is missing.

Mosquitto is looked for on PATH (and where Debian hides daemons from users), then in a cache
folder. If it is not found, root installs it with apt; any other user downloads the same signed
packages with apt and unpacks them into the cache folder, which needs no privilege.

Rules:
- Only apt fetches packages, and it checks their signatures.
- An unpacked installation appears in the cache in one rename: complete or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from controller.broker.errors import BrokerNotFoundError

PACKAGE = "mosquitto"
PLUGIN = "mosquitto_dynamic_security.so"
DAEMON_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")
APT_TIMEOUT_S = 300
MAX_DEPENDENCY_ROUNDS = 5
"""Rounds that look for the libraries of libraries; Mosquitto needs two on Debian 12."""

REMEDY = "install it (Debian, Ubuntu: apt-get install mosquitto) or put it on PATH"
_SONAME_MISSING = re.compile(r"^\s*(\S+) => not found", re.MULTILINE)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mosquitto:
    """An installation of Mosquitto."""

    program: Path
    library_paths: tuple[Path, ...] = ()
    """Folders in which the loader must look in addition to the system's own."""

    @property
    def plugin(self) -> Path:
        """The dynamic-security plugin.

        Raises:
            BrokerNotFoundError: This installation has none.
        """
        prefix = self.program.parent.parent
        for pattern in (PLUGIN, f"*/{PLUGIN}"):
            for folder in ("lib", "lib64"):
                for path in sorted((prefix / folder).glob(pattern)):
                    return path
        raise BrokerNotFoundError(
            f"{self.program} has no dynamic-security plugin under {prefix}/lib",
            remedy="install Mosquitto 2.0 or newer from your distribution's packages",
        )

    def environment(self) -> dict[str, str]:
        """Return the environment in which the program finds its libraries."""
        found = [str(path) for path in self.library_paths]
        inherited = os.environ.get("LD_LIBRARY_PATH", "")
        joined = ":".join([*found, *([inherited] if inherited else [])])
        return dict(os.environ) | ({"LD_LIBRARY_PATH": joined} if joined else {})


def default_cache() -> Path:
    """Return the user's cache folder of this system."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if base else Path(os.environ.get("HOME", "/var/tmp")) / ".cache"  # noqa: S108 - a cache of public files, checked by apt
    return root / "edgefleet"


def locate(cache: Path, *, search_path: str | None = None) -> Mosquitto | None:
    """Find an installation without fetching anything.

    Args:
        cache: The folder with what was unpacked before.
        search_path: Folders separated by colons; None means PATH and the usual daemon folders.

    Returns:
        The installation, or None.
    """
    folders = search_path
    if folders is None:
        folders = ":".join([os.environ.get("PATH", ""), *DAEMON_FOLDERS])
    program = shutil.which(PACKAGE, path=folders)
    if program is not None:
        return Mosquitto(program=Path(program))
    return _unpacked(cache / PACKAGE)


def obtain(cache: Path, progress: Progress = lambda _line: None) -> Mosquitto:
    """Find an installation, or get one.

    Args:
        cache: The folder for what is unpacked.
        progress: Gets one line for each step that takes long.

    Returns:
        The installation.

    Raises:
        BrokerNotFoundError: It is not installed and cannot be downloaded.
    """
    found = locate(cache)
    if found is not None:
        return found
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise BrokerNotFoundError("Mosquitto is not on this machine", remedy=REMEDY)
    if os.geteuid() == 0:
        progress("installing Mosquitto with apt-get")
        return _installed(cache)
    progress(f"unpacking Mosquitto into {cache / PACKAGE}")
    return unpack(cache)


def unpack(cache: Path) -> Mosquitto:
    """Download Mosquitto and the libraries that it lacks here, and unpack them without root.

    Args:
        cache: The folder to unpack into; made if missing.

    Returns:
        The installation.

    Raises:
        BrokerNotFoundError: apt cannot download it, or the folder cannot be written.
    """
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="unpacking-") as scratch:
            root = Path(scratch) / PACKAGE
            _unpack_into(root, Path(scratch) / "apt")
            shutil.rmtree(cache / PACKAGE, ignore_errors=True)
            root.rename(cache / PACKAGE)
    except OSError as exc:
        raise BrokerNotFoundError(f"cannot unpack Mosquitto into {cache}: {exc}") from exc
    found = _unpacked(cache / PACKAGE)
    if found is None:
        raise BrokerNotFoundError("the package mosquitto contains no broker", remedy=REMEDY)
    return found


def package_names(soname: str) -> tuple[str, ...]:
    """Return the Debian packages that may hold a library, likeliest first.

    Args:
        soname: Such as `libcjson.so.1` or `libssl-3.so.0`.

    Returns:
        Names such as `libcjson1` and, since the change to 64-bit times, `libcjson1t64`.
    """
    stem, _, version = soname.partition(".so.")
    dash = "-" if stem[-1:].isdigit() else ""
    name = f"{stem}{dash}{version}".lower().replace("_", "-")
    return (name, f"{name}t64")


def missing_sonames(ldd_output: str) -> tuple[str, ...]:
    """Return the libraries that `ldd` did not find, each once."""
    return tuple(dict.fromkeys(_SONAME_MISSING.findall(ldd_output)))


def _installed(cache: Path) -> Mosquitto:
    command = ["apt-get", "install", "--yes", "--no-install-recommends", PACKAGE]
    done = _run(command)
    if done.returncode != 0:  # the lists of packages may be missing or old
        _run(["apt-get", "update"])
        done = _run(command)
    found = locate(cache)
    if found is None:
        raise BrokerNotFoundError(
            f"apt-get could not install Mosquitto: {_last_line(done.stderr)}", remedy=REMEDY
        )
    return found


def _unpack_into(root: Path, downloads: Path) -> None:
    downloads.mkdir()
    if not _download(PACKAGE, downloads):
        # The system's lists may be missing or old; lists of our own need no root.
        _run(["apt-get", *_private_lists(downloads), "update"])
        if not _download(PACKAGE, downloads, _private_lists(downloads)):
            raise BrokerNotFoundError("apt-get cannot download Mosquitto", remedy=REMEDY)
    for _round in range(MAX_DEPENDENCY_ROUNDS):
        _extract(downloads, root)
        found = _unpacked(root)
        missing = _missing_libraries(found) if found is not None else ()
        if not missing:
            return
        for soname in missing:
            if not any(_download(name, downloads) for name in package_names(soname)):
                raise BrokerNotFoundError(
                    f"apt-get cannot download {soname}, which Mosquitto needs", remedy=REMEDY
                )
    raise BrokerNotFoundError("Mosquitto needs too many libraries", remedy=REMEDY)


def _private_lists(downloads: Path) -> list[str]:
    lists, cache = downloads / "lists", downloads / "cache"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={cache}"]


def _download(name: str, downloads: Path, options: list[str] | None = None) -> bool:
    if options is None and (downloads / "lists").is_dir():
        options = _private_lists(downloads)
    return _run(["apt-get", *(options or []), "download", name], cwd=downloads).returncode == 0


def _extract(downloads: Path, root: Path) -> None:
    for archive in sorted(downloads.glob("*.deb")):
        done = _run(["dpkg", "-x", str(archive), str(root)])
        if done.returncode != 0:
            raise BrokerNotFoundError(
                f"dpkg cannot unpack {archive.name}: {_last_line(done.stderr)}", remedy=REMEDY
            )
        archive.unlink()


def _missing_libraries(found: Mosquitto) -> tuple[str, ...]:
    outputs = [
        _run(["ldd", str(path)], environment=found.environment()).stdout
        for path in (found.program, found.plugin)
    ]
    return missing_sonames("\n".join(outputs))


def _unpacked(root: Path) -> Mosquitto | None:
    program = root / "usr" / "sbin" / PACKAGE
    if not os.access(program, os.X_OK):
        return None
    folders = [*root.glob("usr/lib/*-linux-*"), *root.glob("lib/*-linux-*")]
    return Mosquitto(program=program, library_paths=tuple(sorted(folders)))


def _run(
    command: list[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    base = environment if environment is not None else dict(os.environ)
    # An apt that asks a question would wait for ever; the code expects messages in English.
    base |= {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, cwd=cwd, env=base, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", check=False, timeout=APT_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError as exc:
        raise BrokerNotFoundError(f"{command[0]} is not on this machine", remedy=REMEDY) from exc
    except subprocess.TimeoutExpired as exc:
        raise BrokerNotFoundError(
            f"{command[0]} did not finish within {APT_TIMEOUT_S} s", remedy=REMEDY
        ) from exc


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
