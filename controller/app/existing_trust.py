"""Gives the directory of an earlier version its first trusted metadata."""

from __future__ import annotations

from pathlib import Path

from controller.app.home import (
    CONFIG_FILE,
    RELEASE_KEY_FILE,
    ROOT_FILE,
    offline_directory,
)
from controller.app.new_trust import first_metadata
from controller.broker.errors import HomeError
from controller.config import load_config, read_director_key
from controller.metadata.store import FOLDER, MetadataStore
from packager.package.keys import load_key
from wire.clock import SystemClock
from wire.files import PRIVATE, PUBLIC, open_file, write_new


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
    config = load_config(home / CONFIG_FILE)
    place = (offline or offline_directory(home)).absolute()
    if MetadataStore(home / FOLDER).exists or (home / ROOT_FILE).exists():
        raise HomeError(
            f"{directory} has trusted metadata already", remedy="`fleet key status` shows it"
        )
    read_director_key(config)
    load_key(place / RELEASE_KEY_FILE)
    seeds = []
    for path in (place / RELEASE_KEY_FILE, Path(config.director_key_file)):
        with open_file(path) as file:
            seeds.append(file.read())
    files = first_metadata(
        home, place, release=seeds[0], director=seeds[1], now_s=SystemClock().now_s()
    )
    try:
        (home / FOLDER).mkdir(mode=0o700, exist_ok=True)
        for path, content in files.items():
            write_new(path, content, mode=PUBLIC if path.name == ROOT_FILE else PRIVATE)
    except OSError as exc:
        raise HomeError(
            f"cannot make {exc.filename or directory}: {(exc.strerror or str(exc)).lower()}",
            remedy="remove what an earlier attempt left, or name another place for the keys",
        ) from exc
    return home / ROOT_FILE
