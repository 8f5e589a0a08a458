"""Whatever operators, devices, networks, clocks and power do: rollouts keep their promises."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sqlalchemy import select

from controller.domain.states import DeploymentState, RolloutState
from controller.store import deployments, rollouts
from controller.store.model_tables import DesiredModelRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow
from controller.store.way_back import rids_of
from controller.store.work_tables import RolloutWorkRow
from tests.integration.test_rollout_power_cuts import PowerCut, Saw
from tests.simulators.controller_fleet import Fleet, FleetDevice, Outcome, names
from tests.simulators.packages import two_variants
from tests.thorough import THOROUGH
from wire.transport import Received

RELEASES = tuple(two_variants(version) for version in ("1", "2", "3"))
DEVICES = names("cam", 5)
ORDERS = ("pause", "resume", "abort", "approve", "retry", "rollback")
DONE = {DeploymentState.SUCCEEDED, DeploymentState.FAILED}
UNFINISHED = {DeploymentState.PENDING, DeploymentState.ASSIGNED, DeploymentState.WAITING}
ENDED = {RolloutState.SUCCEEDED, RolloutState.ABORTED}
STOPPED = ENDED | {RolloutState.HALTED}
LIMIT_S = 60.0
STAGES: tuple[list[dict[str, int]], ...] = (
    [{"percent": 100}],
    [{"count": 1}, {"percent": 100}],
    [{"count": 1}, {"count": 3}, {"percent": 100}],
)


OUTCOMES: st.SearchStrategy[Outcome] = st.sampled_from(["busy", "succeeded", "failed", "silent"])


class AnyOrder(RuleBasedStateMachine):
    """A fleet to which anything may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="any-order-"))
        self.fleet = Fleet(f"sqlite:///{self.place / 'fleet.db'}", self.place)
        self.rollouts: list[str] = []
        self.asked = 0
        self.stopped: dict[str, set[str]] = {}
        """Which devices a rollout had started when it stopped."""

        self.outcomes: dict[tuple[str, str], str] = {}

    @initialize(outcomes=st.lists(OUTCOMES, min_size=len(DEVICES), max_size=len(DEVICES)))
    def begin(self, outcomes: list[Outcome]) -> None:
        for package in RELEASES:
            self.fleet.publish(package)
        self.fleet.enrol(*DEVICES)
        for device, outcome in zip(self.fleet.devices.values(), outcomes, strict=True):
            device.outcome = outcome

    @rule(
        version=st.sampled_from("123"),
        stages=st.sampled_from(STAGES),
        most=st.integers(1, 3),
        failures=st.integers(0, 2),
        approval=st.booleans(),
    )
    def create(
        self,
        version: str,
        stages: list[dict[str, int]],
        most: int,
        failures: int,
        *,
        approval: bool,
    ) -> None:
        self.asked += 1
        body = {
            "id": f"r{self.asked:010x}",  # by which devices are placed: each run is to do the same
            "release": f"digits:{version}",
            "stages": stages,
            "max_in_flight": most,
            "max_failures": failures,
            "approval": approval,
            "device_deadline_s": LIMIT_S,
            "offline_limit_s": LIMIT_S,
        }
        self.order("/v1/rollouts", body)

    @precondition(lambda self: self.rollouts)
    @rule(data=st.data(), order=st.sampled_from(ORDERS))
    def command(self, data: st.DataObject, order: str) -> None:
        rollout = data.draw(st.sampled_from(self.rollouts))
        if order == "approve":
            assert self.fleet.approve(rollout).status_code in {200, 409}
            return
        self.order(
            f"/v1/rollouts/{rollout}/{order}", {} if order in {"retry", "rollback"} else None
        )

    @rule(seconds=st.sampled_from([1.0, 1.0, 20.0, 70.0]))
    def think(self, seconds: float) -> None:
        self.let_it_think(seconds)

    @rule(data=st.data())
    def think_and_finish(self, data: st.DataObject) -> None:
        """Most of what happens to a fleet: devices begin and end."""
        self.let_it_think(1.0)
        self.finish(data.draw(st.sampled_from(DEVICES)), succeeds=True)
        self.let_it_think(1.0)

    def let_it_think(self, seconds: float) -> None:
        before = self.started()
        self.fleet.step(seconds)
        for rollout, devices in self.started().items():
            if devices - before.get(rollout, set()):
                self.check_caps(rollout)

    @rule(device=st.sampled_from(DEVICES), outcome=OUTCOMES)
    def change_mind(self, device: str, outcome: Outcome) -> None:
        """From now on its installs end so."""
        self.fleet.devices[device].outcome = outcome

    @rule(device=st.sampled_from(DEVICES), succeeds=st.booleans())
    def finish(self, device: str, *, succeeds: bool) -> None:
        """An install that was busy ends."""
        install(self.fleet.devices[device], succeeds=succeeds)

    @rule(device=st.sampled_from(DEVICES))
    def leave_or_return(self, device: str) -> None:
        it = self.fleet.devices[device]
        if it.online:
            it.leave()
        else:
            it.connect()

    @rule(device=st.sampled_from(DEVICES))
    def take_its_name(self, device: str) -> None:
        """The device is decommissioned, and another one enrols in its name."""
        gone = self.fleet.devices.pop(device)
        outcome, gone.outcome = gone.outcome, "silent"
        gone.leave()
        for change in ({"state": "decommissioned"}, {"may_enrol_again": True, "key_is_gone": True}):
            self.fleet.api.patch(f"/v1/devices/{device}", json=change).raise_for_status()
        self.outcomes = {key: state for key, state in self.outcomes.items() if key[1] != device}
        self.fleet.enrol(device)
        self.fleet.devices[device].outcome = outcome

    @rule(back=st.integers(1, 30))
    def hear_again(self, back: int) -> None:
        """A message comes twice, or late and out of order."""
        told = [each for each in self.fleet.hub.published if "/up/" in each.topic]
        for message in told[-back:][:1]:
            self.fleet.hub.deliver(Received(message.topic, message.payload))

    @rule(by_s=st.sampled_from([-7200.0, -30.0, 30.0, 7200.0]))
    def set_clock(self, by_s: float) -> None:
        self.fleet.clock.correct(by_s)

    @rule()
    def kill(self) -> None:
        self.fleet.kill()

    @rule(effect=st.integers(1, 6))
    def cut_power(self, effect: int) -> None:
        """The controller dies before an effect of what it thinks next."""
        saw = Saw(self.fleet)
        saw.arm(effect)
        with contextlib.suppress(PowerCut):
            self.fleet.step()
        self.fleet.kill()

    @invariant()
    def nothing_starts_after_a_stop(self) -> None:
        started, states = self.started(), self.states()
        for rollout, state in states.items():
            if state not in STOPPED:
                assert rollout not in self.stopped or state == RolloutState.RUNNING
                self.stopped.pop(rollout, None)
                continue
            assert started.get(rollout, set()) <= self.stopped.setdefault(
                rollout, started.get(rollout, set())
            )

    @invariant()
    def a_device_is_in_one_unfinished_rollout(self) -> None:
        unfinished = [part.device for part in self.parts() if part.state in UNFINISHED]
        assert len(unfinished) == len(set(unfinished))

    @invariant()
    def what_was_stopped_has_nothing_left_to_do(self) -> None:
        """Devices of a rollout that has ended may be taken out part by part."""
        states = self.states()
        left = [
            part
            for part in self.parts()
            if part.state in UNFINISHED
            and states[part.rollout] in {RolloutState.HALTED, RolloutState.ABORTED}
            and part.rollout not in self.worked()
        ]
        # Devices on their way back finish by themselves.
        assert {part.state for part in left} <= {DeploymentState.WAITING}
        assert all(self.is_rid(part.rollout, part.device) for part in left)

    @invariant()
    def no_rollback_orders_what_it_takes_away(self) -> None:
        """Of devices that had what is good already nothing is taken away."""
        with self.fleet.controller._database.reading() as session:
            wanted = session.execute(
                select(DesiredModelRow.device, DesiredModelRow.release, DesiredModelRow.rollout)
            ).all()
            for device, release, rollout in wanted:
                if rollout is None or not self.is_rid(rollout, device):
                    continue
                if rollouts.rollback_of(session, rollout) is None:
                    assert deployments.targets(session, rollout, [device]) == {device: release}

    @invariant()
    def an_outcome_stays(self) -> None:
        for part in self.parts():
            key = part.rollout, part.device
            if key in self.outcomes:
                assert part.state == self.outcomes[key]
            elif part.state in DONE:
                self.outcomes[key] = part.state

    def teardown(self) -> None:
        try:
            if self.fleet.devices:
                self.check_end()
        finally:
            self.fleet.close()
            shutil.rmtree(self.place)

    def check_end(self) -> None:
        """When all is well again, everything comes to an end, and each device has one outcome."""
        for device in self.fleet.devices.values():
            device.outcome = "succeeded"
            device.connect()  # also one that was said to be away: any message tells that it is not
            install(device, succeeds=True)
        for _ in range(60):
            for rollout, state in self.states().items():
                if state == RolloutState.PAUSED:
                    self.order(f"/v1/rollouts/{rollout}/resume", None)
                self.fleet.approve(rollout)
            self.fleet.step(20.0)
            if set(self.states().values()) <= STOPPED:
                break
        assert set(self.states().values()) <= STOPPED
        assert {part.state for part in self.parts()} <= {*DONE, DeploymentState.CANCELLED}

    def order(self, path: str, body: dict[str, Any] | None) -> None:
        answer = self.fleet.api.post(path, json=body)
        assert answer.status_code in {200, 201, 409}, answer.text
        if answer.status_code == 201:
            self.rollouts.append(answer.json()["id"])

    def check_caps(self, rollout: str) -> None:
        """A rollout that has just started devices is within its limits."""
        shown = self.fleet.show(rollout)
        row = self.row(rollout)
        mine = [part for part in self.parts() if part.rollout == rollout]
        in_flight = sum(part.state == DeploymentState.ASSIGNED for part in mine)
        assert in_flight <= row.max_in_flight
        finished = sum(part.state in DONE for part in mine)
        started = sum(part.started_at_s is not None for part in mine)
        # Without any outcome a stage tries one more device after the other.
        assert started <= shown["stages"][row.stage - 1]["target"] or not finished

    def row(self, rollout: str) -> RolloutRow:
        with self.fleet.controller._database.reading() as session:
            row = session.get_one(RolloutRow, rollout)
            session.expunge(row)
            return row

    def is_rid(self, rollout: str, device: str) -> bool:
        """Tell whether a rollout rids a device of a release."""
        with self.fleet.controller._database.reading() as session:
            bad = rids_of(session, session.get_one(RolloutRow, rollout))
            part = session.get(DeploymentRow, (rollout, device))
            return bad is not None and part is not None and part.previous in {None, bad}

    def states(self) -> dict[str, str]:
        with self.fleet.controller._database.reading() as session:
            rows = session.execute(select(RolloutRow.id, RolloutRow.state)).all()
            return {row.id: row.state for row in rows}

    def worked(self) -> set[str]:
        """Return the rollouts about which an order is still being carried out."""
        with self.fleet.controller._database.reading() as session:
            return set(session.scalars(select(RolloutWorkRow.rollout)))

    def parts(self) -> list[Any]:
        with self.fleet.controller._database.reading() as session:
            part = DeploymentRow
            return list(
                session.execute(select(part.rollout, part.device, part.state, part.started_at_s))
            )

    def started(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for part in self.parts():
            if part.started_at_s is not None:
                found.setdefault(part.rollout, set()).add(part.device)
        return found


def install(device: FleetDevice, *, succeeds: bool) -> None:
    """Let a device finish the install that it was told of last."""
    if not device.online or not device.documents:
        return
    for model in device.documents[-1].models:
        digest = model.release.digest if model.release else None
        if digest is None or digest == device.actives.get(model.name):
            continue
        if succeeds:
            device.actives[model.name] = digest
        device.report(model.revision, digest, "succeeded" if succeeds else "failed", model.name)


TestAnyOrder = AnyOrder.TestCase
# Shrinking takes many runs of a fleet, which a test's time limit would end before anything is told.
TestAnyOrder.settings = settings(
    max_examples=150 if THOROUGH else 6,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
