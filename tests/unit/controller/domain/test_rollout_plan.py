"""What a rollout would do: stages, the control group, and how long."""

from __future__ import annotations

import pytest

from controller.domain.rollout_plan import (
    EarlierInstalls,
    PlannedDevice,
    StagePlan,
    earlier_installs,
    plan,
    stage_s,
)
from controller.domain.rollout_view import StageSpec

HALF, ALL = StageSpec(percent=50), StageSpec(percent=100)


def devices(count: int, **changes: dict[int, bool]) -> list[PlannedDevice]:
    return [
        PlannedDevice(
            id=f"cam-{number:02}",
            profile="pi4" if number % 2 else "pi5",
            place=100 - number,
            **{key: values[number] for key, values in changes.items() if number in values},
        )
        for number in range(count)
    ]


def names(stage: StagePlan) -> list[str]:
    return [device.id for device in stage.devices]


def test_devices_start_in_their_order_and_those_that_are_offline_come_last() -> None:
    made = plan(
        devices(5, is_online={4: False}),
        (StageSpec(count=1), HALF, ALL),
        has_gates=False,
        control_percent=10,
    )
    assert [(stage.target, names(stage)) for stage in made.stages] == [
        (1, ["cam-03"]),
        (3, ["cam-02", "cam-01"]),
        (5, ["cam-00", "cam-04"]),
    ]
    assert made.control == ()
    assert not any(stage.asks_gates for stage in made.stages)


def test_the_control_group_ends_the_last_stage_and_small_stages_ask_no_gates() -> None:
    made = plan(devices(12), (StageSpec(count=4), HALF, ALL), has_gates=True, control_percent=10)
    assert [(s.target, len(s.devices), s.asks_gates) for s in made.stages] == [
        (4, 4, False), (6, 2, True), (12, 0, True)
    ]  # fmt: skip
    assert len(made.control) == 6
    assert not {device.id for device in made.control} & {n for s in made.stages for n in names(s)}


@pytest.mark.parametrize("count", [0, 1, 7, 90])
def test_each_device_is_in_one_stage_or_in_the_control_group(count: int) -> None:
    fleet = devices(count)
    made = plan(fleet, (HALF, StageSpec(count=9), ALL), has_gates=True, control_percent=20)
    planned = [device for stage in made.stages for device in stage.devices]
    assert sorted([*planned, *made.control], key=lambda d: d.id) == fleet
    assert made.stages[-1].target == count


def test_times_are_told_by_five_earlier_installs_and_no_fewer() -> None:
    assert earlier_installs([1.0, 2.0, 3.0, 4.0]) is None
    assert earlier_installs([float(s) for s in range(10, 0, -1)]) == EarlierInstalls(
        count=10, median_s=5.5, slow_s=9.0
    )


def test_a_stage_takes_a_round_of_installs_for_each_full_flight_and_its_soak() -> None:
    fleet = devices(9, runs_it={0: True})
    stage = StagePlan(number=1, target=9, devices=tuple(fleet), asks_gates=False)
    assert stage_s(stage, (), each_s=10.0, max_in_flight=4, soak_s=60.0) == 2 * 10.0 + 60.0
    assert stage_s(stage, fleet[1:3], each_s=10.0, max_in_flight=4, soak_s=60.0) == 30.0 + 120.0
    none = StagePlan(number=1, target=0, devices=(), asks_gates=False)
    assert stage_s(none, (), each_s=10.0, max_in_flight=4, soak_s=60.0) == 60.0
