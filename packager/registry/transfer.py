"""Brings a signed package to an OCI registry, and back.

Rules:
- Nothing of the content is read before the signature of the index is verified; then the manifest
  of the package, then the other files, each checked while it is written.
- Names and sizes are those of the signed index. What a registry says of them is not used.
- A push sends what the registry lacks, the manifest last: a reader finds a whole package or none.
- A pull gives a whole package or leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from packager.errors import PackageError, RegistryAnswerError, RegistryError
from packager.package.content import (
    STEP_BYTES,
    Content,
    check_room,
    checked,
    index_of,
    write_file,
)
from packager.package.staging import staged
from packager.registry.access import Access
from packager.registry.artifact import (
    ALGORITHM,
    EMPTY,
    Blob,
    blob_of,
    envelope_of,
    files_of,
    manifest_bytes,
)
from packager.registry.credentials import find_login
from packager.registry.reference import FORM, Reference
from packager.registry.repository import PULL_AGAIN, Repository
from wire.codec import MAX_JSON_BYTES, sha256_hex
from wire.package.archive import same_manifest
from wire.package.index import (
    ENVELOPE_FILE,
    PAYLOAD_TYPE,
    FileEntry,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import MANIFEST_FILE
from wire.trust.root import Trust


class Way(NamedTuple):
    """How a registry is reached."""

    login_file: Path
    ca_file: Path | None = None
    clear_text: bool = False


class Pushed(NamedTuple):
    """What a push did."""

    release: str
    reference: Reference
    """With the digest of the manifest."""

    sent: int
    """How many files the registry did not have."""

    files: int


def push(content: Content, reference: Reference, way: Way, *, force: bool = False) -> Pushed:
    """Bring a package to a registry.

    Args:
        content: The package.
        reference: Where to; without a tag it gets the version of the package as its tag.
        way: How the registry is reached.
        force: Let the tag name this package, if it names another one.

    Returns:
        What was done.

    Raises:
        RegistryError: The registry cannot be reached, refuses, or has something else under the tag.
        PackageError: The package is not signed, or not as it was signed.
        WireFormatError: The index is malformed.
    """
    index = index_of(content.envelope)
    manifest = manifest_bytes(content.envelope, index)
    digest = ALGORITHM + sha256_hex(manifest)
    if reference.digest not in {"", digest}:
        raise RegistryError(
            "the reference has the digest of another package",
            remedy=f"name a place without a digest: {FORM}",
        )
    named = reference._replace(tag=reference.tag or index.version, digest=digest)
    files = files_of(index)
    with _opened(reference, way) as repository:
        there = repository.find_manifest(named.tag)
        if there not in {None, manifest} and not force:
            raise RegistryError(
                f"{named._replace(digest='')} exists already and is something else",
                remedy="name another tag, or add --force",
            )
        sent = 0
        for blob, entry in files.items():
            if not repository.has_blob(blob):
                repository.put_blob(blob, partial(_checked, content, entry))
                sent += 1
        for document in (EMPTY, content.envelope):
            blob = blob_of(document)
            if not repository.has_blob(blob):
                repository.put_blob(blob, partial(iter, (document,)))
        if there != manifest:
            repository.put_manifest(named.tag, manifest)
    return Pushed(f"{index.name}:{index.version}", named, sent, len(files))


def pull(
    reference: Reference, output: Path, trust: Trust, way: Way, *, force: bool = False
) -> PackageIndex:
    """Make the directory of a package from a registry.

    Args:
        reference: Which package, by a tag or a digest.
        output: The directory to make.
        trust: The keys that may sign packages.
        way: How the registry is reached.
        force: Replace an existing package.

    Returns:
        The index of the package.

    Raises:
        RegistryError: The registry cannot be reached, refuses, has no such package or lies.
        PackageError: A file is not the signed one, or the output cannot be written.
        FleetError: It is not signed by the release role, or is malformed.
    """
    _check_named(reference)
    with _opened(reference, way) as repository, staged(output, force=force) as staging:
        envelope = _envelope(repository, reference)
        index = _verified(envelope, trust)
        check_room(staging, index.size_bytes)
        write_file(staging / ENVELOPE_FILE, iter((envelope,)))
        _fetch_all(repository, index, staging)
    return index


@contextmanager
def registry_content(reference: Reference, trust: Trust, way: Way) -> Iterator[Content]:
    """Open a package in a registry, after checking its signature, while the `with` block lasts.

    Args:
        reference: Which package, by a tag or a digest.
        trust: The keys that may sign packages.
        way: How the registry is reached.

    Yields:
        Its content; each file is downloaded when it is needed.

    Raises:
        RegistryError: The registry cannot be reached, refuses, has no such package or lies.
        FleetError: It is not signed by the release role, or is malformed.
    """
    _check_named(reference)
    with _opened(reference, way) as repository:
        envelope = _envelope(repository, reference)
        _verified(envelope, trust)
        yield Content(envelope, lambda entry: repository.blob(_blob(entry)))


def _check_named(reference: Reference) -> None:
    if not (reference.tag or reference.digest):
        raise RegistryError("the reference names no package", remedy=f"write {FORM}")


@contextmanager
def _opened(reference: Reference, way: Way) -> Iterator[Repository]:
    access = Access(
        reference.host,
        login=lambda: find_login(way.login_file, reference),
        ca_file=way.ca_file,
        clear_text=way.clear_text,
    )
    with closing(access):
        yield Repository(access, reference.repository)


def _checked(content: Content, entry: FileEntry) -> Iterator[bytes]:
    return checked(content.parts(entry), entry)


def _envelope(repository: Repository, reference: Reference) -> bytes:
    """Download the signed index.

    Raises:
        RegistryAnswerError: It is another one than the manifest says.
    """
    blob = envelope_of(repository.manifest(reference.digest or reference.tag))
    envelope = b"".join(repository.blob(blob))
    if sha256_hex(envelope) != blob.sha256:
        raise RegistryAnswerError(
            "the signed index is not of the digest that the manifest has for it", remedy=PULL_AGAIN
        )
    return envelope


def _verified(envelope: bytes, trust: Trust) -> PackageIndex:
    return index_from_bytes(trust.unseal(envelope, role="release", payload_type=PAYLOAD_TYPE))


def _blob(entry: FileEntry) -> Blob:
    return Blob(entry.sha256, entry.size_bytes)


def _fetch_all(repository: Repository, index: PackageIndex, staging: Path) -> None:
    """Download the files of a package, the manifest first, equal ones once.

    Raises:
        PackageError: A file is not the signed one.
        FleetError: It cannot be downloaded, or the manifest is that of another package.
    """
    first = index.file(MANIFEST_FILE)
    if first.size_bytes > MAX_JSON_BYTES:
        raise PackageError(f"{MANIFEST_FILE} is over {MAX_JSON_BYTES} bytes")
    there: dict[Blob, Path] = {}
    for entry in (first, *(e for e in index.files if e != first)):
        blob, place = _blob(entry), staging / entry.path
        parts = _read(there[blob]) if blob in there else repository.blob(blob)
        write_file(place, checked(parts, entry))
        there[blob] = place
        if entry == first:
            same_manifest(place.read_bytes(), index)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(STEP_BYTES):
            yield part
