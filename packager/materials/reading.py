"""Reads the documents of a package, wherever it is, and compares them with its index.

Rules:
- A document is read only if it has the digest that the index has for it, which is what was signed.
- What a document says of a file of the package must be true of the file that is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from packager.errors import PackageError
from packager.materials.statement import Statement, statement_from_bytes
from packager.package.content import Content, Parts, checked, directory_parts, index_of
from packager.package.directory import open_package
from packager.package.indexing import AGAIN
from wire.codec import MAX_JSON_BYTES, from_json
from wire.errors import IntegrityError, WireFormatError
from wire.files import write_new
from wire.package.index import (
    BILL_FILE,
    ENVELOPE_FILE,
    PAYLOAD_TYPE,
    PROVENANCE_FILE,
    PackageIndex,
    index_from_bytes,
)
from wire.trust.root import Trust

CALLED: Final = {BILL_FILE: "bill of materials", PROVENANCE_FILE: "provenance"}
FORMAT: Final = "CycloneDX"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A package that documents are read from."""

    index: PackageIndex
    parts: Parts


class LicenceOf(msgspec.Struct, frozen=True, kw_only=True):
    """A licence that is no expression."""

    id: str = ""
    name: str = ""


class LicenceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One licence of a component."""

    expression: str = ""
    license: LicenceOf = LicenceOf()

    @property
    def text(self) -> str:
        """The licence, for people."""
        return self.expression or self.license.id or self.license.name


class Hash(msgspec.Struct, frozen=True, kw_only=True):
    """A digest of a component."""

    alg: str
    content: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A component, as far as it is shown."""

    type: str
    name: str
    version: str = ""
    licenses: tuple[LicenceChoice, ...] = ()
    hashes: tuple[Hash, ...] = ()
    components: tuple[Part, ...] = ()

    @property
    def sha256(self) -> str:
        """Its SHA-256; empty if it has none."""
        return next((one.content for one in self.hashes if one.alg == "SHA-256"), "")

    def all(self) -> Iterator[Part]:
        """Yield the component and those within it, however deep they lie."""
        left = [self]
        while left:
            part = left.pop()
            yield part
            left.extend(reversed(part.components))


class BillMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a bill of materials is of."""

    component: Part


class Bill(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A bill of materials, as far as it is shown."""

    bom_format: str
    spec_version: str
    serial_number: str = ""
    metadata: BillMetadata
    components: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """All components, the model with its variants and files first."""
        others = (part for component in self.components for part in component.all())
        return (*self.metadata.component.all(), *others)


def directory_source(directory: Path, trust: Trust | None) -> Source:
    """Open a package on this disk, after checking every file.

    Args:
        directory: The package; without `trust` it may be unsigned.
        trust: Require a release signature by this root.

    Returns:
        The package.

    Raises:
        FleetError: It is no package, is not signed as asked for, or a file was changed.
    """
    _, index = open_package(directory, trust=trust)
    return Source(index=index, parts=directory_parts(directory))


def content_source(content: Content, trust: Trust | None) -> Source:
    """Open a signed package.

    Args:
        content: The package.
        trust: Require a release signature by this root.

    Returns:
        The package.

    Raises:
        FleetError: It is not signed as asked for, or its index is malformed.
    """
    if trust is None:
        return Source(index=index_of(content.envelope), parts=content.parts)
    payload = trust.unseal(content.envelope, role="release", payload_type=PAYLOAD_TYPE)
    return Source(index=index_from_bytes(payload), parts=content.parts)


def read_document(source: Source, path: str) -> bytes:
    """Read a document of a package.

    Args:
        source: The package.
        path: `BILL_FILE` or `PROVENANCE_FILE`.

    Returns:
        Its bytes.

    Raises:
        PackageError: The package has none, it is too large, or is not the signed one.
    """
    index = source.index
    entry = next((one for one in index.files if one.path == path), None)
    if entry is None:
        raise PackageError(
            f"{index.name}:{index.version} has no {CALLED[path]}: an earlier version of fleet "
            "built it",
            remedy="build it again",
        )
    if entry.size_bytes > MAX_JSON_BYTES:
        raise PackageError(f"{path} is over {MAX_JSON_BYTES} bytes")
    return b"".join(checked(source.parts(entry), entry))


def read_bill(source: Source, data: bytes) -> Bill:
    """Read a bill of materials.

    Args:
        source: The package that it is of.
        data: The document.

    Returns:
        What is shown of it.

    Raises:
        PackageError: It is malformed.
        IntegrityError: It names a file of the package with another digest.
    """
    try:
        bill = from_json(data, Bill)
    except WireFormatError as exc:
        raise PackageError(f"{BILL_FILE}: {exc.message}", remedy=AGAIN) from exc
    if bill.bom_format != FORMAT:
        raise PackageError(f"{BILL_FILE} is not in the format of {FORMAT}", remedy=AGAIN)
    model = bill.metadata.component
    told = {part.name: part.sha256 for part in model.all() if part.type == "file"}
    _check_told(source.index, BILL_FILE, told)
    return bill


def read_provenance(source: Source, data: bytes) -> Statement:
    """Read a provenance.

    Args:
        source: The package that it is of.
        data: The document.

    Returns:
        The statement.

    Raises:
        PackageError: It is malformed.
        IntegrityError: It leaves out a file of the package, or names one with another digest.
    """
    try:
        statement = statement_from_bytes(data)
    except WireFormatError as exc:
        raise PackageError(f"{PROVENANCE_FILE}: {exc.message}", remedy=AGAIN) from exc
    told = statement.subjects
    _check_told(source.index, PROVENANCE_FILE, told)
    for path in sorted({entry.path for entry in source.index.files} - {PROVENANCE_FILE, *told}):
        raise IntegrityError(f"{PROVENANCE_FILE} does not name {path}", remedy=AGAIN)
    return statement


def save_document(data: bytes, path: Path) -> None:
    """Write a document to a new file.

    Args:
        data: The document.
        path: The file; it must not exist.

    Raises:
        PackageError: It exists or cannot be written.
    """
    try:
        write_new(path, data)
    except FileExistsError as exc:
        raise PackageError(f"{path} exists already", remedy="name another file") from exc
    except OSError as exc:
        raise PackageError(
            f"{path} cannot be written: {exc.strerror}", remedy="name a file in another directory"
        ) from exc


def _check_told(index: PackageIndex, document: str, told: Mapping[str, str]) -> None:
    """Refuse a document that is about other files than those of the package.

    Raises:
        IntegrityError: It names a file that is not there or has another digest.
    """
    there = {entry.path: entry.sha256 for entry in index.files if entry.path != ENVELOPE_FILE}
    for path, sha256 in sorted(told.items()):
        if there.get(path) != sha256:
            raise IntegrityError(
                f"{document} is about another {path[:80]} than the package has", remedy=AGAIN
            )
