"""Desired states: only a checked one changes anything, and a device's own policy goes first."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import msgspec
import pytest

from agent.app.config import AgentConfig
from agent.app.desired_states import DesiredStates
from agent.app.models import Model, Models
from agent.app.refusals import Refusals
from agent.install.repair_pace import REPAIR_MAX_S
from agent.install.store import COPY_FILE, FLOOR_FILE, STATE_FILE
from agent.install.thread import Installs
from agent.log import Log
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from tests.simulators.device import SimulatedDevice, SimulatedModel
from tests.simulators.packages import (
    DIRECTOR_KEY,
    STRANGER_KEY,
    TRUST,
    desired,
    package,
    two_variants,
    variant,
)
from tests.simulators.repository import Repository
from wire.codec import sha256_hex, to_json
from wire.desired import DESIRED_PAYLOAD_TYPE, MAX_REVISION, DesiredModels, ModelState
from wire.installs import Refusal
from wire.policy import Objective, PolicySpec
from wire.trust.envelope import seal
from wire.trust.roles import DIRECTOR
from wire.trust.root import Trust

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
        trust: Trust = TRUST,
    ) -> None:
        self.device = device or serving_device(root / "device")
        self.recorder = Recorder(self.device.clock)
        self.told: list[Refusal] = []
        self.lines = io.StringIO()
        self.log = Log(self.device.clock, self.lines)
        self.models = Models(self._make, lambda _model: None)
        self.states = DesiredStates(
            AgentConfig(
                device="dev-1", state_dir=root, profile=root, trust=root, policy=own_policy
            ),
            trust,
            boot_id=BOOT,
            store=self.device.files,
            slots=self.device.slots,
            models=self.models,
            recorder=self.recorder,
            refusals=Refusals("dev-1", self.told.append, self.recorder, self.device.clock),
            log=self.log,
            clock=self.device.clock,
        )

    def _make(self, name: str) -> Model:
        if name not in self.device.models:
            self.device.models[name] = SimulatedModel(self.device, name)
        parts = self.device.models[name]
        installs = Installs(
            parts.machine,
            parts.store,
            self.device.slots,
            self.device.interrupts,
            self.log,
            parts.installer.remove,
        )
        return Model(
            name=name,
            store=parts.store,
            model_server=parts.serving,
            adaptation=parts.adaptation,
            installer=parts.installer,
            hooked=parts.hooked,
            machine=parts.machine,
            installs=installs,
        )

    @property
    def revision(self) -> int:
        """The revision of the desired state that was accepted last."""
        return self.device.files.state.revision

    def newer(self) -> dict[str, int]:
        """Return the revisions that wait to be installed, by model."""
        waiting = [model.installs.newer for model in self.models]
        return {state.name: state.revision for state in waiting if state is not None}

    def jobs(self) -> set[str]:
        """Return the models that have anything to do, be it a report or their removal."""
        return {model.name for model in self.models if model.installs.has_job}

    def events(self) -> list[tuple[str, str]]:
        return [(event.kind, event.reason) for event in self.recorder.drain()[1]]


def test_a_checked_desired_state_sets_its_policy_and_waits_to_be_installed(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.states.receive(desired(2, NEW, policy=ADAPTIVE)[1])
    assert rig.device.adaptation.policy == ADAPTIVE
    assert (rig.revision, rig.newer()) == (2, {"digits": 2})
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
        "model": "digits",
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
    assert (rig.revision, rig.jobs()) == (5, set())
    assert rig.device.adaptation.policy == before


def test_the_devices_own_policy_goes_before_the_controllers(tmp_path: Path) -> None:
    rig = Rig(tmp_path, own_policy=PolicySpec(dwell_s=1.0))
    before = rig.device.adaptation.policy
    rig.states.receive(desired(2, NEW, policy=ADAPTIVE)[1])
    assert rig.device.adaptation.policy == before
    assert (rig.revision, rig.newer()) == (2, {"digits": 2})
    assert rig.events() == []


def test_a_restart_brings_back_package_pin_and_policy_without_an_event(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.device.accept(2, OLD, policy=ADAPTIVE)
    rig.device.machine.run()
    rig.device.store.update(pinned="small")
    rig.device.adaptation.withdraw()
    assert rig.states.restore() == {"digits": (OLD.digest, "small")}
    assert rig.device.adaptation.policy == ADAPTIVE
    assert rig.events() == []


def test_a_kept_desired_state_that_is_no_longer_trusted_is_told_and_the_package_serves(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path)
    rig.device.files.accept(1, desired(1, OLD, key=STRANGER_KEY)[1])
    rig.device.adaptation.withdraw()
    assert rig.states.restore() == {"digits": (OLD.digest, "best")}
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
    assert (rig.revision, rig.jobs()) == (0, set())
    rig.states.receive(desired(2, NEW, boot_id=BOOT, policy=ADAPTIVE)[1])
    assert rig.device.adaptation.policy == ADAPTIVE
    assert (rig.revision, rig.newer()) == (2, {"digits": 2})
    rig.device.accept(2, NEW, boot_id=BOOT)
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
    assert (rig.revision, rig.newer()) == (10, {"digits": 10})


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
    assert again(tmp_path, rig).revision == 2


SPEECH = package("1.0.0", [(variant("best"), b"speech best")], name="speech")
OTHER_SPEECH = package("2.0.0", [(variant("best"), b"other speech")], name="speech")
RULES = PolicySpec(kind="rules", dwell_s=3.0)
DIGITS_1 = ModelState(name="digits", revision=1, release=OLD.ref)
DIGITS_3 = ModelState(name="digits", revision=3, release=NEW.ref)
SPEECH_2 = ModelState(name="speech", revision=2, release=SPEECH.ref)
SPEECH_4 = ModelState(name="speech", revision=4, release=OTHER_SPEECH.ref)


def named(revision: int, *models: ModelState, keeps_others: bool = False) -> bytes:
    """Return a signed desired state that names models."""
    said = DesiredModels(
        device="dev-1",
        revision=revision,
        issued_at_s=1.0,
        models=models,
        keeps_others=keeps_others,
    )
    return seal(to_json(said), payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])


def policed(state: ModelState, policy: PolicySpec) -> ModelState:
    return msgspec.structs.replace(state, policy=policy)


@pytest.fixture
def two(tmp_path: Path) -> Rig:
    """Return a device on which revision 2 has brought speech beside digits; nothing waits."""
    device = SimulatedDevice(tmp_path / "device", names=("digits", "speech"))
    device.boot()
    device.install(1, OLD)
    device.install(2, SPEECH)
    device.files.accept(2, named(2, DIGITS_1, SPEECH_2))
    rig = Rig(tmp_path, device=device)
    rig.states.restore()
    rig.events()
    return rig


def policies(rig: Rig) -> dict[str, PolicySpec]:
    return {model.name: model.adaptation.policy for model in rig.models}


def test_several_models_wait_each_with_its_own_revision_and_policy(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.states.receive(named(3, policed(SPEECH_2, RULES), policed(DIGITS_3, ADAPTIVE)))
    assert (rig.revision, rig.newer()) == (3, {"digits": 3, "speech": 2})
    assert policies(rig) == {"digits": ADAPTIVE, "speech": RULES}
    told = [(e.kind, e.data["model"], e.data["revision"]) for e in rig.recorder.drain()[1]]
    assert told == [("policy", "speech", 3), ("policy", "digits", 3)]
    assert rig.told == []


def test_a_change_of_one_model_is_no_news_for_the_others(two: Rig) -> None:
    two.states.receive(named(4, DIGITS_1, SPEECH_4))
    assert (two.revision, two.newer(), two.jobs()) == (4, {"speech": 4}, {"speech"})
    assert two.events() == []


def test_another_policy_of_one_model_is_for_that_model_alone(two: Rig) -> None:
    two.states.receive(named(3, policed(DIGITS_1, RULES), SPEECH_2))
    assert policies(two) == {"digits": RULES, "speech": PolicySpec()}
    assert two.jobs() == set(), "its release is the same"
    assert len(two.events()) == 1


def test_a_policy_that_came_without_a_release_holds_after_a_restart(
    two: Rig, tmp_path: Path
) -> None:
    two.states.receive(named(3, policed(DIGITS_1, RULES), policed(SPEECH_2, ADAPTIVE)))
    rig = again(tmp_path, two)
    rig.states.restore()
    assert policies(rig) == {"digits": RULES, "speech": ADAPTIVE}
    assert (rig.jobs(), rig.events()) == (set(), [])


def test_the_devices_own_policy_goes_before_that_of_every_model(tmp_path: Path) -> None:
    rig = Rig(tmp_path, own_policy=RULES)
    before = rig.device.adaptation.policy
    rig.states.receive(named(3, policed(DIGITS_3, ADAPTIVE), policed(SPEECH_2, ADAPTIVE)))
    assert ADAPTIVE not in policies(rig).values()
    assert rig.device.adaptation.policy == before
    assert rig.newer() == {"digits": 3, "speech": 2}


def test_one_that_is_sent_again_asks_every_model_for_its_report(two: Rig) -> None:
    two.states.receive(named(2, DIGITS_1, SPEECH_2))
    assert two.jobs() == {"digits", "speech"}
    assert two.newer() == {}, "nothing is new"


def test_one_that_is_sent_again_goes_on_where_it_was_left(two: Rig) -> None:
    for _ in range(2):
        two.states.receive(named(4, DIGITS_1, SPEECH_4))
    assert two.newer() == {"speech": 4}
    assert two.jobs() == {"digits", "speech"}, "digits reports again"


def test_a_model_that_is_not_named_is_removed(two: Rig) -> None:
    two.states.receive(named(3, SPEECH_2))
    assert two.jobs() == {"digits"}
    assert two.newer() == {}, "it waits for its removal"
    assert two.models.named("digits").installs.run()
    assert two.device.slots.serving() == {"speech": SPEECH.digest}
    assert set(two.device.files.state.models) == {"speech"}


def test_models_that_are_not_named_stay_if_the_desired_state_says_so(two: Rig) -> None:
    two.states.receive(named(4, SPEECH_4, keeps_others=True))
    assert (two.revision, two.newer(), two.jobs()) == (4, {"speech": 4}, {"speech"})


def test_a_desired_state_without_models_removes_all(two: Rig) -> None:
    two.states.receive(named(3))
    assert two.jobs() == {"digits", "speech"}
    assert all(model.installs.run() for model in two.models)
    assert (two.device.slots.serving(), two.device.slots.whole()) == ({}, ())
    assert two.device.files.state.models == {}
    assert two.revision == 3


def test_a_model_for_which_nothing_is_ordered_stays(two: Rig) -> None:
    two.states.receive(named(3, DIGITS_1, ModelState(name="speech", revision=3, release=None)))
    assert two.newer() == {}
    speech = two.models.named("speech")
    assert two.device.slots.serving() == {"digits": OLD.digest, "speech": SPEECH.digest}
    assert speech.adaptation.active()[0] == SPEECH.digest
    assert speech.store.state.target == SPEECH.ref, "it is repaired if it is lost"


def test_a_controller_that_knows_one_model_removes_the_others(two: Rig) -> None:
    two.states.receive(desired(3, NEW, policy=ADAPTIVE)[1])
    assert two.newer() == {"digits": 3}
    assert two.jobs() == {"digits", "speech"}
    assert policies(two)["digits"] == ADAPTIVE


def test_a_controller_that_knows_one_model_and_orders_nothing_leaves_all(two: Rig) -> None:
    two.states.receive(named(3, policed(DIGITS_1, RULES), SPEECH_2))
    before = policies(two)
    two.states.receive(desired(4, None)[1])
    assert (two.revision, two.newer()) == (4, {"digits": 4, "speech": 4})
    for model in two.models:
        ordered = model.installs.newer
        assert ordered is not None
        assert ordered.release is None
        model.machine.accept(ordered, has_sources=False)
        model.machine.run()
    assert [(r.model, r.revision, r.outcome) for r in two.device.heard.outcomes[-2:]] == [
        ("digits", 4, "succeeded"),
        ("speech", 4, "succeeded"),
    ]
    assert two.device.slots.serving() == {"digits": OLD.digest, "speech": SPEECH.digest}
    assert policies(two) == before


def test_a_model_that_comes_back_is_a_new_one(two: Rig) -> None:
    two.states.receive(named(3, DIGITS_1))
    assert two.models.named("speech").installs.run()
    back = msgspec.structs.replace(SPEECH_2, revision=4)
    two.states.receive(named(4, DIGITS_1, back))
    assert two.newer() == {"speech": 4}
    two.device.server.add(*SPEECH.blobs)
    two.models.named("speech").machine.accept(back, has_sources=False)
    two.models.named("speech").machine.run()
    assert two.device.slots.serving() == {"digits": OLD.digest, "speech": SPEECH.digest}


@pytest.mark.parametrize(
    ("envelope", "reason"),
    [
        (named(1, SPEECH_4), "not within 1 to 1"),
        (named(1, DIGITS_1), "older than the accepted 2"),
        (named(4, DIGITS_3, DIGITS_1), "named twice"),
        (
            named(4, DIGITS_3, policed(SPEECH_4, PolicySpec(dwell_s=-1.0))),
            "the policy of model speech is not valid",
        ),
    ],
    ids=["too late a model", "older", "twice", "no policy"],
)
def test_a_fault_in_one_model_refuses_the_whole(two: Rig, envelope: bytes, reason: str) -> None:
    before = (two.device.files.state, policies(two))
    two.states.receive(envelope)
    assert reason in two.told[-1].detail
    assert (two.device.files.state, policies(two), two.jobs()) == (*before, set())


def test_one_that_cannot_be_saved_changes_nothing_and_is_not_refused(two: Rig) -> None:
    def refuse(where: str, _state: object) -> None:
        if where.startswith("write "):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    two.device.hook = refuse
    two.states.receive(named(4, policed(DIGITS_3, ADAPTIVE)))
    assert (two.revision, two.jobs(), two.told) == (2, set(), [])
    assert policies(two) == {"digits": PolicySpec(), "speech": PolicySpec()}
    assert "install-waits" in two.lines.getvalue()


def test_a_full_storage_loses_what_no_model_needs_before_one_is_not_saved(two: Rig) -> None:
    two.device.install(3, NEW)
    assert OLD.digest in two.device.slots.whole(), "it is what digits may return to"
    unneeded = two_variants("0.1.0", best="unneeded")
    unneeded.write_to(two.device.slots.directory(unneeded.digest))
    two.device.slots.stage(unneeded.digest)
    part = two.device.slots.parts / ("f" * 64)
    part.write_bytes(b"half")

    def refuse(where: str, _state: object) -> None:
        if where.startswith("write ") and two.device.slots.has(unneeded.digest):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    two.device.hook = refuse
    two.states.receive(named(4, DIGITS_3, SPEECH_4))
    assert two.revision == 4
    assert set(two.device.slots.whole()) == {OLD.digest, NEW.digest, SPEECH.digest}
    assert part.exists(), "an install may need it"


def test_where_that_is_not_enough_an_order_goes_before_a_way_back(two: Rig) -> None:
    two.device.install(3, NEW)
    assert OLD.digest in two.device.slots.whole(), "it is what digits may return to"

    def refuse(where: str, _state: object) -> None:
        if where.startswith("write ") and two.device.slots.has(OLD.digest):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    two.device.hook = refuse
    two.states.receive(named(4, DIGITS_3))
    assert two.revision == 4
    assert set(two.device.slots.whole()) == {NEW.digest, SPEECH.digest}, "what serves stays"
    assert two.jobs() == {"speech"}, "it is to be removed, which frees the storage"


def test_what_was_saved_and_not_begun_before_a_restart_is_begun_after_it(
    two: Rig, tmp_path: Path
) -> None:
    two.states.receive(named(4, DIGITS_3, SPEECH_4))
    rig = again(tmp_path, two)
    assert rig.states.restore() == {
        "digits": (OLD.digest, "best"),
        "speech": (SPEECH.digest, "best"),
    }
    assert rig.newer() == {"digits": 3, "speech": 4}


def test_a_restart_begins_nothing_that_was_begun_before(two: Rig, tmp_path: Path) -> None:
    two.states.receive(named(4, DIGITS_1, SPEECH_4))
    two.device.server.add(*OTHER_SPEECH.blobs)
    two.models.named("speech").machine.accept(SPEECH_4, has_sources=False)
    rig = again(tmp_path, two)  # goes on with what was begun
    rig.states.restore()
    assert rig.jobs() == set()
    assert rig.device.slots.serving() == {"digits": OLD.digest, "speech": OTHER_SPEECH.digest}


def test_a_removal_that_was_not_done_before_a_restart_is_done_after_it(
    two: Rig, tmp_path: Path
) -> None:
    two.states.receive(named(3, SPEECH_2))
    rig = again(tmp_path, two)
    rig.states.restore()
    assert rig.jobs() == {"digits"}
    assert rig.models.named("digits").installs.run()
    rig = again(tmp_path, rig)
    assert rig.states.restore() == {"speech": (SPEECH.digest, "best")}
    assert rig.jobs() == set()


def test_a_slot_of_which_nothing_is_recorded_is_found_and_removed(two: Rig, tmp_path: Path) -> None:
    two.device.files.forget("digits")  # as a power cut leaves it
    two.device.files.accept(3, named(3, SPEECH_2))
    rig = again(tmp_path, two)
    rig.states.restore()
    assert rig.jobs() == {"digits"}
    assert rig.models.named("digits").installs.run()
    assert rig.device.slots.whole() == (SPEECH.digest,)


def test_what_cannot_serve_after_a_restart_is_told_and_the_other_model_serves(
    two: Rig, tmp_path: Path
) -> None:
    two.device.bad_load.update({"old best", "old small"})
    rig = again(tmp_path, two)
    for model in rig.device.models.values():
        model.adaptation.withdraw()
    assert rig.states.restore() == {"digits": (None, None), "speech": (SPEECH.digest, "best")}
    told = [event for event in rig.recorder.drain()[1] if event.kind == "worker"]
    assert [event.data["model"] for event in told] == ["digits"]


def test_a_pin_of_one_model_is_none_of_the_other_after_a_restart(two: Rig, tmp_path: Path) -> None:
    two.models.named("digits").store.update(pinned="small")
    rig = again(tmp_path, two)
    rig.device.adaptation.withdraw()
    assert rig.states.restore()["digits"] == (OLD.digest, "small")
    assert {m.name: m.adaptation.pinned for m in rig.models} == {"digits": "small", "speech": None}


def test_a_stored_order_counts_again_once_it_is_known_who_signed_it(tmp_path: Path) -> None:
    device = serving_device(tmp_path / "device")
    fleet = Repository(now_s=device.clock.now_s())
    root = fleet.write_root(tmp_path / "root.json")

    def start() -> tuple[Rig, MetadataTrust]:
        recorder = Recorder(device.clock)
        trust = MetadataTrust(root, "f", tmp_path / "trust", recorder, device.clock)
        return Rig(tmp_path, device=device, trust=trust), trust

    rig, trust = start()
    assert trust.receive(fleet.files(), now=True)
    rig.states.receive(desired(2, NEW, policy=ADAPTIVE, key=fleet.director)[1])
    assert device.adaptation.policy == ADAPTIVE

    # The root is replaced by another one, of a fleet that began anew with the same director.
    other = Repository(now_s=device.clock.now_s(), director=fleet.seeds[DIRECTOR][0])
    other.write_root(root)
    device.reboot()
    rig, trust = start()
    rig.states.restore()
    rig.states.read_again()
    assert device.adaptation.policy != ADAPTIVE
    assert trust.receive(other.files(), now=True)
    assert trust.versions.roles, "its lists of the models that are here are known"
    rig.states.read_again()
    assert device.adaptation.policy == ADAPTIVE
    assert rig.newer() == {"digits": 2}
