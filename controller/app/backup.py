"""Backs up a controller into one file, while it runs: its database and what is in its directory.

The file is a tar archive:

```
backup.json              an index: what is in it, with sizes and digests
database.sqlite          the database, whatever kind it is
home/controller.toml     and so on: the files of the directory
home/blobs/...           content of published packages, unless it was left out
```

Rules:
- The database is copied first, so that the files have at least what it refers to.
- Only the owner can read the file (0600): it holds the director's key, tokens and passwords.
- The file appears whole or not at all, and replaces none.
- Deltas are left out: they come and go, and can be made again.
- What the settings name outside of the directory is not in the backup; the caller is told.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from controller.app.home import BROKER_FOLDER, CONFIG_FILE, inside
from controller.app.unfinished import check_path, unfinished
from controller.broker.errors import HomeError
from controller.broker.mosquitto import LOG_FILE
from controller.config import ControllerConfig, load_config
from controller.database_url import sqlite_path
from controller.download_settings import S3Place
from controller.services.blobs import DELTAS_FOLDER, UPLOADS_FOLDER
from controller.store.copies import SQLITE_SUFFIXES, copy_database
from wire.clock import Clock
from wire.codec import to_pretty_json
from wire.files import PRIVATE, sync_directory
from wire.version import VERSION

FORMAT_VERSION: Final = 1
INDEX_NAME: Final = "backup.json"
DATABASE_NAME: Final = "database.sqlite"
HOME_FOLDER: Final = "home"
MAX_HELD_BYTES: Final = 1024 * 1024
"""A larger file is read twice instead of being held in memory; so are blobs, which never change."""

MAX_DEPTH: Final = 64
"""How many names a path in a backup has at most: directories are walked by recursion."""

READ_BYTES: Final = 1024 * 1024
BEING_WRITTEN: Final = ".new"
"""How the names of files end that this program or Mosquitto is writing."""


class BackupEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a backup."""

    path: str
    size_bytes: int
    sha256: str


class BackupIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a backup."""

    format_version: int = FORMAT_VERSION
    program_version: str
    made_at_s: float
    home: str
    """Where the directory was: settings may name files by it."""

    has_blobs: bool
    files: tuple[BackupEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMade:
    """What a backup holds."""

    files: int
    size_bytes: int
    outside: tuple[str, ...]
    """Files and directories that the settings name, but that are not in it."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that goes into a backup."""

    entry: BackupEntry
    path: Path
    content: bytes | None
    """None for a file that is too large to be held."""


def back_up(home: Path, target: Path, clock: Clock, *, with_blobs: bool = True) -> BackupMade:
    """Write a backup; the controller may run meanwhile.

    Args:
        home: The controller's data directory.
        target: The file to make.
        clock: For the time of the backup.
        with_blobs: Put the content of published packages into it.

    Returns:
        What it holds.

    Raises:
        HomeError: The file exists, is in the directory, or something cannot be read or written.
        SettingsError: The settings cannot be used.
        DatabaseError: The database cannot be copied.
    """
    home = home.absolute()
    config = load_config(home / CONFIG_FILE)
    _refuse_existing(target)
    check_path(target)
    if inside(home, target) is not None:
        raise HomeError(f"{target} is in the directory itself", remedy="choose another directory")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise HomeError(
            f"there is no directory {folder}", remedy="make it first, or name another file"
        )
    try:
        with unfinished(target.absolute()) as scratch:
            copy = scratch / DATABASE_NAME
            copy_database(config.database_url, copy)
            sources = [
                _source(copy, DATABASE_NAME, hold=False),
                *(
                    _source(
                        path,
                        f"{HOME_FOLDER}/{path.relative_to(home)}",
                        hold=not is_blob,
                    )
                    for path, is_blob in _files(home, config, with_blobs=with_blobs)
                ),
            ]
            index = BackupIndex(
                program_version=VERSION,
                made_at_s=clock.now_s(),
                home=str(home),
                has_blobs=with_blobs,
                files=tuple(source.entry for source in sources),
            )
            with _whole(target, scratch / "archive") as stream:
                _write(stream, index, sources)
    except OSError as exc:
        fact = (exc.strerror or str(exc)).lower()
        raise HomeError(
            f"cannot back up {home} to {target}: {fact}: {exc.filename or ''}".rstrip(": "),
            remedy="run as the user of the controller, and choose a disk with enough room",
        ) from exc
    return BackupMade(
        files=len(sources),
        size_bytes=sum(source.entry.size_bytes for source in sources),
        outside=named_outside(home, config),
    )


def _files(
    home: Path, config: ControllerConfig, *, with_blobs: bool
) -> Iterator[tuple[Path, bool]]:
    """Yield the regular files that belong into a backup, in order, and whether each is a blob.

    Raises:
        HomeError: One lies too deep.
    """
    left_out = {Path(BROKER_FOLDER) / LOG_FILE}
    database = sqlite_path(config.database_url)
    place = None if database is None else inside(home, database)
    if place is not None:
        left_out |= {place.with_name(place.name + suffix) for suffix in SQLITE_SUFFIXES}
    blobs = inside(home, config.blobs_dir)
    for path in sorted(home.rglob("*")):
        name = path.relative_to(home)
        below = name.relative_to(blobs).parts if blobs and name.is_relative_to(blobs) else ()
        if path.is_symlink() or not path.is_file() or name in left_out:
            continue
        if below[:1] in {(UPLOADS_FOLDER,), (DELTAS_FOLDER,)} or (below and not with_blobs):
            continue
        if len(name.parts) >= MAX_DEPTH:
            raise HomeError(
                f"{path} lies {MAX_DEPTH} directories deep or more", remedy="move it away"
            )
        if path.suffix != BEING_WRITTEN:
            yield path, bool(below)


def named_outside(home: Path, config: ControllerConfig) -> tuple[str, ...]:
    """Return the paths in the settings that a backup of the directory does not hold.

    Args:
        home: The data directory.
        config: Its settings.

    Returns:
        Those outside of it, and all links in it.
    """
    api, broker, downloads = config.api, config.broker, config.downloads
    named = [
        config.blobs_dir, config.trust_file, config.director_key_file,
        config.trust.snapshot_key_file, config.trust.timestamp_key_file, api.token_file,
        api.cert_file, api.key_file, api.ca_file, broker.password_file, broker.ca_file,
        broker.cert_file, broker.key_file, broker.server_cert_file, broker.server_key_file,
        downloads.cert_file, downloads.key_file, config.prometheus.token_file,
        *((config.otlp.headers_file, config.otlp.ca_file) if config.otlp is not None else ()),
        *(place.credentials_file for place in downloads.places if isinstance(place, S3Place)),
        *(name for each in config.alerts.webhooks for name in (each.secret_file, each.ca_file)),
    ]  # fmt: skip
    outside = [name for name in named if name is not None and inside(home, name) is None]
    links = [str(path) for path in home.rglob("*") if path.is_symlink()]
    return tuple(sorted({*outside, *links}))


def _source(path: Path, name: str, *, hold: bool) -> _Source:
    """Return a file with its digest, and with its content if it is small and may change."""
    with path.open("rb") as file:
        content = file.read(MAX_HELD_BYTES + 1)
        digest, size_bytes = hashlib.sha256(content), len(content)
        while part := file.read(READ_BYTES):
            digest.update(part)
            size_bytes += len(part)
    entry = BackupEntry(path=name, size_bytes=size_bytes, sha256=digest.hexdigest())
    return _Source(entry, path, content if hold and size_bytes <= MAX_HELD_BYTES else None)


def _write(stream: BinaryIO, index: BackupIndex, sources: list[_Source]) -> None:
    """Write the archive.

    Raises:
        HomeError: A file has changed since its digest was made.
    """
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        content = to_pretty_json(index)
        archive.addfile(_member(INDEX_NAME, len(content)), io.BytesIO(content))
        for source in sources:
            member = _member(source.entry.path, source.entry.size_bytes)
            if source.content is not None:
                archive.addfile(member, io.BytesIO(source.content))
                continue
            with source.path.open("rb") as file:
                hashed = _Hashed(file)
                archive.addfile(member, hashed)
            if hashed.digest.hexdigest() != source.entry.sha256:
                raise HomeError(f"{source.path} changed while it was read", remedy="try again")


class _Hashed(io.RawIOBase):
    """A file whose digest is made while it is read.

    Args:
        file: The file.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _member(name: str, size_bytes: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size_bytes, PRIVATE
    return member


@contextmanager
def _whole(target: Path, scratch: Path) -> Iterator[BinaryIO]:
    """Give a stream whose content becomes a file when it is complete.

    Raises:
        HomeError: The file has appeared meanwhile.
    """
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
    with os.fdopen(descriptor, "wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    _refuse_existing(target)
    scratch.rename(target)
    sync_directory(target.absolute().parent)


def _refuse_existing(target: Path) -> None:
    """Refuse to replace a file.

    Raises:
        HomeError: It is there.
    """
    if os.path.lexists(target):
        raise HomeError(f"{target} is there already", remedy="choose another name")
