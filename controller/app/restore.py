"""Makes a controller's data directory from a backup; see `controller.app.backup` for its form.

Rules:
- Every size and digest is checked before anything of the backup is used. No file of it can be
  written outside of the new directory.
- The complete directory appears in one rename; one that exists is never changed. Until then, a
  fault takes everything out of the database again.
- The new directory names nothing in the old one: the copy of a controller must not write into the
  original's database.
- Devices have gone on since the backup: the restored database leads them again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from controller.app.backup import (
    DATABASE_NAME,
    FORMAT_VERSION,
    HOME_FOLDER,
    INDEX_NAME,
    READ_BYTES,
    BackupEntry,
    BackupIndex,
    named_outside,
)
from controller.app.home import CONFIG_FILE, PUBLIC_FILES
from controller.broker.errors import BackupError, HomeError
from controller.config import ControllerConfig, load_config
from controller.database_url import sqlite_path
from controller.store.copies import put_back
from controller.store.database import Database
from controller.store.restored import catch_up
from wire.clock import Clock
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.files import PRIVATE, PUBLIC, sync_directory

MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Some 300,000 files."""

DATABASE_LINE: Final = re.compile(r"^database_url[ \t]*=.*$", re.MULTILINE)
PATH_BEGINS: Final = r"""(?:(?<=["'])|(?<=:///))"""
"""Where a path begins in the settings: after a quote, or in the URL of an SQLite file."""

PUBLIC_NAMES: Final = frozenset(f"{HOME_FOLDER}/{name}" for name in PUBLIC_FILES)
ANOTHER: Final = "use another backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was restored."""

    made_at_s: float
    has_blobs: bool
    home: str
    """Where the directory was when it was backed up."""

    outside: tuple[str, ...]
    """Files and directories that the settings name, but that were not in the backup."""


def restore(backup: Path, directory: Path, clock: Clock, *, database_url: str = "") -> Restored:
    """Make a data directory from a backup.

    Args:
        backup: The file.
        directory: The directory to make; it must be empty or not exist.
        clock: For the time at which everything is issued again.
        database_url: Another, empty database; by default the one that the settings name.

    Returns:
        What was restored.

    Raises:
        HomeError: The directory exists, or the backup is damaged or cannot be read.
        SettingsError: The settings in it cannot be used.
        ConflictError: The database is not empty.
        DatabaseError: The database does not answer.
    """
    target = directory.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise HomeError(f"{directory} already exists", remedy="choose another directory")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}-"))
        try:
            index = _unpack(backup, scratch)
            home = scratch / HOME_FOLDER
            _settle(home, index, database_url)
            config = load_config(home / CONFIG_FILE)
            _check_database(config, home, database_url)
            outside = named_outside(home, config)
            Path(config.blobs_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
            with put_back(scratch / DATABASE_NAME, config.database_url):
                _lead_again(config.database_url, clock)
                for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
                    sync_directory(folder)
                home.rename(target)
            sync_directory(target.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as exc:
        fact = (exc.strerror or str(exc)).lower()
        raise HomeError(
            f"cannot restore {backup} to {directory}: {fact}",
            remedy="name a backup that you may read, and a directory in which you may write",
        ) from exc
    return Restored(
        made_at_s=index.made_at_s,
        has_blobs=index.has_blobs,
        home=index.home,
        outside=outside,
    )


def _unpack(backup: Path, scratch: Path) -> BackupIndex:
    """Write the files of a backup below a directory, each checked.

    Raises:
        BackupError: It is no backup, or is damaged.
        HomeError: It is of a newer version.
    """
    try:
        with tarfile.open(backup, "r:") as archive:
            index = _index(archive)
            _check_room(index, scratch)
            expected = {entry.path: entry for entry in index.files}
            while (member := archive.next()) is not None:
                entry = expected.pop(member.name, None)
                if entry is None or not member.isreg() or member.size != entry.size_bytes:
                    raise BackupError(
                        f"the backup is damaged: {member.name[:200]!r} is not as the index says",
                        remedy=ANOTHER,
                    )
                _extract(archive, member, entry, scratch)
    except (tarfile.TarError, EOFError) as exc:
        raise BackupError(f"the backup is damaged: {exc}", remedy=ANOTHER) from exc
    if expected or not (scratch / DATABASE_NAME).is_file():
        raise BackupError(
            f"the backup is damaged: {next(iter(expected), DATABASE_NAME)!r} is missing",
            remedy=ANOTHER,
        )
    if not (scratch / HOME_FOLDER / CONFIG_FILE).is_file():
        raise BackupError(f"the backup is damaged: {CONFIG_FILE} is missing", remedy=ANOTHER)
    return index


def _index(archive: tarfile.TarFile) -> BackupIndex:
    """Read the index, which is the first member.

    Raises:
        BackupError: There is none, or it is damaged.
        HomeError: It is of a newer version.
    """
    member = archive.next()
    if member is None or member.name != INDEX_NAME or not member.isreg():
        raise BackupError("the file is no backup of a controller", remedy=ANOTHER)
    stream = archive.extractfile(member) if member.size <= MAX_INDEX_BYTES else None
    try:
        content = b"" if stream is None else stream.read()
        index = from_json(content, BackupIndex, limit_bytes=MAX_INDEX_BYTES)
    except WireFormatError as exc:
        raise BackupError(f"the backup is damaged: {exc.message}", remedy=ANOTHER) from exc
    if index.format_version != FORMAT_VERSION:
        raise HomeError(
            f"the backup has the form {index.format_version}, and this program knows "
            f"{FORMAT_VERSION}",
            remedy=f"restore it with version {index.program_version} of this program, or newer",
        )
    return index


def _check_room(index: BackupIndex, scratch: Path) -> None:
    """Refuse a backup that is larger than the disk; the database is there twice for a time.

    Raises:
        HomeError: It does not fit.
    """
    sizes = {entry.path: max(entry.size_bytes, 0) for entry in index.files}
    needed = sum(sizes.values()) + sizes.get(DATABASE_NAME, 0)
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise HomeError(
            f"the backup needs {needed} bytes, and {free} are free",
            remedy="choose a directory on another disk",
        )


def _extract(
    archive: tarfile.TarFile, member: tarfile.TarInfo, entry: BackupEntry, scratch: Path
) -> None:
    """Write one file and check its digest.

    Raises:
        BackupError: It would lie outside, or is damaged.
    """
    name, parts = member.name, PurePosixPath(member.name).parts
    is_inside = name == "/".join(parts) and ".." not in parts
    belongs = name == DATABASE_NAME or (parts[:1] == (HOME_FOLDER,) and len(parts) > 1)
    stream = archive.extractfile(member)
    if stream is None or not (is_inside and belongs):
        raise BackupError(
            f"the backup is damaged: {name[:200]!r} does not belong into it", remedy=ANOTHER
        )
    place = scratch
    for part in parts[:-1]:
        place /= part
        place.mkdir(mode=0o700, exist_ok=True)
    digest = hashlib.sha256()
    mode = PUBLIC if name in PUBLIC_NAMES else PRIVATE
    descriptor = os.open(place / parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        while part_of_file := stream.read(READ_BYTES):
            digest.update(part_of_file)
            file.write(part_of_file)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise BackupError(
            f"the backup is damaged: {name[:200]!r} does not match its digest", remedy=ANOTHER
        )


def _settle(home: Path, index: BackupIndex, database_url: str) -> None:
    """Let the settings name files of the new directory, and the database that was asked for.

    Raises:
        HomeError: The settings have no line for the database.
    """
    path = home / CONFIG_FILE
    # What the old directory held is in this one, by the same name; relative paths begin here.
    old = re.escape(json.dumps(index.home)[1:-1])
    text = re.sub(f"{PATH_BEGINS}{old}(?=[\"'])", ".", path.read_text())
    text = re.sub(f"{PATH_BEGINS}{old}/", "", text)
    if database_url:
        line = f"database_url = {json.dumps(database_url)}"
        text, count = DATABASE_LINE.subn(lambda _match: line, text, count=1)
        if count != 1:
            raise HomeError(f"{CONFIG_FILE} in the backup has no line for database_url")
    path.write_text(text)


def _check_database(config: ControllerConfig, home: Path, database_url: str) -> None:
    """Refuse an SQLite file that nobody named and that is not in the directory.

    Raises:
        HomeError: The settings name such a file, perhaps the original's.
    """
    path = sqlite_path(config.database_url)
    if not database_url and path is not None and not path.is_relative_to(home):
        raise HomeError(
            f"the settings in the backup name the database {path}, outside of the directory",
            remedy="name a new one with --database, such as sqlite:///controller.db",
        )


def _lead_again(database_url: str, clock: Clock) -> None:
    database = Database(database_url)
    try:
        with database.transaction() as transaction:
            catch_up(transaction, now_s=clock.now_s())
    finally:
        database.close()
