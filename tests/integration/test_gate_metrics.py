"""Gates on all that devices tell: each finds its own harm, and holds where nobody tells."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import sqlalchemy as sa

from controller.store import control_group, gates
from controller.store.device_tables import DeviceRow
from controller.store.gate_tables import GateAwayRow
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import SignedPackage, package, variant
from wire import topics
from wire.codec import to_msgpack
from wire.package.distribution import Distribution
from wire.telemetry import GaugePoint, Point, SumPoint, TelemetryBatch
from wire.transport import Received

pytestmark = pytest.mark.flow

DEVICES: Final = 20
MINUTE_S: Final = 60.0
SHARE: Final = "{}/inference_requests_total <= +{}pp"
MARGIN: Final = "model_samples_total{{measure=margin{}}}"

GATES: Final = {
    "golden": "mean(golden_agreement_ratio) >= -1pp",
    "shift": "shift(model_samples_total{tensor=output.y}) <= +5pp",
    "margin": f"{MARGIN.format(',bin=0')}/{MARGIN.format('')} <= +5pp",
    "crashes": SHARE.format("worker_crashes_total", 0.1),
    "energy": "mean(inference_energy_j) <= +10%",
    "temperature": "mean(temperature_c) <= +3",
    "fallback": SHARE.format("inference_fallbacks_total", 1),
    "failures": SHARE.format("inference_failures_total", 5) + " in the worst case",
}


def release(version: str, classes: tuple[int, ...]) -> SignedPackage:
    """Return a package whose evaluation saw classes in that order of their number."""
    best = variant("best")
    seen = Distribution(of="output", tensor="y", measure="class", classes=classes, counts=(9, 9, 0))
    info = msgspec.structs.replace(best.info, distributions=(seen,))
    content = f"model {version}".encode()
    return package(version, [(msgspec.structs.replace(best, info=info), content)])


ONE, TWO = release("1", (0, 1)), release("2", (1, 0))


class Telling(Fleet):
    """A fleet whose devices report each minute all that gates ask."""

    harms: frozenset[str] = frozenset()
    """What the second release makes worse."""

    reports = True
    requests = 2_000.0
    """Of each device, in a minute."""

    def step(self, seconds: float = MINUTE_S) -> None:
        for device in self.devices.values() if self.reports else ():
            if not device.online:
                continue
            minute = int(self.clock.now_s() // MINUTE_S)
            points = self._points(device.name, minute, is_new=device.active == TWO.digest)
            batch = TelemetryBatch(
                device=device.name, boot_id="boot-1", sequence=minute, points=points
            )
            topic = topics.up(device.name, "telemetry")
            self.hub.deliver(Received(topic, to_msgpack(batch)))
        super().step(seconds)

    def _points(self, name: str, minute: int, *, is_new: bool) -> tuple[Point, ...]:
        chance = random.Random(f"{name} {minute}")
        harms = self.harms if is_new else frozenset()
        own = {"release": f"digits:{2 if is_new else 1}", "variant": "best"}

        def gauge(metric: str, value: float, **more: str) -> GaugePoint:
            value *= chance.uniform(0.99, 1.0)
            return GaugePoint(
                metric=metric, minute=minute, attributes=more, count=60, total=60 * value,
                least=value, greatest=value,
            )  # fmt: skip

        def count(metric: str, value: float, **more: str) -> SumPoint:
            return SumPoint(metric=metric, minute=minute, attributes=own | more, value=value)

        def samples(measure: str, share: float, *, swapped: bool) -> list[Point]:
            share += chance.uniform(-0.02, 0.02)
            bins = (1, 0) if swapped else (0, 1)
            of = {"tensor": "output.y", "measure": measure}
            return [
                count("model_samples_total", 1_000 * part, **of, bin=str(at))
                for at, part in zip(bins, (share, 1 - share), strict=True)
            ]

        failing = 0.5 if "failures" in harms else 0.0
        return (
            count("inference_requests_total", self.requests),
            count("inference_failures_total", self.requests * failing, code="500"),
            count("worker_crashes_total", 40.0 if "crashes" in harms else 0.0),
            count("inference_fallbacks_total", self.requests if "fallback" in harms else 0.0),
            gauge("golden_agreement_ratio", 0.5 if "golden" in harms else 1.0, **own),
            gauge("inference_energy_j", 3.0 if "energy" in harms else 1.0),
            gauge("temperature_c", 70.0 if "temperature" in harms else 50.0),
            # The bins of the second release are those of the first in the other order.
            *samples("class", 0.3 if "shift" in harms else 0.7, swapped=is_new),
            *samples("margin", 0.5 if "margin" in harms else 0.1, swapped=False),
        )

    def looks(self, rollout: str) -> dict[str, dict[str, Any]]:
        """Return the last look at each gate, by what it is about."""
        found = self.api.get(f"/v1/rollouts/{rollout}/gates").raise_for_status().json()["gates"]
        assert [gate["text"] for gate in found] == list(GATES.values())
        return {name: gate["looks"][-1] for name, gate in zip(GATES, found, strict=True)}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Telling]:
    made = Telling(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol(*names("cam", DEVICES))
    first = made.roll_out("digits:1")
    for _ in range(5):
        Fleet.step(made, 1.0)
    assert made.state(first) == "succeeded"
    for _ in range(2):
        made.step()
    yield made
    made.close()


def roll_out(fleet: Telling, minutes: int, **options: object) -> str:
    usual: dict[str, Any] = {"stages": [{"percent": 100}], "soak_s": 120.0, "control_percent": 50}
    rollout = fleet.roll_out("digits:2", gates=list(GATES.values()), **(usual | options))
    for _ in range(minutes):
        if fleet.state(rollout) == "running":
            fleet.step()
    return rollout


def test_each_gate_finds_its_own_harm(fleet: Telling) -> None:
    fleet.harms = frozenset(GATES)
    rollout = roll_out(fleet, 12)
    looks = fleet.looks(rollout)
    assert fleet.state(rollout) == "halted"
    assert {name: look["state"] for name, look in looks.items()} == dict.fromkeys(GATES, "fail")
    assert looks["shift"]["reason"].startswith("class ")
    assert abs(looks["shift"]["estimate"]) == pytest.approx(0.4, abs=0.05)


def test_without_harm_all_pass_but_the_worst_case_of_few_devices(fleet: Telling) -> None:
    rollout = roll_out(fleet, 6)
    looks = fleet.looks(rollout)
    passed = {name for name, look in looks.items() if look["state"] == "pass"}
    assert passed == GATES.keys() - {"failures"}
    worst = looks["failures"]
    assert worst["state"] == "hold"
    assert worst["high"] > 0.3
    assert "devices on each side would, more than the rollout has" in worst["reason"]


def test_gates_hold_while_nobody_tells(fleet: Telling) -> None:
    fleet.reports = False
    looks = fleet.looks(roll_out(fleet, 6))
    assert {name: look["state"] for name, look in looks.items()} == dict.fromkeys(GATES, "hold")
    assert "too few devices measure this at all: 0 of 20" in looks["golden"]["reason"]


def away_at_their_turn(database_url: str) -> set[str]:
    engine = sa.create_engine(database_url)
    with engine.connect() as connection:
        found = set(connection.scalars(sa.select(GateAwayRow.device)))
    engine.dispose()
    return found


def test_devices_that_are_away_at_their_turn_are_on_neither_side(
    fleet: Telling, database_url: str
) -> None:
    """They could not be chosen, so those of a place in trouble would all keep the old release."""
    away = list(fleet.devices.values())[:6]
    for device in away:
        device.leave()
    rollout = roll_out(fleet, 2)
    for device in away:
        device.connect()
    for _ in range(5):
        fleet.step()
    noted = away_at_their_turn(database_url)
    assert noted
    assert noted <= {device.name for device in away}
    look = fleet.looks(rollout)["energy"]
    assert look["treated"] + look["control"] == DEVICES - len(noted)
    assert len(fleet.running(TWO.digest)) == DEVICES // 2


def test_devices_that_drop_off_while_a_stage_fills_are_on_neither_side(
    fleet: Telling, database_url: str
) -> None:
    """Else a place that gets into trouble meanwhile would all keep the old release."""
    rollout = roll_out(fleet, 2, max_in_flight=1)
    begun = fleet.running(TWO.digest)
    assert 0 < len(begun) < DEVICES // 2
    gone = [device for device in fleet.devices.values() if device.name not in begun][::2]
    for device in gone:
        device.leave()
    for _ in range(12):
        fleet.step()
    for device in gone:
        device.connect()
    for _ in range(12):
        fleet.step()
    noted = away_at_their_turn(database_url)
    assert noted
    assert noted <= {device.name for device in gone}
    look = fleet.looks(rollout)["energy"]
    assert look["treated"] + look["control"] == DEVICES - len(noted)


def held_out(fleet: Telling, rollout: str) -> set[str]:
    parts = {
        name: fleet.api.get(f"/v1/rollouts/{rollout}/devices/{name}").raise_for_status().json()
        for name in fleet.devices
    }
    return {name for name, part in parts.items() if part["is_control"]}


def step_until(fleet: Telling, rollout: str, stage: int, *states: str) -> None:
    for _ in range(40):
        if fleet.show(rollout)["stages"][stage - 1]["state"] in states:
            return
        fleet.step()
    pytest.fail(f"stage {stage} is never {states}")


def test_devices_of_the_control_group_that_were_away_are_replaced(fleet: Telling) -> None:
    """Else each stage would make it smaller, until nobody is left to compare with."""
    stages = [{"count": 5}, {"count": 10}, {"percent": 100}]
    rollout = fleet.roll_out(
        "digits:2", stages=stages, soak_s=300.0, control_percent=25, gates=[GATES["energy"]]
    )
    seen = held_out(fleet, rollout)
    for stage, count in ((1, 2), (2, 1), (3, 2)):
        gone = sorted(held_out(fleet, rollout))[:count]
        for name in gone:
            fleet.devices[name].leave()
        step_until(fleet, rollout, stage, "soaking", "waiting_for_devices")
        assert len(held_out(fleet, rollout)) == 5
        assert not held_out(fleet, rollout) & set(gone)
        seen |= held_out(fleet, rollout)
        for name in gone:
            fleet.devices[name].connect()
        if stage < 3:
            step_until(fleet, rollout, stage, "done")
    assert len(seen) == 10
    step_until(fleet, rollout, 3, "done")
    [gate] = fleet.api.get(f"/v1/rollouts/{rollout}/gates").raise_for_status().json()["gates"]
    assert [look["control"] for look in gate["looks"] if look["stage"] == 3][-1] == 5
    told = [event["reason"] for event in fleet.show(rollout)["events"]]
    assert sum("now in the control group, in place of those" in reason for reason in told) == 3
    assert len(fleet.running(TWO.digest)) == DEVICES


def test_a_release_that_kills_its_devices_does_not_pass(fleet: Telling) -> None:
    stages = [{"count": 6}, {"percent": 100}]
    rollout = roll_out(fleet, 3, stages=stages, soak_s=900.0, control_percent=20)
    killed = fleet.running(TWO.digest)
    assert len(killed) == 6
    for name in killed:
        fleet.devices[name].leave()
    for _ in range(20):
        fleet.step()
    assert fleet.show(rollout)["stages"][0]["state"] == "waiting_for_gates"
    looks = fleet.looks(rollout)
    assert {name: look["state"] for name, look in looks.items()} == dict.fromkeys(GATES, "hold")


def test_the_silence_of_earlier_stages_counts_in_later_ones(fleet: Telling) -> None:
    """A device that died late in its own stage is away when the next one fills."""
    stages = [{"count": 6}, {"count": 12}, {"percent": 100}]
    rollout = fleet.roll_out(
        "digits:2", stages=stages, soak_s=300.0, control_percent=20, gates=[GATES["energy"]]
    )
    for _ in range(12):
        fleet.step()
        if fleet.show(rollout)["stages"][0]["state"] == "done":
            break
    for name in fleet.running(TWO.digest):
        fleet.devices[name].leave()
    for _ in range(20):
        fleet.step()
    shown = fleet.show(rollout)
    assert [stage["state"] for stage in shown["stages"]] == ["done", "waiting_for_gates", "waiting"]
    assert "devices with the new release that told enough before" in shown["reason"]


def test_few_requests_of_which_none_failed_hold_a_gate_on_rare_failures(fleet: Telling) -> None:
    fleet.requests = 50.0
    looks = fleet.looks(roll_out(fleet, 6))
    assert looks["crashes"]["state"] == "hold"
    assert "times as long, or as many requests, would" in looks["crashes"]["reason"]
    assert looks["golden"]["state"] == "pass", "it is no share of requests"


def test_who_runs_the_release_already_is_on_neither_side(fleet: Telling) -> None:
    some = names("cam", DEVICES)[:8]
    first = fleet.roll_out("digits:2", selector=f"id in ({','.join(some)})")
    for _ in range(4):
        Fleet.step(fleet, 1.0)
    assert fleet.state(first) == "succeeded"
    assert fleet.running(TWO.digest) == {*some}
    asked = {"gates": [GATES["energy"]], "stages": [{"percent": 100}], "control_percent": 50.0}
    plan = fleet.api.post("/v1/rollouts/plan", json={"release": "digits:2", **asked}).json()
    rollout = fleet.roll_out("digits:2", **asked, id=plan["id"])
    held = held_out(fleet, rollout)
    assert held == {*plan["control_devices"]}, "the dry run says the same"
    assert not held & {*some}
    with fleet.controller._database.reading() as transaction:
        others = {member.device for member in gates.without_release(transaction, rollout)}
    assert others == {*names("cam", DEVICES)} - {*some}
    for _ in range(4):
        Fleet.step(fleet, 1.0)
    brought = {
        part["device"] for part in fleet.show(rollout)["deployments"] if part["started_at_s"]
    }
    with fleet.controller._database.reading() as transaction:
        later = fleet.clock.now_s() + 1.0
        its = {each.device for each in gates.with_release(transaction, rollout, until_s=later)}
    assert brought & {*some}
    assert its == brought - {*some}


def test_devices_that_are_added_have_a_control_group_of_their_own(fleet: Telling) -> None:
    """They are no sample of the fleet, and compared with each other alone."""
    own, more = names("cam", DEVICES)[:10], names("cam", DEVICES)[10:]
    few = names("late", 3)
    fleet.enrol(*few)
    rollout = fleet.roll_out(
        "digits:2",
        selector=f"id in ({','.join(own)})",
        stages=[{"percent": 100}],
        gates=[GATES["temperature"]],
        soak_s=600.0,
        control_percent=50,
    )
    fleet.step()
    added = fleet.api.post(f"/v1/rollouts/{rollout}/add", json={"devices": more})
    (warning,) = added.raise_for_status().json()["warnings"]
    assert warning == "5 devices of them keep the old release until the gates have passed"
    added = fleet.api.post(f"/v1/rollouts/{rollout}/add", json={"devices": few})
    (warning,) = added.raise_for_status().json()["warnings"]
    assert warning.startswith("no gate counts 3 devices of them: those that are added")
    for _ in range(6):
        fleet.step()
    with fleet.controller._database.reading() as transaction:
        others = gates.without_release(transaction, rollout)
        its = gates.with_release(transaction, rollout, until_s=fleet.clock.now_s())
    for side in (others, its):
        strata = Counter(one.stratum for one in side)
        assert sorted(strata.values()) == [*([3] if side is its else []), 5, 5], (
            "what is added together is compared with nothing else"
        )
    for _ in range(40):
        fleet.step()
        if fleet.state(rollout) != "running":
            break
    assert fleet.state(rollout) == "succeeded", fleet.show(rollout)["reason"]
    assert fleet.running(TWO.digest) == {*own, *more, *few}


def test_who_is_added_of_profiles_that_nobody_can_compare_keeps_nothing_back(
    fleet: Telling,
) -> None:
    own, more = names("cam", DEVICES)[:10], names("cam", DEVICES)[10:]
    with fleet.controller._database.transaction() as transaction:
        for at, name in enumerate(more):
            transaction.execute(
                sa.update(DeviceRow).where(DeviceRow.id == name).values(profile_name=f"p{at % 2}")
            )
    rollout = fleet.roll_out(
        "digits:2",
        selector=f"id in ({','.join(own)})",
        gates=[GATES["temperature"]],
        control_percent=50,
    )
    added = fleet.api.post(f"/v1/rollouts/{rollout}/add", json={"devices": more})
    (warning,) = added.raise_for_status().json()["warnings"]
    assert warning.startswith("no gate counts 10 devices of them")
    with fleet.controller._database.reading() as transaction:
        assert control_group.count_among(transaction, rollout, more) == 0


def test_who_is_added_has_a_turn_also_in_a_stage_that_is_complete(
    fleet: Telling, database_url: str
) -> None:
    own, more = names("cam", DEVICES)[:10], names("cam", DEVICES)[10:]
    rollout = fleet.roll_out(
        "digits:2",
        selector=f"id in ({','.join(own)})",
        gates=[GATES["temperature"]],
        soak_s=3600.0,
        control_percent=50,
    )
    for _ in range(3):
        fleet.step()
    fleet.api.post(f"/v1/rollouts/{rollout}/add", json={"devices": more}).raise_for_status()
    held = held_out(fleet, rollout) & {*more}
    assert len(held) == 5
    for name in held:
        fleet.devices[name].leave()
    for _ in range(3):
        fleet.step()
    assert away_at_their_turn(database_url) == held
    assert held_out(fleet, rollout) & {*more} == {*more} - held, "others take their places"
