"""Writes, seals and opens packages, which are directories.

Rules:
- Equal content gives equal bytes: a package has no times and no paths, and its files are sorted by
  name.
- A reader checks the digest of a file before it uses the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packager.errors import PackageError
from packager.files import FOLDER_MODE, copy_file, read_bounded
from packager.package.indexing import AGAIN, index_directory, read_manifest
from packager.package.staging import ROOM, staged
from wire.codec import MAX_JSON_BYTES
from wire.errors import IntegrityError, SignatureError, WireFormatError
from wire.files import PUBLIC, write_atomic
from wire.package.index import (
    ENVELOPE_FILE,
    PAYLOAD_TYPE,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import (
    MANIFEST_FILE,
    Manifest,
    manifest_to_bytes,
)
from wire.package.measured import check_measured
from wire.trust.envelope import MAX_ENVELOPE_BYTES, SigningKey, Unverified, read_unverified
from wire.trust.envelope import seal as seal_payload
from wire.trust.root import Trust, TrustRoot, trust_from_bytes


def write_package(
    output: Path,
    manifest: Manifest,
    files: Mapping[str, Path | bytes],
    *,
    key: SigningKey | None,
    force: bool = False,
) -> PackageIndex:
    """Write a package.

    Args:
        output: The directory to make.
        manifest: Its manifest.
        files: Path in the package to the file whose content goes there, or to the content itself.
        key: A release key to sign with, or None for an unsigned package.
        force: Replace an existing package.

    Returns:
        The index.

    Raises:
        PackageError: The output exists or cannot be written.
        IntegrityError: A file is not the one that its figures were measured on.
    """
    with staged(output, force=force) as staging:
        for path, source in files.items():
            place = staging / path
            _write(place, source) if isinstance(source, bytes) else copy_file(source, place)
        _write(staging / MANIFEST_FILE, manifest_to_bytes(manifest))
        index = index_directory(staging)
        check_measured(manifest, index)
        if key is not None:
            _write_envelope(staging, index, key)
    return index


def seal(directory: Path, key: SigningKey) -> PackageIndex:
    """Sign a directory in the package layout, after checking every file.

    Args:
        directory: The package.
        key: A release key.

    Returns:
        The index that was signed.

    Raises:
        PackageError: The package is not complete or cannot be written.
        IntegrityError: A file is not the one that its figures were measured on, or was changed
            after an earlier signature.
        WireFormatError: A path is malformed.
    """
    index = index_directory(directory)
    _check_content(directory, read_manifest(directory), index)
    earlier = _readable_index(directory)
    if earlier is not None:
        _check_same(earlier, index)
    try:
        _write_envelope(directory, index, key)
    except OSError as exc:
        raise PackageError(f"{directory} cannot be written: {exc.strerror}", remedy=ROOM) from exc
    return index


def open_package(directory: Path, *, trust: Trust | None = None) -> tuple[Manifest, PackageIndex]:
    """Read a package after checking every file.

    Args:
        directory: The package.
        trust: Require a release signature by this root; None checks only the content.

    Returns:
        The manifest and the index.

    Raises:
        PackageError: The package is not complete.
        SignatureError: The signature is missing, or not one of the root's release keys.
        IntegrityError: A file is missing, additional or changed.
        WireFormatError: Something in it is malformed.
    """
    actual = index_directory(directory)
    signed = _signed_index(directory, trust)
    if signed is None:
        if trust is not None:
            raise SignatureError(
                f"{directory} is not signed",
                remedy=f"sign it with: fleet package sign {directory} --key FILE",
            )
        manifest = read_manifest(directory)
        _check_content(directory, manifest, actual)
        return manifest, actual
    _check_same(signed, actual)
    manifest = read_manifest(directory)
    check_measured(manifest, signed)
    return manifest, signed


def signers(directory: Path) -> tuple[str, ...]:
    """Return the names of the keys in a package's signatures; the signatures are not checked.

    Args:
        directory: The package.

    Returns:
        Key ids; empty for an unsigned package.

    Raises:
        PackageError: The envelope cannot be read, or is malformed.
    """
    data = _envelope(directory)
    if data is None:
        return ()
    return _unverified(data, directory).keyids


def load_trust(path: Path) -> TrustRoot:
    """Read a trust root.

    Args:
        path: Its file.

    Returns:
        The trust root.

    Raises:
        PackageError: It cannot be read, or is not a trust root.
    """
    try:
        return trust_from_bytes(read_bounded(path, MAX_JSON_BYTES, PackageError))
    except WireFormatError as exc:
        raise PackageError(f"{path} is not a trust root: {exc.__cause__ or exc}") from exc


def _signed_index(directory: Path, trust: Trust | None) -> PackageIndex | None:
    """Return the index in the envelope, trusted as in `open_package`; None without an envelope.

    Raises:
        PackageError: The envelope cannot be read, is over the limit, or malformed.
        SignatureError: The signature is not one of the root's release keys.
        WireFormatError: The index is malformed.
    """
    data = _envelope(directory)
    if data is None:
        return None
    payload = _unverified(data, directory).payload  # a file that is none is told by its name
    if trust is not None:
        payload = trust.unseal(data, role="release", payload_type=PAYLOAD_TYPE)
    return index_from_bytes(payload)


def _envelope(directory: Path) -> bytes | None:
    path = directory / ENVELOPE_FILE
    return read_bounded(path, MAX_ENVELOPE_BYTES, PackageError) if path.is_file() else None


def _unverified(data: bytes, directory: Path) -> Unverified:
    try:
        return read_unverified(data, payload_type=PAYLOAD_TYPE)
    except (WireFormatError, SignatureError) as exc:
        raise PackageError(
            f"{directory / ENVELOPE_FILE} is not a signature: {exc.__cause__ or exc}",
            remedy="sign the package again",
        ) from exc


def _readable_index(directory: Path) -> PackageIndex | None:
    """Return the index of an earlier signature; None where there is none that can be read."""
    try:
        return _signed_index(directory, None)
    except (PackageError, WireFormatError):
        return None  # it is replaced


def _check_content(directory: Path, manifest: Manifest, index: PackageIndex) -> None:
    """Refuse an unsigned package whose files are not those of its manifest.

    Raises:
        PackageError: A variant's model is missing.
        IntegrityError: A file is not the one that its figures were measured on.
    """
    paths = {entry.path for entry in index.files}
    for variant in manifest.variants:
        model = f"{variant.directory}/{variant.info.model_file}"
        if model not in paths:
            raise PackageError(f"{directory} lacks {model}", remedy=AGAIN)
    check_measured(manifest, index)


def _check_same(signed: PackageIndex, actual: PackageIndex) -> None:
    expected = {entry.path: entry.sha256 for entry in signed.files}
    found = {entry.path: entry.sha256 for entry in actual.files}
    for path in sorted(expected.keys() | found.keys()):
        if path not in found:
            raise IntegrityError(f"{path} is missing from the package")
        if path not in expected:
            raise IntegrityError(f"{path} does not belong to the package")
        if expected[path] != found[path]:
            raise IntegrityError(f"{path} was changed after the package was signed", remedy=AGAIN)
    if (signed.name, signed.version) != (actual.name, actual.version):
        raise IntegrityError("the signed name or version is not the manifest's")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    write_atomic(path, content, mode=PUBLIC)


def _write_envelope(directory: Path, index: PackageIndex, key: SigningKey) -> None:
    content = seal_payload(index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=(key,))
    write_atomic(directory / ENVELOPE_FILE, content, mode=PUBLIC)
