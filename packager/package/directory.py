"""Writes, seals and opens packages, which are directories.

Rules:
- Equal content gives equal bytes: a package has no times and no paths, and its files are sorted by
  name.
- A package is either complete or missing.
- Only a package is overwritten, and only if the user asks for it.
- A reader checks the digest of a file before it uses the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

from packager.errors import PackageError
from packager.files import FOLDER_MODE, copy_file, read_bounded
from wire.codec import MAX_JSON_BYTES
from wire.errors import IntegrityError, SignatureError, WireFormatError
from wire.files import PUBLIC, write_atomic
from wire.package.index import (
    CHUNK_BYTES,
    ENVELOPE_FILE,
    MAX_FILES,
    MAX_PACKAGE_BYTES,
    PAYLOAD_TYPE,
    FileEntry,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import (
    MANIFEST_FILE,
    Manifest,
    manifest_from_bytes,
    manifest_to_bytes,
)
from wire.package.measured import check_measured
from wire.package.paths import safe_path
from wire.trust.envelope import MAX_ENVELOPE_BYTES, SigningKey, Unverified, read_unverified
from wire.trust.envelope import seal as seal_payload
from wire.trust.root import Trust, TrustRoot, trust_from_bytes

AGAIN: Final = "copy, download or build the package again"
ROOM: Final = "name a directory that can be written and has room"


def check_output(output: Path, *, force: bool) -> None:
    """Refuse an output that must not be overwritten.

    Args:
        output: Where a package is to be written.
        force: Whether an existing package may be replaced.

    Raises:
        PackageError: It exists, is not empty, and is not a package or may not be replaced.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / MANIFEST_FILE).is_file():
        raise PackageError(f"{output} exists and is not a package", remedy="name another directory")
    if not force:
        raise PackageError(f"{output} exists already", remedy="name another, or add --force")


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


@contextlib.contextmanager
def staged(output: Path, *, force: bool) -> Iterator[Path]:
    """Make a directory beside the output that takes its place when the `with` block ends well.

    Args:
        output: Where a package is to be written.
        force: Replace an existing package.

    Yields:
        The directory; after a fault nothing of it is left.

    Raises:
        PackageError: The output exists or cannot be written.
    """
    check_output(output, force=force)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    except OSError as exc:
        raise PackageError(
            f"{output.parent} cannot be written: {exc.strerror}", remedy=ROOM
        ) from exc
    try:
        staging.chmod(FOLDER_MODE)
        yield staging
        _replace(staging, output)
    except OSError as exc:
        raise PackageError(
            f"{output} cannot be written: {exc.strerror or exc}", remedy=ROOM
        ) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def index_directory(directory: Path) -> PackageIndex:
    """Compute the index of a directory in the package layout.

    Args:
        directory: The package.

    Returns:
        The index of all its files except the envelope.

    Raises:
        PackageError: The manifest is missing or malformed, an entry is not a regular file, or the
            directory holds too much.
        WireFormatError: A path is malformed.
    """
    manifest = _manifest(directory)
    paths = _plain_files(directory)
    if len(paths) > MAX_FILES or sum((directory / p).stat().st_size for p in paths) > (
        MAX_PACKAGE_BYTES
    ):
        raise PackageError(f"{directory} is over {MAX_FILES} files or {MAX_PACKAGE_BYTES} bytes")
    index = PackageIndex(
        name=manifest.name,
        version=manifest.version,
        files=tuple(_entry(directory, path) for path in paths),
    )
    return index_from_bytes(index.to_bytes())


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
    _check_content(directory, _manifest(directory), index)
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
        manifest = _manifest(directory)
        _check_content(directory, manifest, actual)
        return manifest, actual
    _check_same(signed, actual)
    manifest = _manifest(directory)
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


def _manifest(directory: Path) -> Manifest:
    try:
        return manifest_from_bytes(_read(directory, MANIFEST_FILE, MAX_JSON_BYTES))
    except WireFormatError as exc:
        raise PackageError(
            f"{directory} is not a package: {MANIFEST_FILE}: {exc.__cause__ or exc}", remedy=AGAIN
        ) from exc


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


def _plain_files(directory: Path) -> list[str]:
    found: list[str] = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if any("\ud800" <= char <= "\udfff" for char in relative):
            raise PackageError(f"{relative!r} is not a name in UTF-8", remedy=AGAIN)
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise PackageError(f"{relative} is neither a plain file nor a directory")
        if path.is_file() and relative != ENVELOPE_FILE:
            found.append(relative)
    return sorted(found)


def _read(directory: Path, path: str, limit_bytes: int) -> bytes:
    with _opened(directory, path, limit_bytes) as file:
        return file.read()


def _entry(directory: Path, path: str) -> FileEntry:
    """Compute the entry of a file without holding it in memory."""
    safe_path(path)
    whole, chunks, size_bytes = hashlib.sha256(), [], 0
    with _opened(directory, path, MAX_PACKAGE_BYTES) as file:
        while chunk := file.read(CHUNK_BYTES):
            whole.update(chunk)
            chunks.append(hashlib.sha256(chunk).hexdigest())
            size_bytes += len(chunk)
    return FileEntry(
        path=path, size_bytes=size_bytes, sha256=whole.hexdigest(), chunks=tuple(chunks)
    )


@contextlib.contextmanager
def _opened(directory: Path, path: str, limit_bytes: int) -> Iterator[BinaryIO]:
    file = directory / path
    try:
        status = file.stat()
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            raise PackageError(f"{directory}: {path} is not a plain file", remedy=AGAIN)
        if status.st_size > limit_bytes:
            raise PackageError(f"{directory}: {path} is over {limit_bytes} bytes", remedy=AGAIN)
        with file.open("rb") as stream:
            yield stream
    except OSError as exc:
        raise PackageError(
            f"{directory} is not a package: {path}: {exc.strerror}",
            remedy="name the directory that `fleet build -o` wrote",
        ) from exc


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    write_atomic(path, content, mode=PUBLIC)


def _write_envelope(directory: Path, index: PackageIndex, key: SigningKey) -> None:
    content = seal_payload(index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=(key,))
    write_atomic(directory / ENVELOPE_FILE, content, mode=PUBLIC)


def _replace(staging: Path, output: Path) -> None:
    """Move a finished directory to its place; an existing one is moved aside first, then removed.

    Raises:
        OSError: It cannot be moved; the existing directory is back in its place.
    """
    if not output.exists():
        staging.rename(output)
        return
    old = staging.with_name(f"{staging.name}-old")
    output.rename(old)
    try:
        staging.rename(output)
    except OSError:
        old.rename(output)
        raise
    shutil.rmtree(old)
