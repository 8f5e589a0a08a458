"""Keeps the fleet's metadata in the controller's data directory.

```
metadata/authored.json   what people signed: roots, targets, lists
metadata/online.json     what the controller signed: snapshot, timestamp
```

Rules:
- Each file is replaced as a whole, so a set that belongs together appears at once.
- What is read is verified as if it came from outside.
- Several controllers may have one folder: whoever writes locks it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tuf.api.metadata import Snapshot, Timestamp

from controller.errors import StorageError
from controller.metadata.checks import check
from controller.metadata.documents import Authored, read, with_former
from controller.metadata.errors import MetadataError
from controller.metadata.online import Online, online_of
from controller.metadata.sets import assembled, changed
from wire.codec import from_json, to_json
from wire.errors import FleetError
from wire.files import PRIVATE, lock, write_atomic
from wire.metadata import MetadataFile, MetadataFiles, parse_file_name
from wire.trust.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP

FOLDER: Final = "metadata"
AUTHORED_FILE: Final = "authored.json"
ONLINE_FILE: Final = "online.json"
MAX_SET_BYTES: Final = 64 * 1024 * 1024


class MetadataStore:
    """The metadata on the disk.

    Args:
        directory: The folder; it need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def exists(self) -> bool:
        """Whether the fleet has metadata."""
        return (self._directory / AUTHORED_FILE).exists()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other controllers from writing for the length of a `with` block.

        Raises:
            StorageError: Another one writes now, or the folder cannot be opened.
        """
        try:
            locked = lock(self._directory)
        except OSError as exc:
            raise StorageError(f"cannot open {self._directory}: {exc.strerror}") from exc
        if locked is None:
            raise StorageError(
                "another controller changes the trusted metadata just now", remedy="try again"
            )
        with locked:
            yield

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Return what changes whenever a file is written."""
        found = []
        for name in (AUTHORED_FILE, ONLINE_FILE):
            with contextlib.suppress(OSError):
                about = (self._directory / name).stat()
                found.append((about.st_ino, about.st_mtime_ns))
        return tuple(found)

    def authored(self) -> Authored:
        """Return what people signed, verified.

        Raises:
            MetadataError: It is damaged.
            StorageError: It cannot be read.
        """
        return authored_of(self._read(AUTHORED_FILE))

    def online(self) -> Online | None:
        """Return what the controller signed, or None: it signs anew.

        Raises:
            StorageError: It cannot be read.
        """
        if not (self._directory / ONLINE_FILE).exists():
            return None
        try:
            snapshot, timestamp = (file.content.encode() for file in self._read(ONLINE_FILE))
            return online_of(read(snapshot, Snapshot), read(timestamp, Timestamp))
        except (MetadataError, ValueError):
            return None

    def keep_authored(self, authored: Authored) -> None:
        """Save what people signed.

        Raises:
            StorageError: It cannot be written; what was there is still there.
        """
        self._write(AUTHORED_FILE, authored.files())

    def keep_online(self, online: Online) -> None:
        """Save what the controller signed.

        Raises:
            StorageError: It cannot be written; what was there is still there.
        """
        self._write(ONLINE_FILE, online.content)

    def _read(self, name: str) -> tuple[MetadataFile, ...]:
        path = self._directory / name
        try:
            data = path.read_bytes()
            return from_json(data, MetadataFiles, limit_bytes=MAX_SET_BYTES).files
        except OSError as exc:
            raise StorageError(f"cannot read {path}: {exc.strerror}") from exc
        except FleetError as exc:
            raise MetadataError(
                f"{path} is damaged: {exc.message}", remedy="restore it from a backup"
            ) from exc

    def _write(self, name: str, files: tuple[MetadataFile, ...]) -> None:
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._directory / name, to_json(MetadataFiles(files=files)), mode=PRIVATE)
        except OSError as exc:
            raise StorageError(f"cannot write {name}: {exc.strerror}") from exc


def authored_of(files: tuple[MetadataFile, ...]) -> Authored:
    """Return the metadata that files hold, verified from the first root on.

    Raises:
        MetadataError: One is missing, malformed or not signed.
    """
    by_role: dict[str, bytes] = {}
    snapshot: bytes | None = None
    roots: list[tuple[int, bytes]] = []
    for file in files:
        role, version = parse_file_name(file.name)
        if role == TIMESTAMP:
            continue
        if role == SNAPSHOT:
            snapshot = file.content.encode()
        elif role == ROOT:
            roots.append((version or 0, file.content.encode()))
        else:
            by_role[role] = file.content.encode()
    targets = by_role.pop(TARGETS, None)
    roots.sort()
    if targets is None or not roots:
        raise MetadataError("the metadata has no root, or no targets")
    # The roots vouch for the rest only together: the first one alone may know none of its keys.
    made = assembled(roots[0][1], targets, by_role)
    later = tuple(
        MetadataFile(name=f"{version}.{ROOT}", content=data.decode()) for version, data in roots[1:]
    )
    made = changed(made, later)
    check(made)
    if snapshot is not None:
        # People do not sign it, so that a bad one keeps nobody from signing the rest.
        with contextlib.suppress(MetadataError):
            made = with_former(made, read(snapshot, Snapshot))
    return made
