"""The package index: every file of a package with its digest. The index is what gets signed.

Rules:
- The SHA-256 of the index's canonical bytes identifies a package.
- Each file has its SHA-256 and is split into chunks of one size, each with its own SHA-256. So a
  bad chunk is refused when it arrives, and a transfer continues where it stopped.
- The index lists every file of the package except itself.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from wire.codec import from_json, sha256_hex, to_json
from wire.errors import WireFormatError
from wire.package.manifest import MANIFEST_FILE
from wire.package.paths import safe_path
from wire.package.variant import Variant
from wire.profile import NAME_PATTERN

ENVELOPE_FILE = "package.dsse.json"
BILL_FILE: Final = "materials/bom.cdx.json"
"""The bill of materials, in the JSON of CycloneDX."""

PROVENANCE_FILE: Final = "materials/provenance.intoto.json"
"""How the package was built: a statement of in-toto with the provenance of SLSA."""

MATERIALS: Final = frozenset({BILL_FILE, PROVENANCE_FILE})
"""Documents for people and their tools. No device needs them, so none fetches them."""

CHUNK_BYTES = 128 * 1024
"""The best size between 64 and 256 KiB in measurements with a window of 8 to 16; it is below the
brokers' usual packet limit of 256 KiB."""

MAX_FILES = 4096
MAX_PACKAGE_BYTES = 16 * 1024**3
PAYLOAD_TYPE = "application/vnd.edgefleet.package-index+json"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a package."""

    path: str
    size_bytes: int
    sha256: str
    chunks: tuple[str, ...]
    """SHA-256 of each chunk, in order; empty for an empty file."""


class PackageIndex(msgspec.Struct, frozen=True, kw_only=True):
    """All files of a package."""

    schema_version: int = 1
    name: str
    version: str
    chunk_bytes: int = CHUNK_BYTES
    files: tuple[FileEntry, ...]

    def to_bytes(self) -> bytes:
        """Return the canonical bytes, which are signed and whose digest names the package."""
        return to_json(self)

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical bytes: the name of the package."""
        return sha256_hex(self.to_bytes())

    @property
    def size_bytes(self) -> int:
        """The size of all files, in bytes."""
        return sum(entry.size_bytes for entry in self.files)

    def file(self, path: str) -> FileEntry:
        """Return the entry of a path.

        Raises:
            WireFormatError: The package has no such file.
        """
        for entry in self.files:
            if entry.path == path:
                return entry
        raise WireFormatError(f"package {self.name} {self.version} has no file {path}")

    def files_for(self, variants: tuple[Variant, ...]) -> tuple[FileEntry, ...]:
        """Return the entries that a device needs for some variants: manifest, files and assets.

        Args:
            variants: The variants that the device will keep.

        Returns:
            The entries, in index order.
        """
        prefixes = prefixes_for(variants)
        return tuple(entry for entry in self.files if is_needed(entry.path, prefixes))


def prefixes_for(variants: tuple[Variant, ...]) -> tuple[str, ...]:
    """Return how the paths of files begin that a device needs for some variants."""
    return tuple(f"{v.directory}/" for v in variants) + tuple(
        f"{asset_directory(v.info.golden.asset)}/" for v in variants if v.info.golden
    )


def is_needed(path: str, prefixes: tuple[str, ...]) -> bool:
    """Tell whether a device needs a file: the manifest, or one whose path begins so."""
    return path == MANIFEST_FILE or path.startswith(prefixes)


def index_from_bytes(payload: bytes) -> PackageIndex:
    """Read a package index whose signature has been checked.

    Args:
        payload: The signed bytes.

    Returns:
        The index.

    Raises:
        WireFormatError: Not an index, an unsafe or repeated path, a wrong digest or chunk count.
    """
    index = from_json(payload, PackageIndex)
    if index.schema_version != 1 or not 1 <= len(index.files) <= MAX_FILES:
        raise WireFormatError("package index: unknown schema version or number of files")
    for name in (index.name, index.version):
        if NAME_PATTERN.fullmatch(name) is None:
            raise WireFormatError(f"package index: {name!r} is not a plain name")
    if not 1024 <= index.chunk_bytes <= 1024**2:  # noqa: PLR2004 - 1 KiB to 1 MiB
        raise WireFormatError(f"package index: chunk size {index.chunk_bytes} is out of bounds")
    for entry in index.files:
        _check_entry(entry, index.chunk_bytes)
    if len({entry.path for entry in index.files}) != len(index.files):
        raise WireFormatError("package index: a path occurs twice")
    if index.size_bytes > MAX_PACKAGE_BYTES:
        raise WireFormatError(f"package index: {index.size_bytes} bytes is over the limit")
    return index


def entry_for(path: str, content: bytes, *, chunk_bytes: int = CHUNK_BYTES) -> FileEntry:
    """Return the index entry of a file's content."""
    return FileEntry(
        path=safe_path(path),
        size_bytes=len(content),
        sha256=sha256_hex(content),
        chunks=tuple(
            hashlib.sha256(content[start : start + chunk_bytes]).hexdigest()
            for start in range(0, len(content), chunk_bytes)
        ),
    )


def asset_directory(asset: str) -> str:
    """Return the directory of a shared asset, as ONNX Runtime's layout places it.

    Args:
        asset: `sha256:<64 hex digits>`.

    Returns:
        `shared_assets/sha256-<64 hex digits>`.

    Raises:
        WireFormatError: Not such a reference.
    """
    scheme, _, digest = asset.partition(":")
    if scheme != "sha256" or _DIGEST.fullmatch(digest) is None:
        raise WireFormatError(f"not a shared asset: {asset!r}")
    return f"shared_assets/sha256-{digest}"


def asset_uri(files: dict[str, bytes]) -> str:
    """Return the name of a shared asset, as ONNX Runtime's layout computes it.

    Args:
        files: Relative POSIX path to content.

    Returns:
        `sha256:` and the SHA-256 of the lines `<sha256>  <path>`, sorted by path.

    Source:
        ONNX Runtime, model_package/README.md, "Canonical asset URI".
    """
    lines = "".join(f"{sha256_hex(files[path])}  {path}\n" for path in sorted(files))
    return f"sha256:{sha256_hex(lines.encode())}"


def is_digest(text: str) -> bool:
    """Tell whether a text is a SHA-256 in lower-case hexadecimal."""
    return _DIGEST.fullmatch(text) is not None


def _check_entry(entry: FileEntry, chunk_bytes: int) -> None:
    safe_path(entry.path)
    expected = -(-entry.size_bytes // chunk_bytes)
    if entry.size_bytes < 0 or len(entry.chunks) != expected:
        raise WireFormatError(f"package index: {entry.path} has {len(entry.chunks)} chunks")
    if not all(is_digest(text) for text in (entry.sha256, *entry.chunks)):
        raise WireFormatError(f"package index: {entry.path} has a malformed digest")
