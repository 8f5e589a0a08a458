"""What is damaged of the version before comes again, so that there is a way back."""

from __future__ import annotations

import io
import itertools
import threading
from pathlib import Path

import pytest

from agent.errors import StoppedError
from agent.install.mending import Mending
from agent.install.repair_pace import REPAIR_MAX_S, REPAIR_MIN_S
from agent.install.thread import Installs
from agent.log import Log
from tests.simulators.device import SimulatedDevice
from tests.simulators.packages import SignedPackage, two_variants
from tests.simulators.patience import finished, until
from wire.delivery import Chunk
from wire.package.manifest import MANIFEST_FILE

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
BEST = "variants/best/model.json"


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the new package serves and the old one is kept."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.install(2, NEW)
    device.heard.events.clear()
    device.heard.reports.clear()
    return device


def file(device: SimulatedDevice, package: SignedPackage, path: str) -> Path:
    return device.slots.directory(package.digest) / path


def damage(device: SimulatedDevice, package: SignedPackage = OLD, path: str = BEST) -> None:
    """Damage a file, and let the device know."""
    place = file(device, package, path)
    content = bytearray(place.read_bytes())
    content[0] ^= 1
    place.write_bytes(content)
    device.damage.note(package.digest, f"{path} differs", ("best",), found="scrub")


def told(device: SimulatedDevice) -> list[str]:
    return [reason for kind, reason, _ in device.heard.events if kind == "damage"]


def test_a_damaged_file_of_the_version_before_is_fetched_again_and_no_other(
    device: SimulatedDevice,
) -> None:
    wanted: set[str] = set()

    def note(chunk: Chunk) -> Chunk:
        wanted.add(chunk.sha256)
        return chunk

    device.server.tamper = note
    damage(device)
    assert device.mending.is_due()
    device.mending.run()
    assert wanted == {each.sha256 for each in OLD.index.files if each.path == BEST}
    assert file(device, OLD, BEST).read_bytes() == OLD.files[BEST]
    assert device.damage.of(OLD.digest) is None
    assert told(device) == [f"{BEST} differs", "digits:1.0.0 is whole again"]
    assert device.heard.reports == [], "nothing was installed"
    assert device.adaptation.active() == (NEW.digest, "best")
    assert not device.mending.is_due()


def test_the_way_back_works_after_it(device: SimulatedDevice) -> None:
    damage(device)
    device.mending.run()
    device.bad_golden.add("newer")
    device.install(3, two_variants("3.0.0", best="newer"))
    device.install(4, OLD)
    assert device.adaptation.active() == (OLD.digest, "best")


def test_what_is_not_the_version_before_is_left_to_the_repair(device: SimulatedDevice) -> None:
    damage(device, NEW)
    assert not device.mending.is_due()
    device.mending.run()
    assert device.damage.of(NEW.digest) == f"{BEST} differs"


def test_nothing_is_mended_while_something_is_installed(device: SimulatedDevice) -> None:
    damage(device)
    newer = two_variants("3.0.0", best="newer")
    device.server.add(*newer.blobs)
    device.accept(3, newer)
    assert not device.mending.is_due()


@pytest.mark.parametrize("lost", [True, False], ids=["its index", "the blob"])
def test_a_try_that_fails_is_told_once_and_rests_ever_longer(
    device: SimulatedDevice, *, lost: bool
) -> None:
    damage(device)
    if lost:
        file(device, OLD, MANIFEST_FILE).unlink()
    else:
        device.server.blobs.clear()
    rest_s, ran_s = REPAIR_MIN_S, []
    for _ in range(10):
        while not device.mending.is_due():
            device.clock.advance(1.0)
        device.mending.run()
        ran_s.append(device.clock.monotonic_s())
    for before_s, after_s in itertools.pairwise(ran_s):
        rest_s = min(2 * rest_s, REPAIR_MAX_S)
        assert after_s - before_s >= rest_s
    assert rest_s == REPAIR_MAX_S
    assert len(told(device)) == 2
    assert told(device)[1].startswith("the version before stays damaged for now: ")


def test_a_stop_ends_it(device: SimulatedDevice) -> None:
    damage(device)
    device.interrupts.stop()
    with pytest.raises(StoppedError):
        device.mending.run()
    assert device.damage.of(OLD.digest) is not None


def test_a_newer_desired_state_goes_first(device: SimulatedDevice) -> None:
    damage(device)
    device.interrupts.supersede()
    device.mending.run()
    device.interrupts.clear_superseded()
    assert device.damage.of(OLD.digest) is not None
    assert told(device) == [f"{BEST} differs"]
    assert device.mending.is_due()


def test_the_thread_of_the_installs_mends_and_has_time_for_more(device: SimulatedDevice) -> None:
    damage(device)
    idle = threading.Event()
    installs = installs_of(device, device.mending, idle)
    thread = threading.Thread(target=installs.run)
    thread.start()
    try:
        until(lambda: device.damage.of(OLD.digest) is None, "the old package is whole")
        until(idle.is_set, "it has time")
    finally:
        device.interrupts.stop()
        finished(thread)


def installs_of(device: SimulatedDevice, mending: Mending, idle: threading.Event) -> Installs:
    model = device.models["digits"]
    return Installs(
        model.machine,
        model.store,
        device.slots,
        device.interrupts,
        Log(device.clock, io.StringIO()),
        model.installer.remove,
        mending=mending,
        idle=idle.set,
    )
