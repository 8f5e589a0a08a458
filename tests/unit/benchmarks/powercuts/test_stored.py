"""What the benchmark of power cuts says of what lies on a device."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agent.install.records import ModelRecord
from agent.install.slots import Slots
from agent.install.store import STATE_FILE, FileStateStore
from benchmarks.powercuts.releases import BEST, FILES, NAME, OF_NOBODY, Releases, model
from benchmarks.powercuts.stored import (
    calm_listing,
    faults_at_rest,
    faults_when_cut,
    record_of,
    slot_of,
)
from tests.simulators.packages import RELEASE_KEY

BEST_FILE = f"variants/{BEST}/{FILES[BEST]}"


@pytest.fixture(scope="module")
def releases() -> Releases:
    """Make two releases."""
    made = Releases()
    for number in (1, 2):
        made.make(number, RELEASE_KEY)
    return made


@pytest.fixture
def device(tmp_path: Path, releases: Releases) -> Path:
    """Make the state of a device that serves the second release and had the first before."""
    slots = Slots(tmp_path)
    before, now = releases.packages.values()
    for made in (before, now):
        made.write_to(tmp_path / "packages" / made.digest)
    slots.of(NAME).switch(now.digest)
    store = FileStateStore(tmp_path)
    store.accept(2, b"")
    store.update_model(NAME, revision=2, target=now.ref, previous=before.digest)
    return tmp_path


def serving(device: Path) -> Path:
    """Return the directory of the package that serves."""
    return device / "packages" / str(slot_of(device))


def test_a_whole_device_has_no_fault(device: Path, releases: Releases) -> None:
    assert faults_when_cut(device, releases) == []
    assert faults_at_rest(device, calm_listing(device), releases) == []


def test_a_device_without_a_record_has_an_empty_one(tmp_path: Path) -> None:
    assert record_of(tmp_path) == ModelRecord()


def test_a_model_that_nobody_signed_is_told(device: Path, releases: Releases) -> None:
    (serving(device) / BEST_FILE).write_bytes(model(OF_NOBODY))
    [fault] = faults_when_cut(device, releases)
    assert fault.endswith(f"{BEST_FILE} is not as signed")


def test_a_file_that_a_package_lacks_or_that_it_has_too_much_is_told(
    device: Path, releases: Releases
) -> None:
    (serving(device) / BEST_FILE).rename(serving(device) / "other")
    lacking, more = sorted(faults_when_cut(device, releases), reverse=True)
    assert lacking.endswith(f"{BEST_FILE} is missing")
    assert more.endswith("other was not signed")


def test_a_package_of_nobody_among_the_whole_ones_is_told(device: Path, releases: Releases) -> None:
    (device / "packages" / ("0" * 64)).mkdir()
    [fault] = faults_when_cut(device, releases)
    assert fault.endswith("is of nobody")


def test_a_link_to_a_package_that_is_not_whole_is_told(device: Path, releases: Releases) -> None:
    digest = slot_of(device)
    shutil.move(serving(device), device / "incoming")
    [fault] = faults_when_cut(device, releases)
    assert f"names {str(digest)[:12]}" in fault


def test_a_package_that_is_on_its_way_may_lack_files_but_have_no_wrong_ones(
    device: Path, releases: Releases
) -> None:
    made = next(iter(releases.packages.values()))
    there = device / "incoming" / made.digest / "manifest.json"
    there.parent.mkdir()
    there.write_bytes(made.files["manifest.json"])
    assert faults_when_cut(device, releases) == []
    there.write_bytes(b"{}")
    [fault] = faults_when_cut(device, releases)
    assert fault.endswith("manifest.json is not as signed")


def test_a_record_that_cannot_be_read_is_told(device: Path, releases: Releases) -> None:
    with (device / STATE_FILE).open("ab") as file:
        file.write(b" ")
    [fault] = faults_when_cut(device, releases)
    assert fault.startswith(STATE_FILE)


@pytest.mark.parametrize("name", ["stray", "parts/" + "1" * 64, "incoming/half", "packages/x"])
def test_what_a_calm_device_has_not_is_left_over(
    device: Path, releases: Releases, name: str
) -> None:
    calm = calm_listing(device)
    (device / name).write_bytes(b"12345")
    assert faults_at_rest(device, calm, releases) == [f"left over: {name} (5 bytes)"]


def test_what_a_calm_device_has_and_this_one_lacks_is_missing(
    device: Path, releases: Releases
) -> None:
    (device / "tls.pem").write_bytes(b"{}")
    calm = calm_listing(device)
    (device / "tls.pem").unlink()
    shutil.rmtree(device / "packages" / str(record_of(device).previous))
    faults = faults_at_rest(device, calm, releases)
    assert "missing: tls.pem" in faults
    assert f"missing: packages/{record_of(device).previous}/{BEST_FILE}" in faults


def test_a_file_that_has_grown_far_beyond_a_calm_devices_is_told(
    device: Path, releases: Releases
) -> None:
    calm = calm_listing(device)
    with (device / "floor.json").open("ab") as file:
        file.write(bytes(8192))
    [fault] = faults_at_rest(device, calm, releases)
    assert fault == f"floor.json has {calm['floor.json'] + 8192} bytes, not {calm['floor.json']}"


@pytest.mark.parametrize("there", [True, False])
def test_what_comes_with_time_may_be_there_or_not(
    device: Path, releases: Releases, there: bool
) -> None:
    calm = calm_listing(device) | ({} if there else {"scrub.json": 100})
    if there:
        (device / "scrub.json").write_bytes(bytes(100))
    assert faults_at_rest(device, calm, releases) == []
