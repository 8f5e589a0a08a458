"""A fleet whose root keys are stolen or lost begins anew, and its devices follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.trust.keeper import MetadataTrust
from controller.app.existing_trust import REPLACED, add_metadata, begin_anew
from controller.app.home import ROOT_FILE, offline_directory
from controller.app.new_home import HomeOptions, create_home
from controller.broker.errors import HomeError
from controller.metadata.documents import Authored
from controller.metadata.online import OnlineSigner, sign_online
from controller.metadata.store import FOLDER, MetadataStore, authored_of
from telemetry.device.recorder import Recorder
from tests.simulators.stack import fleet_here
from wire.clock import SystemClock
from wire.errors import FleetError
from wire.metadata import MetadataFile
from wire.trust.roles import SNAPSHOT, TIMESTAMP

CLOCK = SystemClock()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    create_home(made, HomeOptions(clear_text=True))
    return made


def authored(home: Path) -> Authored:
    return MetadataStore(home / FOLDER).authored()


def files(home: Path) -> tuple[MetadataFile, ...]:
    """Return what a controller with this directory sends."""
    snapshot, timestamp = (
        OnlineSigner(role, (home / "keys" / f"{role}.key").read_bytes())
        for role in (SNAPSHOT, TIMESTAMP)
    )
    made = sign_online(
        authored(home), None, (snapshot, timestamp), now_s=CLOCK.now_s(), life_s=86_400.0
    )
    return (*authored(home).files(), *made.content)


def test_devices_follow_a_root_that_takes_the_place_of_one_that_nobody_can_change(
    home: Path, tmp_path: Path
) -> None:
    old, root = files(home), tmp_path / "root.json"
    root.write_bytes((home / ROOT_FILE).read_bytes())

    def start() -> MetadataTrust:
        return MetadataTrust(root, "f", tmp_path / "trust", Recorder(CLOCK), CLOCK)

    device = start()
    assert device.receive(old, now=True)
    director = device.director

    made, aside = begin_anew(home, tmp_path / "offline-2")
    assert made == home / ROOT_FILE
    assert all((aside / name).exists() for name in REPLACED)
    assert (tmp_path / "offline-2" / "root-3.key").stat().st_mode & 0o777 == 0o600
    new = files(home)
    assert authored_of(new).fleet != authored_of(old).fleet
    assert not device.receive(new, now=True)

    root.write_bytes(made.read_bytes())
    device = start()
    assert not device.director.keys
    assert device.receive(new, now=True)
    assert device.director == director
    assert not device.receive(old, now=True)


def test_nothing_is_replaced_or_left_by_halves(home: Path, tmp_path: Path) -> None:
    before = authored(home).files()
    with pytest.raises(HomeError, match="has trusted metadata already") as caught:
        add_metadata(home, None)
    assert "--anew --offline-keys DIR" in caught.value.remedy
    with pytest.raises(HomeError, match="file exists"):
        begin_anew(home, offline_directory(home))
    assert authored(home).files() == before
    director = (home / "keys" / "director.key").rename(tmp_path / "director.key")
    with pytest.raises(FleetError, match=r"director\.key"):
        begin_anew(home, tmp_path / "offline-2")
    director.rename(home / "keys" / "director.key")
    assert authored(home).files() == before
    assert not (tmp_path / "offline-2").exists()
    for name in REPLACED:
        (home / name).rename(tmp_path / Path(name).name)
    with pytest.raises(HomeError, match="has no trusted metadata"):
        begin_anew(home, tmp_path / "offline-2")
    # The offline keys of before are in the way: nothing of the new ones stays.
    known = {path.name for path in offline_directory(home).iterdir()}
    with pytest.raises(HomeError, match="file exists"):
        add_metadata(home, None)
    assert {path.name for path in offline_directory(home).iterdir()} == known
    assert not MetadataStore(home / FOLDER).exists


def test_the_command_asks_for_a_place_for_the_new_keys(home: Path) -> None:
    done = fleet_here("key", "init", str(home), "--anew")
    assert (done.code, "add --offline-keys DIR" in done.err) == (2, True)
