"""A signed package as one file, to be carried by hand. Pure: the caller reads and writes the bytes.

```
metadata.json          perhaps: trusted metadata, first
package.dsse.json      the signed index
desired.dsse.json      perhaps: the signed desired state of one device
blobs/<sha256>         the manifest, then other files of the package in the order of the index
```

It is a plain tar archive. Files are named by their digests, so no name in it can lead anywhere, and
equal content is there once. Equal input gives equal bytes.

Rules:
- Nothing behind the signed index is read before its signature has been verified. Metadata before it
  is only passed on, to where it is checked.
- The index bounds what may follow: each file is one of its files, of the size that it says, once.
- A header is read only if it is, byte for byte, what this module writes: there is no way to write a
  link, a device, a sparse file or another name.
- A file of the archive is read and hashed by the caller; here only its place is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from wire.codec import MAX_JSON_BYTES, sha256_hex
from wire.errors import IntegrityError, WireFormatError
from wire.package.index import (
    ENVELOPE_FILE,
    MAX_FILES,
    MAX_PACKAGE_BYTES,
    PAYLOAD_TYPE,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import Trust

DESIRED_FILE: Final = "desired.dsse.json"
METADATA_FILE: Final = "metadata.json"
MAX_METADATA_BYTES: Final = 8 * 1024 * 1024
BLOBS: Final = "blobs/"
BLOCK_BYTES: Final = 512
END: Final = bytes(2 * BLOCK_BYTES)
MAX_MEMBER_BYTES: Final = 8**11 - 1
"""What eleven octal digits of a header can say."""

MAX_ARCHIVE_BYTES: Final = (
    MAX_PACKAGE_BYTES + 2 * MAX_ENVELOPE_BYTES + MAX_METADATA_BYTES + 2 * MAX_FILES * BLOCK_BYTES
)
AGAIN: Final = "export the package again with `fleet package export`"
_SIZE: Final = slice(124, 135)
_CHECKSUM: Final = slice(148, 156)
_NAME: Final = slice(0, 100)

Read = Callable[[int, int], bytes]
"""Takes an offset and a length, and returns exactly so many bytes, or raises."""


FOREIGN: Final = "the file is not one that `fleet package export` wrote, or is damaged"
CUT: Final = "the package file is damaged: it is cut short"


class ArchiveError(WireFormatError):
    """A file is not a package archive of our form."""

    code = "wire.archive"

    def __init__(self, message: str, *, remedy: str = AGAIN) -> None:
        super().__init__(message, remedy=remedy)


class Member(NamedTuple):
    """Where a file of an archive lies."""

    name: str
    size_bytes: int
    offset: int


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """An archive whose index is verified; its files are not read yet, except for the manifest."""

    envelope: bytes
    index: PackageIndex
    manifest: Manifest
    desired: bytes | None
    """A signed desired state, not verified."""

    blobs: dict[str, Member]
    """By digest: the files that the archive holds, the manifest too."""


def header(name: str, size_bytes: int) -> bytes:
    """Return the block before a file of the archive.

    Args:
        name: In ASCII, up to 99 characters.
        size_bytes: Size of the file.

    Returns:
        512 bytes.

    Raises:
        WireFormatError: The file is larger than a header can say.
    """
    if not 0 <= size_bytes <= MAX_MEMBER_BYTES:
        raise WireFormatError(f"a file of {size_bytes} bytes does not fit into an archive")
    fields = (
        (name.encode("ascii"), 100),
        (b"0000644", 8),  # mode
        (b"0000000", 8),  # owner
        (b"0000000", 8),  # group
        (b"%011o" % size_bytes, 12),
        (b"%011o" % 0, 12),  # time
        (b" " * 8, 8),  # the checksum, as it counts in itself
        (b"0", 1),  # a plain file
        (b"", 100),  # target of a link
        (b"ustar\x0000", 8),
    )
    block = b"".join(value.ljust(width, b"\0") for value, width in fields).ljust(BLOCK_BYTES, b"\0")
    checksum = b"%06o\0 " % sum(block)
    return block[: _CHECKSUM.start] + checksum + block[_CHECKSUM.stop :]


def padding(size_bytes: int) -> bytes:
    """Return what fills the last block of a file of that size."""
    return bytes(-size_bytes % BLOCK_BYTES)


def blob_name(sha256: str) -> str:
    """Return the name of a file in the archive, by its digest."""
    return BLOBS + sha256


def layout(index: PackageIndex, wanted: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the digests and sizes of the files of an archive, in their order.

    Args:
        index: The index of the package.
        wanted: Paths of the files that the archive is to hold, beside the manifest.

    Returns:
        Each content once, the manifest first.
    """
    paths = {*wanted}
    entries = (index.file(MANIFEST_FILE), *(e for e in index.files if e.path in paths))
    return tuple({entry.sha256: entry.size_bytes for entry in entries}.items())


def metadata_in(read: Read, size_bytes: int) -> bytes | None:
    """Return the trusted metadata in an archive, as it is; None if there is none.

    Args:
        read: Reads from the archive.
        size_bytes: Size of the archive.

    Raises:
        ArchiveError: It is not an archive of this form, or the metadata is too large.
    """
    first = next(_members(read, size_bytes), None)
    if first is None or first.name != METADATA_FILE:
        return None
    if first.size_bytes > MAX_METADATA_BYTES:
        raise ArchiveError(f"the package file is damaged: {METADATA_FILE} is too large")
    return read(first.offset, first.size_bytes)


def open_archive(read: Read, size_bytes: int, trust: Trust) -> Archive:
    """Verify the index of an archive, and find the files in it.

    Args:
        read: Reads from the archive.
        size_bytes: Size of the archive.
        trust: The keys that may sign packages.

    Returns:
        The archive.

    Raises:
        ArchiveError: It is not an archive of this form.
        WireFormatError: The index or the manifest is malformed.
        SignatureError: Its index has no valid signature.
        IntegrityError: Its manifest differs from what was signed.
    """
    if size_bytes > MAX_ARCHIVE_BYTES:
        raise ArchiveError(f"the file is over {MAX_ARCHIVE_BYTES} bytes: it is no package")
    members = _members(read, size_bytes)
    first = next(members, None)
    if first is not None and first.name == METADATA_FILE:
        first = next(members, None)
    envelope = _document(read, first, ENVELOPE_FILE)
    payload = trust.unseal(envelope, role="release", payload_type=PAYLOAD_TYPE)
    index = index_from_bytes(payload)
    manifest_entry = index.file(MANIFEST_FILE)
    member, desired = next(members, None), None
    if member is not None and member.name == DESIRED_FILE:
        desired = _document(read, member, DESIRED_FILE)
        member = next(members, None)
    if member is None or member.name != blob_name(manifest_entry.sha256):
        raise ArchiveError("the package file is damaged: the manifest does not follow the index")
    blobs = {manifest_entry.sha256: _checked(member, manifest_entry.size_bytes)}
    manifest = _manifest(read, member, index)
    sizes = {entry.sha256: entry.size_bytes for entry in index.files}
    for member in members:
        digest = member.name.removeprefix(BLOBS)
        if member.name != blob_name(digest) or digest not in sizes or digest in blobs:
            raise ArchiveError(
                "the package file is damaged: it holds a file that is not in its index, or twice"
            )
        blobs[digest] = _checked(member, sizes[digest])
    return Archive(envelope=envelope, index=index, manifest=manifest, desired=desired, blobs=blobs)


def _members(read: Read, size_bytes: int) -> Iterator[Member]:
    """Find the files of an archive, each when it is asked for.

    Raises:
        ArchiveError: A header is not as `header` writes it, or the archive ends too early or
            late.
    """
    offset = 0
    for _ in range(MAX_FILES + 4):
        if offset + len(END) > size_bytes:
            raise ArchiveError(CUT if offset else FOREIGN)
        block = read(offset, BLOCK_BYTES)
        if block == END[:BLOCK_BYTES]:
            if offset + len(END) != size_bytes or read(offset, len(END)) != END:
                raise ArchiveError("the package file is damaged: something follows its end")
            return
        member = Member(*_parsed(block), offset + BLOCK_BYTES)
        offset = member.offset + -(-member.size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        if offset + len(END) > size_bytes:
            raise ArchiveError(CUT)
        yield member
    raise ArchiveError("the package file is damaged: it holds too many files")


def _parsed(block: bytes) -> tuple[str, int]:
    digits = block[_SIZE]
    name = block[_NAME].rstrip(b"\0")
    if not all(digit in b"01234567" for digit in digits) or not name.isascii():
        raise ArchiveError(FOREIGN)
    size = int(digits, 8)
    if block != header(name.decode("ascii"), size):
        raise ArchiveError(FOREIGN)
    return name.decode("ascii"), size


def _document(read: Read, member: Member | None, name: str) -> bytes:
    """Read a signed document.

    Raises:
        ArchiveError: It is another file, or too large.
    """
    if member is None or member.name != name:
        raise ArchiveError(FOREIGN)
    if member.size_bytes > MAX_ENVELOPE_BYTES:
        raise ArchiveError(
            f"the package file is damaged: {name} is over {MAX_ENVELOPE_BYTES} bytes"
        )
    return read(member.offset, member.size_bytes)


def _manifest(read: Read, member: Member, index: PackageIndex) -> Manifest:
    entry = index.file(MANIFEST_FILE)
    if entry.size_bytes > MAX_JSON_BYTES:
        raise WireFormatError(f"{MANIFEST_FILE} is over {MAX_JSON_BYTES} bytes")
    data = read(member.offset, member.size_bytes)
    if sha256_hex(data) != entry.sha256:
        raise IntegrityError(f"{MANIFEST_FILE} differs from the signed file", remedy=AGAIN)
    return same_manifest(data, index)


def same_manifest(data: bytes, index: PackageIndex) -> Manifest:
    """Read the manifest of a package whose index is verified.

    Args:
        data: The manifest, of the digest that the index says.
        index: The index.

    Returns:
        The manifest.

    Raises:
        WireFormatError: It is malformed.
        IntegrityError: It is that of another package.
    """
    manifest = manifest_from_bytes(data)
    if (manifest.name, manifest.version) != (index.name, index.version):
        raise IntegrityError(
            f"the index of {index.name}:{index.version} contains the manifest of "
            f"{manifest.name}:{manifest.version}"
        )
    return manifest


def _checked(member: Member, size_bytes: int) -> Member:
    if member.size_bytes != size_bytes:
        raise ArchiveError(
            "the package file is damaged: a file has another size than the index says"
        )
    return member
