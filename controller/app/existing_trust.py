"""Gives the directory of an earlier version its first trusted metadata, or any directory a new one.

Rules:
- Nothing that is there is replaced. What new metadata takes the place of is put aside.
- Where a file cannot be written, all is again as it was.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controller.app.home import (
    CONFIG_FILE,
    RELEASE_KEY_FILE,
    ROOT_FILE,
    SNAPSHOT_KEY_FILE,
    TIMESTAMP_KEY_FILE,
    offline_directory,
)
from controller.app.new_trust import first_metadata
from controller.broker.errors import HomeError
from controller.config import load_config
from controller.metadata.store import FOLDER, MetadataStore
from controller.secret_files import read_director_key
from packager.package.keys import generate_key, load_key
from wire.clock import Clock, SystemClock
from wire.files import PRIVATE, PUBLIC, open_file, write_new

REPLACED = (FOLDER, ROOT_FILE, SNAPSHOT_KEY_FILE, TIMESTAMP_KEY_FILE)
"""What belongs to one root, and to no other."""


def add_metadata(directory: Path, offline: Path | None) -> Path:
    """Make trusted metadata, signed by new keys, for the keys that the fleet has.

    Args:
        directory: The controller's data directory.
        offline: Where release.key lies, and the new keys go; None for the folder beside it.

    Returns:
        The first root, which devices get.

    Raises:
        HomeError: There is metadata already, or a file cannot be written.
        SettingsError: The directory is no controller's.
        KeyFileError: There is no release key.
    """
    home = directory.absolute()
    place = (offline or offline_directory(home)).absolute()
    load_config(home / CONFIG_FILE)
    if MetadataStore(home / FOLDER).exists or (home / ROOT_FILE).exists():
        raise HomeError(
            f"{directory} has trusted metadata already",
            remedy="`fleet key status` shows it; where most root keys are stolen or lost, add "
            "--anew --offline-keys DIR, a new folder for the new keys",
        )
    return _make(home, place)


def begin_anew(directory: Path, offline: Path, clock: Clock | None = None) -> tuple[Path, Path]:
    """Make trusted metadata with another root, where nothing can change the one that is there.

    Args:
        directory: The controller's data directory. The controller must not run.
        offline: A new folder for the new keys.
        clock: Names the folder for what is put aside.

    Returns:
        The first root, which each device needs, and where the metadata of before lies now.

    Raises:
        HomeError: There is no metadata, the folder exists, or a file cannot be written.
        SettingsError: The directory is no controller's.
    """
    home, place = directory.absolute(), offline.absolute()
    load_config(home / CONFIG_FILE)
    if not any((home / name).exists() for name in REPLACED):
        raise HomeError(
            f"{directory} has no trusted metadata", remedy="leave --anew out to make the first"
        )
    now = dt.datetime.fromtimestamp((clock or SystemClock()).now_s(), dt.UTC)
    aside = home / f"before-{now:%Y%m%d-%H%M%S}"
    with contextlib.ExitStack() as undo, _faults(place):
        place.mkdir(mode=0o700)
        undo.callback(shutil.rmtree, place, ignore_errors=True)
        generate_key(place / RELEASE_KEY_FILE)
        for name in REPLACED:
            if (home / name).exists():
                (aside / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (home / name).rename(aside / name)
                undo.callback(_put_back, aside / name, home / name)
        root = _make(home, place)
        undo.pop_all()
    return root, aside


def _put_back(aside: Path, place: Path) -> None:
    """Put back what was put aside, in the place of an attempt that failed."""
    with contextlib.suppress(OSError):
        if place.is_dir():
            place.rmdir()
        aside.rename(place)


def _make(home: Path, place: Path) -> Path:
    """Write new metadata and its keys.

    Raises:
        HomeError: A file cannot be written.
        KeyFileError: There is no release key.
        SettingsError: There is no director's key.
    """
    config = load_config(home / CONFIG_FILE)
    read_director_key(config)
    load_key(place / RELEASE_KEY_FILE)
    seeds = []
    for path in (place / RELEASE_KEY_FILE, Path(config.director_key_file)):
        with open_file(path) as file:
            seeds.append(file.read())
    files = first_metadata(
        home, place, release=seeds[0], director=seeds[1], now_s=SystemClock().now_s()
    )
    with _faults(home), contextlib.ExitStack() as undo:
        (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
        for path, content in files.items():
            write_new(path, content, mode=PUBLIC if path.name == ROOT_FILE else PRIVATE)
            undo.callback(path.unlink, missing_ok=True)
        undo.pop_all()
    return home / ROOT_FILE


@contextmanager
def _faults(place: Path) -> Iterator[None]:
    """Say what cannot be made.

    Raises:
        HomeError: Something cannot.
    """
    try:
        yield
    except OSError as exc:
        raise HomeError(
            f"cannot make {exc.filename or place}: {(exc.strerror or str(exc)).lower()}",
            remedy="remove what an earlier attempt left, or name another place for the keys",
        ) from exc
