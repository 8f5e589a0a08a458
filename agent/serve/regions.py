"""Parts of POSIX shared memory that clients have registered, and how one is opened.

The supervisor opens an object once, when a client registers it, to check it. A worker opens it for
each request that uses it, and checks the same again.

Rules:
- A client reaches only memory of its own user: the object has that owner, and is the one that was
  checked when it was registered, not another one under its name.
- An object that everybody may write is refused: anybody could change what a model is asked.
- Only regular files directly in `/dev/shm` are opened, and no links are followed.
- Objects are read and written as files, never mapped: a client that shortens one while it is used
  gets an error, and no process a SIGBUS.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import Final

import msgspec

from agent.serve.errors import RegionError

DIRECTORY: Final = "/dev/shm"  # noqa: S108 - where POSIX shared memory is, shm_overview(7)
GONE: Final = "register it again after it was made anew"
_KEY: Final = re.compile(r"/?([^/\0-\x1f\x7f]{1,254})")


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a shared memory object."""

    name: str
    """The client's name for it."""

    key: str
    """Name of the object, as for shm_open(3)."""

    offset: int
    """Where the region begins in the object, in bytes."""

    byte_size: int
    user: int
    """The user that registered it, who owns the object."""

    device: int
    inode: int
    """Which object it was when it was registered."""


def region_of(*, name: str, key: str, offset: int, byte_size: int, user: int) -> Region:
    """Look at an object that a client wants to register.

    Args:
        name: The client's name for the region.
        key: Name of the object.
        offset: Where the region begins in it, in bytes.
        byte_size: How long it is.
        user: The client's user.

    Returns:
        The region.

    Raises:
        RegionError: There is no such object, it is not the client's, or it is too short.
    """
    with _opened(key, user, os.O_RDONLY) as (_, found):
        end = offset + byte_size
        if end > found.st_size:
            raise RegionError(
                f"shared memory {key!r} has {found.st_size} bytes, but the region ends at {end}"
            )
        return Region(
            name=name,
            key=key,
            offset=offset,
            byte_size=byte_size,
            user=user,
            device=found.st_dev,
            inode=found.st_ino,
        )


def is_current(region: Region) -> bool:
    """Tell whether the object of a region is still there under its name."""
    try:
        with opened(region, os.O_RDONLY):
            return True
    except RegionError:
        return False


@contextlib.contextmanager
def opened(region: Region, access: int) -> Iterator[int]:
    """Open the object of a region.

    Args:
        region: The region.
        access: `O_RDONLY` or `O_RDWR`.

    Yields:
        The descriptor.

    Raises:
        RegionError: The object is gone, or another one, or not the client's any more.
    """
    with _opened(region.key, region.user, access) as (descriptor, found):
        if (found.st_dev, found.st_ino) != (region.device, region.inode):
            raise RegionError(
                f"shared memory {region.key!r} is not the one that was registered", remedy=GONE
            )
        yield descriptor


@contextlib.contextmanager
def _opened(key: str, user: int, access: int) -> Iterator[tuple[int, os.stat_result]]:
    match = _KEY.fullmatch(key)
    if match is None or match[1] in {".", ".."}:
        raise RegionError(f"{key[:80]!r} is no name of POSIX shared memory", remedy="write /name")
    # O_NONBLOCK: a named pipe must not hold this thread.
    flags = access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(f"{DIRECTORY}/{match[1]}", flags)
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        remedy = "let the agent's group read and write it" if exc.errno == errno.EACCES else ""
        raise RegionError(f"cannot open shared memory {key!r}: {reason}", remedy=remedy) from exc
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != user:
            raise RegionError(f"shared memory {key!r} does not belong to the client's user")
        if found.st_mode & stat.S_IWOTH:
            raise RegionError(f"everybody may write shared memory {key!r}", remedy="chmod o-w it")
        yield descriptor, found
    finally:
        os.close(descriptor)
