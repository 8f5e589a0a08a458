"""Reads what `--trust` names: a trust file, or the metadata that `fleet key export` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from controller.cli.errors import ArgumentError
from wire.errors import FleetError
from wire.files import open_file

if TYPE_CHECKING:
    from wire.trust.root import Trust


def load_trust(path: Path) -> Trust:
    """Read whose word counts.

    Args:
        path: `trust.json`, whose keys never change, or a file of `fleet key export`, whose lists
            count.

    Returns:
        What vouches for packages.

    Raises:
        ArgumentError: It is the root alone, which lists nothing.
        FleetError: It cannot be read, is something else, or does not verify.
    """
    from packager.package.directory import load_trust as load_keys
    from wire.metadata import MAX_SET_BYTES, metadata_from

    try:
        with open_file(path) as file:
            data = file.read(MAX_SET_BYTES + 1)
    except OSError:
        return load_keys(path)  # which says what is wrong
    head = data[:200]
    if b'"signatures"' in head:
        raise ArgumentError(
            f"{path} is a root, which lists no packages",
            remedy="give a file of `fleet key export`",
        )
    if b'"files"' not in head:
        return load_keys(path)
    from controller.metadata.listed import ListedTrust
    from controller.metadata.store import authored_of

    try:
        return ListedTrust(authored_of(metadata_from(data)))
    except FleetError as exc:
        raise ArgumentError(f"{path}: {exc.message}", remedy=exc.remedy) from exc
