"""The manifest of a package in a registry: its bytes for ever, and its digests."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.errors import PackageError, RegistryAnswerError
from packager.registry.artifact import (
    ARTIFACT_TYPE,
    EMPTY,
    MAX_MANIFEST_BYTES,
    blob_of,
    envelope_of,
    files_of,
    manifest_bytes,
)
from tests.simulators.packages import package, two_variants, variant
from wire.codec import sha256_hex
from wire.package.index import FileEntry, PackageIndex

MADE = package("1.0.0", [(variant("a"), b"same"), (variant("b"), b"same"), (variant("c"), b"")])


def test_the_manifest_of_a_package_never_changes() -> None:
    # A registry's tag is pinned by this digest: other bytes for the same package would break it.
    index = PackageIndex(
        name="n",
        version="1",
        files=(FileEntry(path="manifest.json", size_bytes=1, sha256="a" * 64, chunks=("b" * 64,)),),
    )
    assert sha256_hex(manifest_bytes(b"envelope", index)) == (
        "76c0f70d85bda49b9c615d4d2cfbd25ec620ead67acbde9b48a74b883966724a"
    )


def test_each_file_is_a_layer_of_its_own_digest() -> None:
    manifest = json.loads(manifest_bytes(MADE.envelope, MADE.index))
    assert manifest["artifactType"] == ARTIFACT_TYPE
    assert manifest["config"]["digest"] == f"sha256:{sha256_hex(EMPTY)}"
    layers = {
        layer["annotations"]["org.opencontainers.image.title"]: (layer["digest"], layer["size"])
        for layer in manifest["layers"]
    }
    contents = MADE.files | {"package.dsse.json": MADE.envelope}
    assert layers == {
        path: (f"sha256:{sha256_hex(content)}", len(content)) for path, content in contents.items()
    }


def test_equal_contents_are_sent_once() -> None:
    assert len(MADE.index.files) == 4
    assert {blob.sha256 for blob in files_of(MADE.index)} == {
        sha256_hex(content) for content in MADE.files.values()
    }
    assert len(files_of(MADE.index)) == 3


def test_the_signed_index_is_found_again() -> None:
    made = two_variants("1.0.0")
    assert envelope_of(manifest_bytes(made.envelope, made.index)) == blob_of(made.envelope)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["schemaVersion", "mediaType", "layers", "config", "digest", "size"]), inner
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_bytes_are_a_manifest_or_one_fault(content: bytes) -> None:
    with pytest.raises(RegistryAnswerError):
        envelope_of(content)


def test_a_manifest_that_no_registry_takes_is_not_made() -> None:
    longest = "\U0001f600" * 250
    entries = tuple(
        FileEntry(path=f"{longest}{n:04}", size_bytes=1, sha256="a" * 64, chunks=())
        for n in range(4096)
    )
    index = PackageIndex(name="n", version="1", files=entries)
    with pytest.raises(PackageError, match="carry it as a file: fleet package export"):
        manifest_bytes(b"envelope", index)
    assert len(manifest_bytes(b"envelope", MADE.index)) < MAX_MANIFEST_BYTES
