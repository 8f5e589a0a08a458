"""How a signed package lies in an OCI registry. Pure.

```
manifest    artifactType application/vnd.edgefleet.package.v1
  config    the empty one
  layers    the signed index first, then one for each file of the package
```

Rules:
- A file is a blob of the digest that the signed index has for it, so a registry keeps what two
  releases share once.
- The same package gives the same bytes, and so the same digest of the manifest.
- Of a manifest that came from a registry, only the place of the signed index is used. Which files
  there are, how large they are and where they go, only the signed index says.

Source:
    OCI image spec 1.1, "Guidelines for Artifact Usage" and "Pre-Defined Annotation Keys"; the media
    type of an envelope is that of DSSE.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

from packager.errors import PackageError, RegistryAnswerError
from wire.codec import from_json, sha256_hex, to_json
from wire.errors import WireFormatError
from wire.package.index import ENVELOPE_FILE, FileEntry, PackageIndex, is_digest
from wire.trust.envelope import MAX_ENVELOPE_BYTES

ARTIFACT_TYPE: Final = "application/vnd.edgefleet.package.v1"
MANIFEST_TYPE: Final = "application/vnd.oci.image.manifest.v1+json"
ENVELOPE_TYPE: Final = "application/vnd.dsse.envelope.v1+json"
FILE_TYPE: Final = "application/vnd.edgefleet.package.file.v1"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
EMPTY: Final = b"{}"
TITLE: Final = "org.opencontainers.image.title"
VERSION: Final = "org.opencontainers.image.version"
DIGEST: Final = "vnd.edgefleet.package.digest"
MAX_MANIFEST_BYTES: Final = 4 * 1024**2
"""What every registry takes, by the distribution spec."""

MAX_LAYERS: Final = 4096 + 1
ALGORITHM: Final = "sha256:"
_FOREIGN: Final = "that is no package of edgefleet: {}"
_NAME: Final = "name what `fleet package push` wrote"


class Blob(NamedTuple):
    """Content in a registry."""

    sha256: str
    size_bytes: int


class Descriptor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What a manifest says of one blob."""

    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class ImageManifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A manifest, as far as we write and read it."""

    schema_version: int = 2
    media_type: str = MANIFEST_TYPE
    artifact_type: str = ""
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], msgspec.Meta(max_length=MAX_LAYERS)]
    annotations: dict[str, str] = {}


def blob_of(content: bytes) -> Blob:
    """Return what names some content."""
    return Blob(sha256_hex(content), len(content))


def manifest_bytes(envelope: bytes, index: PackageIndex) -> bytes:
    """Write the manifest of a package.

    Args:
        envelope: The signed index.
        index: What is in it.

    Returns:
        The manifest, equal for equal packages.

    Raises:
        PackageError: It is larger than a registry must take.
    """
    content = to_json(
        ImageManifest(
            artifact_type=ARTIFACT_TYPE,
            config=_descriptor(EMPTY_TYPE, blob_of(EMPTY)),
            layers=(
                _descriptor(ENVELOPE_TYPE, blob_of(envelope), ENVELOPE_FILE),
                *(_descriptor(FILE_TYPE, _blob(entry), entry.path) for entry in index.files),
            ),
            annotations={TITLE: index.name, VERSION: index.version, DIGEST: index.digest},
        )
    )
    if len(content) > MAX_MANIFEST_BYTES:
        raise PackageError(
            f"the package has {len(index.files)} files with long names; "
            "no registry takes such a manifest",
            remedy="carry it as a file: fleet package export",
        )
    return content


def files_of(index: PackageIndex) -> dict[Blob, FileEntry]:
    """Return the contents of a package's files, each once, with a file that has it."""
    found: dict[Blob, FileEntry] = {}
    for entry in index.files:
        found.setdefault(_blob(entry), entry)
    return found


def envelope_of(manifest: bytes) -> Blob:
    """Find the signed index of a package by a manifest from a registry.

    Args:
        manifest: As it came.

    Returns:
        Where the envelope is, and its size, which is bounded.

    Raises:
        RegistryAnswerError: It is no manifest, or that of something else than a package.
    """
    try:
        found = from_json(manifest, ImageManifest, limit_bytes=MAX_MANIFEST_BYTES)
    except WireFormatError as exc:
        raise RegistryAnswerError(_FOREIGN.format("it has another manifest"), remedy=_NAME) from exc
    first = found.layers[0] if found.layers else None
    sha256 = first.digest.removeprefix(ALGORITHM) if first else ""
    size_bytes = first.size if first else 0
    why = ""
    if (found.schema_version, found.media_type) != (2, MANIFEST_TYPE):
        why = "it has another manifest"
    elif found.artifact_type != ARTIFACT_TYPE:
        why = "it is of another type"
    elif first is None or first.media_type != ENVELOPE_TYPE:
        why = "it has no signed index"
    elif first.digest != ALGORITHM + sha256 or not is_digest(sha256):
        why = "its signed index has no SHA-256"
    elif not 0 < size_bytes <= MAX_ENVELOPE_BYTES:
        why = f"its signed index is over {MAX_ENVELOPE_BYTES} bytes"
    if why:
        raise RegistryAnswerError(_FOREIGN.format(why), remedy=_NAME)
    return Blob(sha256, size_bytes)


def _blob(entry: FileEntry) -> Blob:
    return Blob(entry.sha256, entry.size_bytes)


def _descriptor(media_type: str, blob: Blob, title: str = "") -> Descriptor:
    return Descriptor(
        media_type=media_type,
        digest=ALGORITHM + blob.sha256,
        size=blob.size_bytes,
        annotations={TITLE: title} if title else {},
    )
