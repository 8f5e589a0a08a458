"""Desired states: only a checked one changes anything, and a device's own policy goes first."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from agent.app.config import AgentConfig
from agent.app.desired_states import DesiredStates
from agent.app.refusals import Refusals
from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE
from agent.install.thread import Installs
from agent.install.workflow import REPAIR_MAX_S
from agent.log import Log
from telemetry.device.recorder import Recorder
from tests.simulators.device import SimulatedDevice
from tests.simulators.packages import STRANGER_KEY, TRUST, desired, two_variants
from wire.codec import sha256_hex
from wire.messages import MAX_REVISION, Refusal
from wire.policy import Objective, PolicySpec

OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
ADAPTIVE = PolicySpec(kind="adaptive", dwell_s=7.0)
BOOT = "this start"


def serving_device(root: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(root)
    device.boot()
    device.install(1, OLD)
    return device


class Rig:
    """Desired states of a device on which the old package serves; no install thread runs."""

    def __init__(
        self,
        root: Path,
        own_policy: PolicySpec | None = None,
        device: SimulatedDevice | None = None,
    ) -> None:
        self.device = device or serving_device(root / "device")
        self.recorder = Recorder(self.device.clock)
        self.told: list[Refusal] = []
        log = Log(self.device.clock, io.StringIO())
        self.installs = Installs(
            self.device.machine, self.device.store, self.device.slots, self.device.interrupts, log
        )
        self.states = DesiredStates(
            AgentConfig(
                device="dev-1", state_dir=root, profile=root, trust=root, policy=own_policy
            ),
            TRUST,
            boot_id=BOOT,
            store=self.device.store,
            adaptation=self.device.adaptation,
            installer=self.device.installer,
            installs=self.installs,
            recorder=self.recorder,
            refusals=Refusals("dev-1", self.told.append, self.recorder, self.device.clock),
        )

    def events(self) -> list[tuple[str, str]]:
        return [(event.kind, event.reason) for event in self.recorder.drain()[1]]


def test_a_checked_desired_state_sets_its_policy_and_waits_to_be_installed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.states.receive(desired(2, NEW, policy=ADAPTIVE)[1])
    assert rig.device.adaptation.policy == ADAPTIVE
    assert rig.installs.revision == 2
    (kind, reason), *others = rig.events()
    assert (kind, reason) == ("policy", "the controller set another policy: adaptive")
    assert not others
    rig.states.receive(desired(3, NEW, policy=ADAPTIVE)[1])
    assert rig.events() == [], "the policy is the same"


def test_the_event_of_a_policy_has_what_was_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    limited = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=100.0))
    rig.states.receive(desired(2, NEW, policy=limited)[1])
    rig.recorder.drain()
    rig.states.receive(desired(3, NEW, policy=ADAPTIVE)[1])
    (event,) = rig.recorder.drain()[1]
    assert event.data == {
        "before": {"dwell_s": 5.0, "objective.deadline_ms": 100.0},
        "changed": {"dwell_s": 7.0, "objective.deadline_ms": None},
        "revision": 3,
    }


def test_a_controller_that_does_not_know_this_start_is_to_be_greeted(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.states.receive(desired(2, NEW, boot_id="another")[1])
    assert rig.states.receive(desired(2, NEW)[1])
    assert not rig.states.receive(desired(2, NEW, boot_id=BOOT)[1])
    assert not rig.states.receive(desired(2, NEW, key=STRANGER_KEY)[1]), "it is nobody's"


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (desired(2, NEW, key=STRANGER_KEY, policy=ADAPTIVE)[1], "0 of 1 needed signatures"),
        (desired(2, NEW, device="dev-2", policy=ADAPTIVE)[1], "dev-2"),
        (desired(1, NEW, policy=ADAPTIVE)[1], "older than the accepted 5"),
    ],
    ids=["of a stranger", "for another device", "older"],
)
def test_what_is_refused_changes_nothing(tmp_path: Path, envelope: bytes, reason: str) -> None:
    rig = Rig(tmp_path)
    rig.device.install(5, OLD)
    before = rig.device.adaptation.policy
    rig.states.receive(envelope)
    ((kind, told),) = rig.events()
    assert kind == "refused"
    assert reason in told
    (refusal,) = rig.told
    assert (refusal.device, refusal.sha256) == ("dev-1", sha256_hex(envelope))
    assert reason in refusal.detail
    assert rig.installs.revision == 5
    assert rig.device.adaptation.policy == before


def test_the_devices_own_policy_goes_before_the_controllers(tmp_path: Path) -> None:
    rig = Rig(tmp_path, own_policy=PolicySpec(dwell_s=1.0))
    before = rig.device.adaptation.policy
    rig.states.receive(desired(2, NEW, policy=ADAPTIVE)[1])
    assert rig.device.adaptation.policy == before
    assert rig.installs.revision == 2
    assert rig.events() == []


def test_a_restart_brings_back_package_pin_and_policy_without_an_event(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.device.machine.accept(*desired(2, OLD, policy=ADAPTIVE))
    rig.device.machine.run()
    rig.device.store.update(pinned="small")
    rig.device.adaptation.withdraw()
    assert rig.states.restore() == (OLD.digest, "small")
    assert rig.device.adaptation.policy == ADAPTIVE
    assert rig.events() == []


def test_a_kept_desired_state_that_is_no_longer_trusted_is_told_and_the_package_serves(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    rig.device.store.update(desired=desired(1, OLD, key=STRANGER_KEY)[1])
    rig.device.adaptation.withdraw()
    assert rig.states.restore() == (OLD.digest, "best")
    ((kind, reason),) = rig.events()
    assert kind == "refused"
    assert reason.startswith("cannot use the stored desired state: ")


def again(root: Path, rig: Rig) -> Rig:
    """Return what runs after the start of an agent on the same storage."""
    rig.device.reboot()
    return Rig(root, device=rig.device)


def test_a_device_that_lost_its_record_takes_no_recording(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.device.install(2, NEW)
    for name in (STATE_FILE, COPY_FILE, FLOOR_FILE):
        (rig.device.root / name).write_bytes(b"\0")
    rig = again(tmp_path, rig)
    assert rig.device.adaptation.active() == (NEW.digest, "best")
    for boot_id in (msgspec.UNSET, "an earlier start"):
        rig.states.receive(desired(1, OLD, boot_id=boot_id)[1])
        assert "recording" in rig.told[-1].detail
    ((kind, reason),) = rig.events()
    assert kind == "refused"
    assert "recording" in reason, "it is said once"
    assert rig.installs.revision == 0
    rig.states.receive(desired(2, NEW, boot_id=BOOT, policy=ADAPTIVE)[1])
    assert rig.device.adaptation.policy == ADAPTIVE
    assert rig.installs.revision == 2
    rig.device.machine.accept(*desired(2, NEW, boot_id=BOOT))
    rig.device.machine.run()
    rig.events()
    rig.states.receive(desired(1, OLD, boot_id=BOOT)[1])
    assert "older than the accepted 2" in rig.events()[0][1]


def test_records_that_were_put_back_install_nothing_and_the_controller_mends_them(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    old = {name: (rig.device.root / name).read_bytes() for name in (STATE_FILE, COPY_FILE)}
    rig.device.install(2, NEW)
    rig.device.install(10, NEW)
    for name, content in old.items():
        (rig.device.root / name).write_bytes(content)
    rig = again(tmp_path, rig)
    assert "state.json: older than floor.json" in rig.device.faults[0]
    rig.device.clock.advance(REPAIR_MAX_S)
    assert not rig.device.machine.repair()
    assert rig.device.adaptation.active() == (NEW.digest, "best")
    rig.states.receive(desired(11, OLD, boot_id="an earlier start")[1])
    assert "recording" in rig.told[-1].detail
    rig.states.receive(desired(10, NEW, boot_id=BOOT)[1])
    rig.device.install(10, NEW)
    assert again(tmp_path, rig).device.faults == ()
    assert rig.device.store.state.target == NEW.ref


def test_an_older_floor_beside_no_record_lets_no_recording_in(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.device.install(4, NEW)
    floor = (rig.device.root / FLOOR_FILE).read_bytes()
    rig.device.install(10, NEW)
    (rig.device.root / FLOOR_FILE).write_bytes(floor)
    for name in (STATE_FILE, COPY_FILE):
        (rig.device.root / name).unlink()
    rig = again(tmp_path, rig)
    rig.states.receive(desired(5, OLD)[1])
    assert "recording" in rig.told[-1].detail
    rig.states.receive(desired(10, NEW, boot_id=BOOT)[1])
    assert rig.installs.revision == 10


def test_a_floor_that_is_too_high_comes_down_by_a_desired_state_for_this_start(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    rig.device.install(MAX_REVISION, OLD)
    rig.states.receive(desired(2, NEW)[1])
    assert "older" in rig.events()[0][1]
    rig.states.receive(desired(2, NEW, boot_id=BOOT)[1])
    assert rig.events() == []
    rig.device.install(2, NEW)
    assert again(tmp_path, rig).installs.revision == 2
