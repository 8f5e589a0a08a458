"""The files of a package on this disk, each checked against its signed index."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from controller.cli.errors import PackageFilesError

HASH_STEP_BYTES = 1024 * 1024

OUTPUT = "name the output directory of `fleet build`"


class PackageFile(NamedTuple):
    """A file to be uploaded."""

    sha256: str
    path: Path


def package_files(directory: Path) -> list[PackageFile]:
    """Return what a package consists of, each file checked against the index.

    The signature is not checked here: the controller and every device do that.

    Args:
        directory: Of the package.

    Returns:
        Its files, each content once, the envelope last.

    Raises:
        PackageFilesError: No package, or a file differs from the index.
    """
    from wire.files import open_file
    from wire.package.index import ENVELOPE_FILE
    from wire.trust.envelope import MAX_ENVELOPE_BYTES

    envelope_path = directory / ENVELOPE_FILE
    try:
        with open_file(envelope_path) as stream:
            envelope = stream.read(MAX_ENVELOPE_BYTES + 1)
    except OSError as exc:
        fault, remedy = _why_no_package(directory, exc)
        raise PackageFilesError(fault, remedy=remedy) from exc
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise PackageFilesError(
            f"{envelope_path} is larger than any envelope", remedy="build the package again"
        )
    files = {
        entry: PackageFile(sha256=entry, path=directory / path)
        for entry, path in _indexed(envelope, envelope_path)
    }
    for file in files.values():
        _check(file)
    digest = hashlib.sha256(envelope).hexdigest()
    files.pop(digest, None)
    return [*files.values(), PackageFile(sha256=digest, path=envelope_path)]


def _why_no_package(directory: Path, fault: OSError) -> tuple[str, str]:
    """Return why a package's signed index cannot be read, and the remedy."""
    from wire.package.index import ENVELOPE_FILE
    from wire.package.manifest import MANIFEST_FILE

    if not directory.exists():
        return f"{directory} does not exist", OUTPUT
    if isinstance(fault, FileNotFoundError) and (directory / MANIFEST_FILE).is_file():
        remedy = f"sign it with: fleet package sign {directory} --key FILE"
        return f"{directory} is not signed", remedy
    reason = (fault.strerror or str(fault)).lower()
    return f"{directory} is not a package: {ENVELOPE_FILE}: {reason}", OUTPUT


def _indexed(envelope: bytes, path: Path) -> list[tuple[str, str]]:
    """Return digest and path of every file that the index lists.

    Raises:
        PackageFilesError: Not an envelope around an index.
    """
    from wire.errors import SignatureError, WireFormatError
    from wire.package.index import PAYLOAD_TYPE, index_from_bytes
    from wire.trust.envelope import read_unverified

    try:
        index = index_from_bytes(read_unverified(envelope, payload_type=PAYLOAD_TYPE).payload)
    except (WireFormatError, SignatureError) as exc:
        raise PackageFilesError(
            f"{path} is not a signed package index: {exc}", remedy="build the package again"
        ) from exc
    return [(entry.sha256, entry.path) for entry in index.files]


def _check(file: PackageFile) -> None:
    from wire.files import open_file

    digest = hashlib.sha256()
    try:
        with open_file(file.path) as content:
            while piece := content.read(HASH_STEP_BYTES):
                digest.update(piece)
    except OSError as exc:
        raise PackageFilesError(
            f"cannot read {file.path}: {(exc.strerror or str(exc)).lower()}",
            remedy="build the package again",
        ) from exc
    if digest.hexdigest() != file.sha256:
        raise PackageFilesError(
            f"{file.path} differs from the signed index", remedy="build the package again"
        )
