"""What was learnt of the battery outlasts a restart; a damaged file costs only what was learnt."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.app.learnt_file import FILE, MAX_BYTES, SAVE_S, LearntFile
from agent.sealed import seal
from agent.select.battery import BatteryFit
from agent.select.learnt import Learnt
from agent.select.reach import budget
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard
from wire.codec import sha256_hex
from wire.health import HealthSnapshot


def lived(hours: float) -> BatteryFit:
    """Let a board of 2 W and 4 W more draw from a battery of 20 Wh."""
    fit, left_j = BatteryFit(), 20 * 3600.0
    for minute in range(int(hours * 60)):
        load = (0.1, 0.5)[minute % 2]
        watts = 2.0 + 4.0 * load
        left_j -= watts * 60.0
        health = HealthSnapshot(
            at_s=minute * 60.0,
            battery_discharging=True,
            battery_ratio=left_j / 72_000.0,
            battery_energy_j=left_j,
            power_mw=watts * 1000.0,
        )
        fit = fit.update(health, load, 60.0, demand_per_s=2.0)
    return fit


LEARNT = Learnt.of(lived(3.0))


class Rig:
    def __init__(self, directory: Path) -> None:
        self.path, self.clock, self.heard = directory / FILE, FakeClock(), Heard([], [])
        self.file = LearntFile(directory, self.heard, self.clock)

    @property
    def told(self) -> list[str]:
        return [reason for kind, reason, _ in self.heard.events if kind == "storage"]


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.clock.advance(SAVE_S)
    rig.file.keep(LEARNT)
    again = Rig(tmp_path)
    assert again.file.load() == LEARNT
    assert rig.told == again.told == []
    assert rig.path.stat().st_size < MAX_BYTES / 4
    assert rig.path.stat().st_mode & 0o777 == 0o600


def test_a_device_that_starts_with_it_needs_one_reading_of_the_charge() -> None:
    fit = LEARNT.fit().update(
        HealthSnapshot(at_s=0.0, battery_ratio=0.5, battery_energy_j=36_000.0), 0.3, 60.0
    )
    assert budget(fit, 3.5 * 3600.0) == pytest.approx(0.15, abs=0.05)
    assert budget(BatteryFit(ratio=0.5, energy_j=36_000.0), 3600.0) is None


def test_a_new_device_has_none_and_says_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.file.load() == Learnt()
    assert rig.told == []
    rig.clock.advance(SAVE_S)
    rig.file.keep(Learnt())
    assert not rig.path.exists(), "nothing is kept of nothing"


def test_it_is_written_seldom(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.file.keep(LEARNT)
    assert not rig.path.exists()
    rig.clock.advance(SAVE_S)
    rig.file.keep(LEARNT)
    written = rig.path.read_bytes()
    rig.clock.advance(SAVE_S / 2)
    rig.file.keep(Learnt.of(lived(4.0)))
    assert rig.path.read_bytes() == written


def test_a_policy_that_learns_nothing_leaves_what_was_learnt(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.clock.advance(SAVE_S)
    rig.file.keep(LEARNT)
    rig.clock.advance(SAVE_S)
    rig.file.keep(Learnt())
    assert rig.file.load() == LEARNT


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda data: data[:-1], "does not match its checksum"),
        (lambda data: data[:70] + b"7" + data[71:], "does not match its checksum"),
        (lambda _: b"", "does not match its checksum"),
        (lambda data: data + b" " * MAX_BYTES, "does not match its checksum"),
        (lambda _: sealed(b'"version":2}'), "not a valid Learnt"),
        (lambda _: seal(Learnt(slope=-1.0)), "negative or too great"),
        (lambda _: sealed(b'"demands":{"slots":[{}]}}'), "a day has not 48 half hours"),
    ],
    ids=["cut", "changed", "empty", "long", "newer", "impossible", "short-day"],
)
def test_a_damaged_file_is_learnt_anew_with_one_event(
    tmp_path: Path, damage: object, fault: str
) -> None:
    rig = Rig(tmp_path)
    rig.clock.advance(SAVE_S)
    rig.file.keep(LEARNT)
    assert callable(damage)
    rig.path.write_bytes(damage(rig.path.read_bytes()))
    assert rig.file.load() == Learnt()
    assert len(rig.told) == 1
    assert fault in rig.told[0]
    assert "is learnt anew" in rig.told[0]


def test_a_directory_that_cannot_be_written_is_told_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "gone")
    for _ in range(3):
        rig.clock.advance(SAVE_S)
        rig.file.keep(LEARNT)
    assert len(rig.told) == 1
    assert "cannot write learnt.json" in rig.told[0]


def sealed(body: bytes) -> bytes:
    return b'{"checksum":"' + sha256_hex(body).encode() + b'",' + body


@given(data=st.binary(max_size=300), is_sealed=st.booleans())
def test_whatever_the_file_holds_the_agent_starts(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, is_sealed: bool
) -> None:
    rig = Rig(tmp_path_factory.mktemp("state"))
    rig.path.write_bytes(sealed(data) if is_sealed else data)
    assert not rig.file.load().faults()


@pytest.mark.parametrize("name", ["capacity_j", "idle"])
def test_a_battery_that_holds_or_gives_nothing_is_no_knowledge(tmp_path: Path, name: str) -> None:
    # A division by it would end the agent at each start.
    rig = Rig(tmp_path)
    rig.path.write_bytes(seal(msgspec.structs.replace(LEARNT, **{name: 0.0})))
    assert rig.file.load() == Learnt()
    assert len(rig.told) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_what_no_restart_would_take_does_not_replace_what_is_kept(
    tmp_path: Path, value: float
) -> None:
    rig = Rig(tmp_path)
    rig.clock.advance(SAVE_S)
    rig.file.keep(LEARNT)
    rig.clock.advance(SAVE_S)
    rig.file.keep(msgspec.structs.replace(LEARNT, slope=value))
    again = Rig(tmp_path)
    assert again.file.load() == LEARNT
    assert again.told == []
