"""Makes a controller's data directory from a backup; see `controller.app.backup` for its form.

Rules:
- The complete directory appears in one rename; one that exists is never changed. Until then, a
  fault takes everything out of the database again.
- The new directory names nothing in the old one: the copy of a controller must not write into the
  original's database. The database is where the new settings say, also when they say `..`.
- Devices have gone on since the backup: the restored database leads them again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.app.backup import DATABASE_NAME, HOME_FOLDER, BackupIndex, named_outside
from controller.app.home import CONFIG_FILE, inside
from controller.app.unfinished import check_path, unfinished
from controller.app.unpack import ANOTHER, unpack
from controller.broker.errors import BackupError, HomeError
from controller.config import ControllerConfig, load_config
from controller.database_url import absolute_url, sqlite_path
from controller.named_files import MAX_FILE_BYTES
from controller.store.copies import put_back
from controller.store.database import Database
from controller.store.restored import catch_up
from wire.clock import Clock
from wire.files import remedy_of, sync_directory

DATABASE_LINE: Final = re.compile(r"^database_url[ \t]*=.*$", re.MULTILINE)
PATH_BEGINS: Final = r"""(?:(?<=["'])|(?<=:///))"""
"""Where a path begins in the settings: after a quote, or in the URL of an SQLite file."""


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
        database_url: Another, empty database; by default the one that the settings name. The path
            of an SQLite file is relative to the new directory.

    Returns:
        What was restored.

    Raises:
        HomeError: The directory exists, or the backup is damaged or cannot be read.
        SettingsError: The settings in it cannot be used.
        ConflictError: The database is not empty.
        DatabaseError: The database does not answer.
    """
    target = directory.absolute()
    check_path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise HomeError(f"{directory} already exists", remedy="choose another directory")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(target) as scratch:
            index = unpack(backup, scratch)
            home = scratch / HOME_FOLDER
            config = _settle(home, target, index, database_url)
            url = _database(config, home, target, is_chosen=bool(database_url))
            outside = named_outside(target, config)
            blobs = inside(target, config.blobs_dir)
            if blobs is not None:
                (home / blobs).mkdir(mode=0o700, parents=True, exist_ok=True)
            with put_back(scratch / DATABASE_NAME, url):
                _lead_again(url, clock)
                (scratch / DATABASE_NAME).unlink()
                for folder in (home, *(path for path in home.rglob("*") if path.is_dir())):
                    sync_directory(folder)
                home.rename(target)
            sync_directory(target.parent)
    except OSError as exc:
        fact = (exc.strerror or str(exc)).lower()
        raise HomeError(
            f"cannot restore {backup} to {directory}: {fact}",
            remedy=remedy_of(
                exc, "name a backup that you may read, and a directory in which you may write"
            ),
        ) from exc
    return Restored(
        made_at_s=index.made_at_s,
        has_blobs=index.has_blobs,
        home=index.home,
        outside=outside,
    )


def _settle(home: Path, target: Path, index: BackupIndex, database_url: str) -> ControllerConfig:
    """Let the settings name files of the new directory, and the database that was asked for.

    Returns:
        The settings as they will be in the new directory.

    Raises:
        BackupError: The settings are no text.
        HomeError: They have no line for the database.
        SettingsError: They cannot be used.
    """
    path = home / CONFIG_FILE
    # What the old directory held is in this one, by the same name; relative paths begin here.
    old = re.escape(json.dumps(index.home)[1:-1])
    text = re.sub(f"{PATH_BEGINS}{old}(?=[\"'])", ".", _text(path))
    text = re.sub(f"{PATH_BEGINS}{old}/", "", text)
    if database_url:
        line = f"database_url = {json.dumps(database_url)}"
        text = DATABASE_LINE.sub(lambda _match: line, text, count=1)
    path.write_bytes(text.encode())
    config = load_config(path, folder=target)
    if database_url and config.database_url != absolute_url(database_url, target):
        raise HomeError(f"{CONFIG_FILE} in the backup has no line for database_url")
    return config


def _text(path: Path) -> str:
    """Read the settings.

    Raises:
        BackupError: They are too large, or no text.
    """
    try:
        if path.stat().st_size <= MAX_FILE_BYTES:
            return path.read_bytes().decode()
    except UnicodeDecodeError as exc:
        raise BackupError(f"{path.name} in the backup is not text", remedy=ANOTHER) from exc
    raise BackupError(
        f"{path.name} in the backup is larger than {MAX_FILE_BYTES} bytes", remedy=ANOTHER
    )


def _database(config: ControllerConfig, home: Path, target: Path, *, is_chosen: bool) -> str:
    """Return the URL of the database until the new directory has its name.

    Raises:
        SettingsError: It is no URL of a database that can be used.
        HomeError: The settings name an SQLite file that is not in the directory and that nobody
            chose, perhaps the original's; or its directory does not exist.
    """
    Database(config.database_url).close()  # asks none, but refuses what the controller would
    path = sqlite_path(config.database_url)
    if path is None:
        return config.database_url
    place = inside(target, path)
    if place is not None:
        (home / place).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return f"sqlite:///{home / place}"
    path = path.resolve()
    if not is_chosen:
        raise HomeError(
            f"the settings in the backup name the database {path}, outside of the directory",
            remedy="name a new one with --database, such as sqlite:///controller.db",
        )
    if not path.parent.is_dir() or path.is_relative_to(home.parent.resolve()):
        raise HomeError(
            f"there is no directory {path.parent} for the database",
            remedy="make it first, or name another file with --database",
        )
    return f"sqlite:///{path}"


def _lead_again(database_url: str, clock: Clock) -> None:
    database = Database(database_url)
    try:
        with database.transaction() as transaction:
            catch_up(transaction, now_s=clock.now_s())
    finally:
        database.close()
