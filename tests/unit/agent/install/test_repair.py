"""What a device does about a release that was installed and is lost or damaged since."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import FetchError
from agent.install.repair_pace import REPAIR_MAX_S, REPAIR_MIN_S
from agent.install.states import State
from tests.simulators.device import PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import SignedPackage, two_variants
from wire.delivery import Chunk
from wire.health import HealthSnapshot
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE
from wire.policy import PolicySpec

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
COOL = HealthSnapshot(at_s=0, headroom=0.1, memory_available_bytes=2**30)
TRIES_S = 120.0
"""More than the attempts of one repair take, with the waits between them."""


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the new package serves and the old one is kept."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.install(2, NEW)
    device.heard.reports.clear()
    device.heard.events.clear()
    return device


def file(device: SimulatedDevice, package: SignedPackage, path: str) -> Path:
    return device.slots.directory(package.digest) / path


def flip(path: Path) -> None:
    """Change one byte of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lose_new(device: SimulatedDevice) -> None:
    """Damage the new package so that it cannot serve after a restart."""
    flip(file(device, NEW, "manifest.json"))
    device.reboot()


def repair(device: SimulatedDevice) -> bool:
    """Look once, as the install thread does; do what is to be done."""
    begun = device.machine.repair()
    device.machine.run()
    return begun


def events(device: SimulatedDevice, kind: str) -> list[str]:
    return [reason for of, reason, _ in device.heard.events if of == kind]


def test_nothing_is_repaired_that_is_whole(device: SimulatedDevice) -> None:
    assert not repair(device)
    device.reboot()
    assert not repair(device)
    assert not device.heard.reports


@pytest.mark.parametrize("path", [MANIFEST_FILE, ENVELOPE_FILE])
def test_a_flipped_byte_in_the_only_package_is_healed(tmp_path: Path, path: str) -> None:
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, NEW)
    flip(file(device, NEW, path))
    device.reboot()
    assert device.adaptation.active() == (None, None)
    assert repair(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert set(device.served) == {b"new best"}
    assert events(device, "drift") == ["digits:2.0.0 is installed again: no package serves"]
    assert not repair(device)


def test_the_previous_package_serves_until_the_lost_one_is_back(device: SimulatedDevice) -> None:
    lose_new(device)
    assert device.adaptation.active()[0] == OLD.digest, "better old than wrong"
    assert repair(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert device.heard.reports[0].outcome == "running"
    assert device.heard.reports[0].active == OLD.digest
    last = device.heard.reports[-1]
    assert (last.outcome, last.revision, last.active) == ("succeeded", 2, NEW.digest)
    assert events(device, "drift") == [
        "digits:2.0.0 is installed again: digits:1.0.0 serves instead"
    ]


def test_all_that_is_missing_comes_back_and_nothing_else_is_fetched(
    device: SimulatedDevice,
) -> None:
    wanted: list[str] = []

    def note(chunk: Chunk) -> Chunk:
        wanted.append(chunk.sha256)
        return chunk

    file(device, NEW, "variants/small/model.json").unlink()
    flip(file(device, NEW, "manifest.json"))
    device.reboot()
    device.server.tamper = note
    assert repair(device)
    missing = {"variants/small/model.json", "manifest.json"}
    assert set(wanted) == {f.sha256 for f in NEW.index.files if f.path in missing}


def test_a_damaged_variant_gives_way_to_a_whole_one_and_comes_back(
    device: SimulatedDevice,
) -> None:
    flip(file(device, NEW, "variants/best/model.json"))
    device.reboot()
    assert device.adaptation.active() == (NEW.digest, "small")
    device.adaptation.policy = PolicySpec(kind="rules")
    assert repair(device)
    device.clock.advance(60)
    device.adaptation.tick(COOL)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert "variants/best/model.json" in events(device, "drift")[0]


def test_damage_that_a_switch_finds_is_healed(device: SimulatedDevice) -> None:
    flip(file(device, NEW, "variants/small/model.json"))
    assert not repair(device), "nobody has looked"
    device.adaptation.pinned = "small"
    device.adaptation.tick(COOL)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert repair(device)
    device.adaptation.tick(COOL)
    assert device.adaptation.active() == (NEW.digest, "small")


def test_each_fault_is_told_once_until_it_is_mended(device: SimulatedDevice) -> None:
    flip(file(device, NEW, "variants/small/model.json"))
    fault = "variants/small/model.json of digits:2.0.0 differs from the signed file"
    device.adaptation.pinned = "small"
    device.adaptation.tick(COOL)
    device.clock.advance(600)
    device.adaptation.tick(COOL)  # its rest is over, and it is tried again
    assert events(device, "damage") == [fault]
    told = next(data for kind, _, data in device.heard.events if kind == "damage")
    assert told == {"package": NEW.digest, "variants": ["small"], "found": "start"}
    assert repair(device)
    flip(file(device, NEW, "variants/small/model.json"))
    device.adaptation.tick(COOL)
    assert events(device, "damage") == [fault, fault]


def test_after_a_repair_nothing_serves_that_was_loaded_from_a_damaged_file(
    device: SimulatedDevice,
) -> None:
    device.served.clear()
    for variants, served in ((["small"], []), (["small", "best"], [b"new best"])):
        device.damage.note(NEW.digest, "something differs", variants, found="scrub")
        device.clock.advance(REPAIR_MAX_S)
        assert repair(device)
        assert device.served == served
        assert device.damage.of(NEW.digest) is None
    assert device.serving.running == 1


def refuse_fetching(where: str, state: State) -> None:
    if (where, state) == ("effect", State.FETCHING):
        raise FetchError("no chunk came")


def test_a_repair_that_fails_leaves_what_serves_and_rests_ever_longer(
    device: SimulatedDevice,
) -> None:
    lose_new(device)
    device.hook = refuse_fetching
    begun_s: list[float] = []
    for _ in range(10):
        while not device.machine.repair():
            device.clock.advance(1.0)
        begun_s.append(device.clock.monotonic_s())
        device.machine.run()
        assert device.adaptation.active()[0] == OLD.digest
        last = device.heard.reports[-1]
        assert (last.outcome, last.error_code, last.active) == ("failed", "agent.fetch", OLD.digest)
    assert device.slot.current() == NEW.digest, "after a restart it is tried first"
    rest_s = REPAIR_MIN_S
    for before_s, after_s in itertools.pairwise(begun_s):
        assert rest_s <= after_s - before_s <= max(rest_s, TRIES_S) + 1
        rest_s = min(2 * rest_s, REPAIR_MAX_S)
    assert rest_s == REPAIR_MAX_S
    device.hook = nothing
    device.clock.advance(REPAIR_MAX_S)
    assert repair(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert not device.store.state.repairing


def test_a_failed_repair_goes_on_after_a_restart(device: SimulatedDevice) -> None:
    lose_new(device)
    device.hook = refuse_fetching
    assert repair(device)
    device.hook = nothing
    device.reboot()
    repair(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    last = device.heard.reports[-1]
    assert (last.outcome, last.active) == ("succeeded", NEW.digest)
    assert not device.store.state.repairing


def test_a_release_that_failed_is_not_repaired(device: SimulatedDevice) -> None:
    device.bad_golden.add("old best")
    device.install(3, OLD)
    assert device.heard.reports[-1].outcome == "failed"
    assert not repair(device)
    device.reboot()
    assert not repair(device)


def test_a_newer_desired_state_ends_a_repair(device: SimulatedDevice) -> None:
    lose_new(device)

    def newer(where: str, at: State) -> None:
        if (where, at) == ("effect", State.FETCHING):
            device.hook = nothing
            device.interrupts.supersede()

    device.hook = newer
    assert repair(device)
    assert device.adaptation.active()[0] == OLD.digest
    assert not [report for report in device.heard.outcomes if report.revision == 2]
    device.interrupts.clear_superseded()
    device.install(3, OLD)
    assert device.adaptation.active()[0] == OLD.digest
    assert not device.store.state.repairing
    assert not repair(device)


def test_a_success_that_was_lost_is_not_reported_again(device: SimulatedDevice) -> None:
    device.accept(3, NEW, rollout="r")
    lose_new(device)
    device.heard.reports.clear()
    device.accept(3, NEW, rollout="r")
    assert not device.heard.reports, "the repair will say what came of it"
    device.accept(4, NEW, rollout="r", policy=PolicySpec(kind="adaptive"))
    assert not device.heard.reports
    assert repair(device)
    assert device.heard.reports[-1].revision == 4
    assert device.adaptation.active() == (NEW.digest, "best")


@pytest.mark.parametrize("state", [s for s in State if s is not State.REVERTING])
@pytest.mark.parametrize("where", ["effect", "effected", "save", "saved"])
def test_a_power_cut_during_a_repair(device: SimulatedDevice, state: State, where: str) -> None:
    lose_new(device)

    def hook(at: str, now: State) -> None:
        if (at, now) == (where, state):
            device.hook = nothing
            raise PowerCut

    device.hook = hook
    try:
        repair(device)
    except PowerCut:
        device.reboot()
    device.hook = nothing
    repair(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert set(device.served) <= {b"old best", b"new best"}
    assert not device.store.state.repairing
    assert not repair(device)


def test_no_link_leads_a_repair_out_of_its_package(device: SimulatedDevice, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    model = file(device, NEW, "variants/best/model.json")
    model.unlink()
    model.symlink_to(outside)
    device.reboot()
    assert repair(device)
    assert outside.read_bytes() == b"mine"
    assert not model.is_symlink()
    assert model.read_bytes() == b"new best"


def make_directory(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def make_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_bytes(b"a file")


@pytest.mark.parametrize(
    ("path", "damage"),
    [
        (MANIFEST_FILE, make_directory),
        (ENVELOPE_FILE, make_directory),
        ("variants/best/model.json", make_directory),
        ("variants/best", make_file),
        ("variants", make_file),
        (".", make_file),
    ],
)
def test_things_of_another_kind_in_the_way_are_removed(
    device: SimulatedDevice, path: str, damage: Callable[[Path], None]
) -> None:
    damage(file(device, NEW, path))
    device.reboot()
    assert repair(device)
    device.adaptation.policy = PolicySpec(kind="rules")
    device.clock.advance(60)
    device.adaptation.tick(COOL)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert not device.store.state.repairing


def test_directories_of_the_store_that_are_files_are_made_anew(device: SimulatedDevice) -> None:
    for name in ("incoming", "parts"):
        make_file(device.root / name)
    flip(file(device, NEW, "manifest.json"))
    (device.root / "serving" / "digits").unlink()
    (device.root / "serving" / "digits").mkdir()
    device.reboot()
    assert repair(device)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert device.slot.current() == NEW.digest


@pytest.mark.parametrize("count", [1, 2], ids=["only package", "a previous one is kept"])
def test_the_installed_package_serves_though_current_is_lost(tmp_path: Path, count: int) -> None:
    device = SimulatedDevice(tmp_path)
    device.boot()
    for revision, package in enumerate((OLD, NEW)[-count:], start=1):
        device.install(revision, package)
    (device.root / "serving" / "digits").unlink()
    device.reboot()
    assert device.adaptation.active() == (NEW.digest, "best")
    assert device.slot.current() == NEW.digest
    assert not repair(device)


def test_a_package_that_is_not_proven_yet_does_not_serve_though_nothing_else_does(
    tmp_path: Path,
) -> None:
    device = SimulatedDevice(tmp_path)
    device.boot()

    def cut(where: str, state: State) -> None:
        if (where, state) == ("effect", State.PROBING):
            raise PowerCut

    device.hook = cut
    with pytest.raises(PowerCut):
        device.install(1, NEW)
    device.lose_power()
    device.boot()
    assert device.slots.has(NEW.digest)
    assert device.adaptation.active() == (None, None)
