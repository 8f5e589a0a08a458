"""Four installers, three of which lose a model by a crash: `... planted MODE DIRECTORY`.

`full` writes everything in the right order. `inplace` overwrites what serves, `nofsync` trusts a
rename, and `nodirsync` forgets that names must be durable, too. They are what the explorer of crash
states must tell apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Final

from tests.crash_states.recording import say

BROKEN: Final = ("inplace", "nofsync", "nodirsync")
MODES: Final = (*BROKEN, "full")
WRITE_BYTES: Final = 1024


def model(version: str) -> bytes:
    """Return the content of a version of the model."""
    return hashlib.shake_256(version.encode()).digest(4 * WRITE_BYTES)


def install(root: Path, version: str, mode: str) -> None:
    """Install a version of the model."""
    content = model(version)
    about = json.dumps({"version": version, "sha256": hashlib.sha256(content).hexdigest()}).encode()
    if mode == "inplace":
        place = root / "versions" / "one"
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "model.bin", content, synced=True)
        _write(place / "about.json", about, synced=True)
        _write(root / "current", b"one", synced=True)
        return
    place, temporary, synced = root / "versions" / version, root / "current.new", mode != "nofsync"
    place.mkdir(parents=True)
    _write(place / "model.bin", content, synced=synced)
    _write(place / "about.json", about, synced=synced)
    if mode == "full":
        for folder in (place, place.parent, root):
            _sync(folder)
    _write(temporary, version.encode(), synced=synced)
    temporary.rename(root / "current")
    if mode == "full":
        _sync(root)


def fault(root: Path, said: tuple[str, ...]) -> str:
    """Return what is wrong with a directory after a crash; empty if nothing is."""
    try:
        place = root / "versions" / (root / "current").read_text()
        about = json.loads((place / "about.json").read_bytes())
        content = (place / "model.bin").read_bytes()
    except (OSError, ValueError) as exc:
        return f"nothing serves: {exc}"
    if hashlib.sha256(content).hexdigest() != about["sha256"]:
        return "a damaged model serves"
    if said and about["version"] != said[-1]:
        return f"{about['version']} serves, and the program said that it installed {said[-1]}"
    return ""


def _write(path: Path, content: bytes, *, synced: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for start in range(0, len(content), WRITE_BYTES):
        os.write(descriptor, content[start : start + WRITE_BYTES])
    if synced:
        os.fsync(descriptor)
    os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    install(Path(sys.argv[2]), "2.0.0", sys.argv[1])
    say("2.0.0")
