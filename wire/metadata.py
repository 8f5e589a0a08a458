"""Trusted metadata (TUF) as it travels: files, each as it was signed. Pure.

Rules:
- Whoever carries a file needs no trust: the device checks it.
- A file goes into one message, so it is bounded.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.messages import MAX_MESSAGE_BYTES, Message
from wire.trust.roles import TIMESTAMP

MAX_FILE_BYTES: Final = MAX_MESSAGE_BYTES - 16 * 1024
"""A file goes into one message. A list of releases has about 120 bytes for each."""

MAX_SET_BYTES: Final = 8 * 1024 * 1024
"""Of all files of a fleet together, in one file."""

MAX_ROOTS: Final = 64
"""How many versions of the root one message may bring."""

_FILE: Final = re.compile(r"(?:([1-9][0-9]{0,15})\.)?([a-z0-9][a-z0-9._-]{0,62})")


class MetadataFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of metadata."""

    name: str
    """As TUF names it with consistent snapshots, without `.json`: `timestamp`, `3.snapshot`."""

    content: str
    """JSON, as it was signed."""


class MetadataVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The versions of the metadata that a device trusts; 0 for none."""

    root: int
    timestamp: int = 0
    snapshot: int = 0
    targets: int = 0
    roles: dict[str, int] = {}
    """Of lists of releases, by role."""

    models: tuple[str, ...] = ()
    """The models whose lists the device needs, beside those that it is to run."""

    lacks_desired: bool = False
    """Whether the desired state that it follows has expired before it was done."""

    fleet: str | msgspec.UnsetType = msgspec.UNSET
    """The name of the fleet in the root that the device came with; two roots have two names."""

    lacks_files: bool | msgspec.UnsetType = msgspec.UNSET
    """True where files of it may be damaged or lost: the device needs all of them once more."""


class MetadataFiles(Message, frozen=True, kw_only=True):
    """Files of metadata: on a device's `down` topic, or in a file for one without a network."""

    files: tuple[MetadataFile, ...]


def metadata_from(data: bytes) -> tuple[MetadataFile, ...]:
    """Read a file with metadata, such as `fleet key export` writes.

    Raises:
        WireFormatError: It is no such file, or too large.
    """
    try:
        return from_json(data, MetadataFiles, limit_bytes=MAX_SET_BYTES).files
    except WireFormatError as exc:
        raise WireFormatError(
            "the file holds no trusted metadata",
            remedy="give one of `fleet key export`; a package is for `fleet-agent install`",
        ) from exc


def file_name(role: str, version: int) -> str:
    """Return the name of a role's file, without `.json`."""
    return role if role == TIMESTAMP else f"{version}.{role}"


def parse_file_name(name: str) -> tuple[str, int | None]:
    """Return the role and the version in the name of a file.

    Args:
        name: Without `.json`.

    Returns:
        The role, and the version; None for the timestamp's.

    Raises:
        WireFormatError: It is no such name.
    """
    found = _FILE.fullmatch(name)
    if found is not None and found[1] is not None and found[2] != TIMESTAMP:
        return found[2], int(found[1])
    if name == TIMESTAMP:
        return TIMESTAMP, None
    raise WireFormatError(f"{name[:80]!r} is no name of a file of metadata")


def split(files: tuple[MetadataFile, ...]) -> list[MetadataFiles]:
    """Put files into as few messages as hold them, in their order.

    Args:
        files: Each of at most `MAX_FILE_BYTES`.

    Returns:
        The messages.
    """
    messages: list[MetadataFiles] = []
    some: list[MetadataFile] = []
    size_bytes = 0
    for file in files:
        needed_bytes = len(to_json(file))
        if some and size_bytes + needed_bytes > MAX_FILE_BYTES:
            messages.append(MetadataFiles(files=tuple(some)))
            some, size_bytes = [], 0
        some.append(file)
        size_bytes += needed_bytes
    if some:
        messages.append(MetadataFiles(files=tuple(some)))
    return messages
