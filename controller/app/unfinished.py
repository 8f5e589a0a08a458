"""Gives a directory beside a place in which something is made, until it takes that place.

Rules:
- Its name follows from the place, and it is locked while it is used. So the next command for the
  same place removes what a killed one left there; keys do not stay behind.
- Only a directory of the same user is removed, and only while no other process uses it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from controller.broker.errors import HomeError
from wire.files import lock


@contextlib.contextmanager
def unfinished(place: Path) -> Iterator[Path]:
    """Give an empty private directory beside a place; it is gone afterwards.

    Args:
        place: Absolute path of what is going to be made, in a directory that exists.

    Yields:
        The directory.

    Raises:
        HomeError: Another command makes the same, or something else has that name.
        OSError: It cannot be made.
    """
    scratch = place.with_name(f".{place.name}.unfinished")
    with contextlib.suppress(FileExistsError):
        scratch.mkdir(mode=0o700)
    status = scratch.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise HomeError(f"{scratch} is in the way", remedy="remove it")
    held = lock(scratch)
    if held is None or not _is_still(scratch, status):
        raise HomeError(f"another command is making {place}", remedy="wait until it has ended")
    with held:
        try:
            _empty(scratch)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def check_path(place: Path) -> None:
    """Refuse a path that messages, settings and a database URL cannot name.

    Args:
        place: The directory or the file that is going to be made.

    Raises:
        HomeError: It has a control character or a question mark.
    """
    # What follows a question mark in the URL of a database is no path.
    if any(char == "?" or unicodedata.category(char) in {"Cc", "Cs"} for char in str(place)):
        raise HomeError(
            f"the path {str(place)!r} has a control character or a question mark",
            remedy="choose another path",
        )


def _is_still(directory: Path, status: os.stat_result) -> bool:
    """Tell whether no other process has removed a directory or made a new one in its place."""
    try:
        return os.path.samestat(status, directory.lstat())
    except FileNotFoundError:
        return False


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
