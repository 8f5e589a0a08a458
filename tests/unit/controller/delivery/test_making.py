"""What waits to be made is bounded, and one device does not take the places of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.delivery.encoding import Encoding
from controller.delivery.making import MAX_OF_DEVICE, MAX_WAITING, Maker
from controller.domain.deltas import Package, Way
from controller.services.blobs import BlobStore
from controller.store.database import Database
from tests.simulators.clock import FakeClock
from wire.codec import sha256_hex
from wire.package.index import FileEntry, PackageIndex
from wire.package.manifest import Manifest


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[Maker]:
    """One that is not started: all that is asked for waits."""
    blobs = BlobStore(tmp_path / "blobs")
    database = Database(f"sqlite:///{tmp_path / 'fleet.db'}")
    yield Maker(database, blobs, Encoding(tmp_path / "making", blobs), 2**30, FakeClock())
    database.close()


def way(name: str) -> Way:
    """Return a way to a file of its own."""
    entry = FileEntry(path=name, size_bytes=2**20, sha256=sha256_hex(name.encode()), chunks=())
    index = PackageIndex(name="m", version="1", files=(entry,))
    manifest = Manifest(name="m", version="1", variants=())
    return Way(target=entry, package=Package(index=index, manifest=manifest))


def test_one_device_takes_some_of_the_places_only(maker: Maker) -> None:
    asked = [maker.ask("greedy", way(f"{number}.bin")) for number in range(MAX_WAITING)]
    assert asked.count(None) == MAX_WAITING - MAX_OF_DEVICE
    assert maker.ask("other", way("one.bin")) is not None
    assert maker.ask("greedy", way("0.bin")) is not None, "it waits already"
    assert maker.ask("greedy", way("one.bin")) is not None, "another device has asked for it"


def test_many_devices_fill_the_places_and_no_more(maker: Maker) -> None:
    places = [(f"cam-{number % 16}", way(f"{number}.bin")) for number in range(MAX_WAITING)]
    assert all(maker.ask(device, each) is not None for device, each in places)
    assert maker.ask("other", way("one.bin")) is None
