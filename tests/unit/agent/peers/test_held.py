"""Which blobs a device has for others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.install.slots import Slots
from agent.peers.held import HeldBlobs
from tests.simulators.packages import (
    STRANGER_KEY,
    TRUST,
    SignedPackage,
    package,
    two_variants,
    variant,
)
from wire.codec import sha256_hex
from wire.package.index import ENVELOPE_FILE

MADE = two_variants("1", best="the best", small="the small")
BEST = sha256_hex(b"the best")
PATH = "variants/best/model.json"


class Storage:
    """The packages of a device."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.slots = Slots(root)
        self.held = HeldBlobs(self.slots, TRUST)

    def put(self, made: SignedPackage, where: str = "packages") -> Path:
        directory = self.root / where / made.digest
        made.write_to(directory)
        return directory

    def read(self, sha256: str = BEST) -> bytes | None:
        with self.held.opened(sha256) as held:
            if held is None:
                return None
            content = held.file.read()
            assert len(content) == held.size_bytes
            return content


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path / "state")


def test_each_file_of_a_whole_package_is_there(storage: Storage) -> None:
    storage.put(MADE)
    for content in MADE.files.values():
        assert storage.read(sha256_hex(content)) == content
    assert storage.read("0" * 64) is None


def test_a_package_that_comes_has_what_is_finished(storage: Storage) -> None:
    directory = storage.put(MADE, "incoming")
    (directory / "variants/small/model.json").unlink()
    assert storage.read() == b"the best"
    assert storage.read(sha256_hex(b"the small")) is None
    assert storage.slots.arriving() == (MADE.digest,)
    storage.slots.stage(MADE.digest)
    assert storage.read() == b"the best"
    assert storage.slots.arriving() == ()


def test_a_package_that_is_being_removed_has_nothing(storage: Storage) -> None:
    directory = storage.put(MADE)
    assert storage.read() == b"the best"
    directory.rename(storage.root / "incoming" / f"{MADE.digest}.leaving")
    assert storage.read() is None


def test_another_package_gives_what_one_has_lost(storage: Storage) -> None:
    both = package("2", [(variant("best"), b"the best"), (variant("other"), b"other")])
    one, two = storage.put(MADE), storage.put(both)
    (one / PATH).unlink()
    assert storage.read() == b"the best"
    (two / PATH).write_bytes(b"the best and more")
    assert storage.read() is None, "a file of another size is not the blob"


@pytest.mark.parametrize("kept", ["a-ort", "b-openvino"])
def test_a_file_of_two_variants_is_there_if_one_of_them_is(storage: Storage, kept: str) -> None:
    names = ("a-ort", "b-openvino")
    directory = storage.put(package("1", [(variant(name), b"the same model") for name in names]))
    for name in names:
        if name != kept:
            (directory / f"variants/{name}/model.json").unlink()
    assert storage.read(sha256_hex(b"the same model")) == b"the same model"


@pytest.mark.parametrize("kind", ["file", "directory", "package", "pipe"])
def test_no_link_is_followed_and_no_pipe_is_waited_for(storage: Storage, kind: str) -> None:
    directory = storage.put(MADE)
    outside = storage.root.parent / "outside"
    place = {"directory": directory / "variants", "package": directory}.get(kind, directory / PATH)
    place.rename(outside)
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(outside)
    assert (directory / PATH).exists()
    assert storage.read() is None


def test_a_package_without_a_valid_index_gives_nothing(storage: Storage) -> None:
    directory = storage.put(package("1", [(variant("best"), b"the best")], key=STRANGER_KEY))
    assert storage.read() is None
    (directory / ENVELOPE_FILE).unlink()
    assert storage.read() is None


def test_an_index_that_comes_later_or_is_mended_counts(storage: Storage) -> None:
    directory = storage.put(MADE, "incoming")
    (directory / ENVELOPE_FILE).write_bytes(b"half of it")
    assert storage.read() is None
    (directory / ENVELOPE_FILE).write_bytes(MADE.envelope)
    assert storage.read() == b"the best"


def test_a_package_under_another_name_gives_nothing(storage: Storage) -> None:
    MADE.write_to(storage.root / "packages" / ("0" * 64))
    assert storage.read() is None
