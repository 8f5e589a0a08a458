"""Blobs on the disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from controller.errors import StorageError, TooLargeError, UnknownBlobError
from controller.services.blobs import BlobStore
from wire.codec import sha256_hex
from wire.errors import IntegrityError, WireFormatError

CONTENT = b"0123456789"
DIGEST = sha256_hex(CONTENT)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs", max_blob_bytes=1000)


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_a_blob_lies_under_its_name(store: BlobStore, tmp_path: Path) -> None:
    for _ in range(2):
        assert store.put(CONTENT) == DIGEST
    assert files(tmp_path / "blobs") == [f"{DIGEST[:2]}/{DIGEST}"]
    assert store.size_bytes(DIGEST) == 10
    assert store.read(DIGEST, offset=4, length=3) == b"456"
    assert store.read(DIGEST, offset=8, length=100) == b"89"
    assert b"".join(store.parts(DIGEST)) == CONTENT


@pytest.mark.parametrize(("umask", "modes"), [(0o077, (0o700, 0o600)), (0o027, (0o750, 0o640))])
def test_the_umask_says_whether_the_group_may_read(
    tmp_path: Path, umask: int, modes: tuple[int, int]
) -> None:
    before = os.umask(umask)
    try:
        BlobStore(tmp_path / "blobs").put(CONTENT)
    finally:
        os.umask(before)
    file = tmp_path / "blobs" / DIGEST[:2] / DIGEST
    assert tuple(stat.S_IMODE(path.stat().st_mode) for path in (file.parent, file)) == modes


def test_the_empty_blob(store: BlobStore) -> None:
    digest = store.put(b"")
    assert store.size_bytes(digest) == 0
    assert b"".join(store.parts(digest)) == b""


def test_wrong_content_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError), store.writer(DIGEST) as writer:
        writer.write(b"012345678X")
        writer.finish()
    assert files(tmp_path / "blobs") == []


def test_too_much_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    with pytest.raises(TooLargeError), store.writer(DIGEST) as writer:
        for _ in range(11):
            writer.write(b"x" * 100)
    assert files(tmp_path / "blobs") == []


def test_a_sender_that_goes_away_leaves_nothing(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(DIGEST) as writer:
        writer.write(CONTENT)
    assert store.size_bytes(DIGEST) is None
    assert files(tmp_path / "blobs") == []


def test_what_a_killed_process_left_is_removed(store: BlobStore, tmp_path: Path) -> None:
    store.put(CONTENT)
    (tmp_path / "blobs/incoming/half").write_bytes(b"x")
    assert BlobStore(tmp_path / "blobs").size_bytes(DIGEST) == 10
    assert files(tmp_path / "blobs") == [f"{DIGEST[:2]}/{DIGEST}"]


def test_what_another_process_writes_now_is_left_to_it(store: BlobStore, tmp_path: Path) -> None:
    with store.writer(DIGEST) as writer:
        writer.write(CONTENT[:5])
        again = BlobStore(tmp_path / "blobs")
        writer.write(CONTENT[5:])
        writer.finish()
    assert again.size_bytes(DIGEST) == 10
    assert files(tmp_path / "blobs") == [f"{DIGEST[:2]}/{DIGEST}"]


def test_what_is_being_written_is_left_to_its_writer_until_it_has_its_name(
    store: BlobStore, tmp_path: Path
) -> None:
    place = tmp_path / "blobs" / DIGEST[:2] / DIGEST
    place.mkdir(parents=True)  # so that the file does not get its name
    with store.writer(DIGEST) as writer:
        writer.write(CONTENT)
        with pytest.raises(StorageError):
            writer.finish()
        BlobStore(tmp_path / "blobs")  # another controller starts
        place.rmdir()
        writer.finish()
    assert store.read(DIGEST, length=100) == CONTENT


def test_unknown_blobs(store: BlobStore) -> None:
    assert store.size_bytes(DIGEST) is None
    with pytest.raises(UnknownBlobError):
        store.read(DIGEST, length=1)
    with pytest.raises(UnknownBlobError):
        store.parts(DIGEST)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 65, "a/" * 32])
def test_a_name_that_is_no_digest_reaches_no_file(store: BlobStore, name: str) -> None:
    for act in (store.size_bytes, store.writer, store.parts):
        with pytest.raises(WireFormatError):
            act(name)
    with pytest.raises(WireFormatError):
        store.read(name, length=1)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        BlobStore(tmp_path / "file" / "blobs")
    assert "\n" not in str(caught.value)
