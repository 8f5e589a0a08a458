"""A bit flips in any file that a device keeps: it is found, and mended or told; it never serves.

The devices are simulated, but their storage is real. Which bit flips is drawn by chance.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.install.states import State
from tests.integration.test_metadata_attacks import DIGESTS
from tests.integration.test_metadata_attacks import Device as Believer
from tests.simulators.device import PowerCut, SimulatedDevice
from tests.simulators.packages import two_variants
from tests.simulators.repository import Repository
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
NEWEST = two_variants("3.0.0", best="newest best", small="newest small")
GOOD = {
    text.encode()
    for release in ("old", "new", "newest")
    for text in (f"{release} best", f"{release} small")
}


def files_of(root: Path) -> list[Path]:
    """Return all files that have content, in the order of their names."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted(path for path in found if path.stat().st_size)


def flip(path: Path, at: float) -> None:
    """Flip one bit of a file, at a part of its length."""
    content = bytearray(path.read_bytes())
    bit = int(at * 8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a device keeps that has two releases and is fetching a third."""
    device = SimulatedDevice(tmp_path_factory.mktemp("kept"))
    device.boot()
    device.install(1, OLD)
    device.install(2, NEW)

    def cut(where: str, at: State) -> None:
        if (where, at) == ("effect", State.VERIFYING):
            raise PowerCut

    device.hook = cut
    with pytest.raises(PowerCut):
        device.install(3, NEWEST)
    device.lose_power()
    part = device.slots.parts / NEWEST.ref.digest
    part.write_bytes(b"some of a file")
    return device.root


@given(which=st.integers(0, 10_000), at=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_flipped_bit_serves_or_keeps_a_device_from_serving(
    tmp_path_factory: pytest.TempPathFactory, kept: Path, which: int, at: float
) -> None:
    root = tmp_path_factory.mktemp("flipped") / "state"
    shutil.copytree(kept, root, symlinks=True)
    files = files_of(root)
    chosen = files[which % len(files)]
    flip(chosen, at)
    device = SimulatedDevice(root)
    device.boot()
    # While an install runs there is one way back: without its index it serves after the install.
    if not (NEW.digest in chosen.parts and chosen.name in {ENVELOPE_FILE, MANIFEST_FILE}):
        assert device.serving.active is not None
        assert device.serving.active.digest in {OLD.digest, NEW.digest}
    device.server.add(*OLD.blobs, *NEW.blobs, *NEWEST.blobs)
    device.machine.run()
    device.install(4, NEWEST)
    assert device.adaptation.active() == (NEWEST.digest, "best")
    assert set(device.served) <= GOOD
    for path, content in NEWEST.files.items():
        assert (device.slots.directory(NEWEST.digest) / path).read_bytes() == content
    shutil.rmtree(root)


@pytest.fixture
def believer(tmp_path: Path) -> tuple[Believer, Repository]:
    """Return a device that has trusted the second release of a fleet, and that fleet's metadata."""
    fleet = Repository()
    fleet.list("digits", "1.0.0", DIGESTS["1.0.0"])
    device = Believer(tmp_path, fleet)
    assert device.hear(fleet.files())
    device.trust.accept(DIGESTS["1.0.0"], {DIGESTS["1.0.0"]})
    return device, fleet


def test_a_flipped_bit_of_trusted_metadata_makes_a_device_believe_nothing_old_and_ask_again(
    believer: tuple[Believer, Repository],
) -> None:
    device, fleet = believer
    old = fleet.files()
    fleet.now_s += 60.0
    fleet.list("digits", "2.0.0", DIGESTS["2.0.0"])
    fleet.unlist("digits", "1.0.0")
    assert device.hear(fleet.files())
    whole, rng = device.path / "whole", random.Random(7)
    shutil.copytree(device.path / "trust", whole)
    for path in files_of(whole):
        shutil.rmtree(device.path / "trust")
        shutil.copytree(whole, device.path / "trust")
        flip(device.path / "trust" / path.relative_to(whole), rng.random())
        device.start()
        device.hear(old)
        assert not device.may_take("1.0.0"), path.name
        device.hear(fleet.files())
        assert device.may_take("2.0.0"), path.name
