"""A thermometer is believed while what it says is possible, and no longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.device.sensors.heat import severe_c
from telemetry.device.sensors.thermometer import (
    COLDEST_C,
    FALL_S,
    FROZEN_S,
    HOTTEST_C,
    JUMP_C,
    RISE_S,
    Thermometer,
)
from wire.profile import ThermalLimits

STATED = ThermalLimits(nominal_c=50.0, severe_c=90.0)


def feed(
    thermometer: Thermometer, celsius: float, seconds: int, load: float | None, start_s: float = 0.0
) -> float | None:
    judged = None
    for second in range(seconds):
        judged = thermometer.judge(celsius, start_s + second, load)
    return judged


def test_a_fall_must_last_longer_than_a_rise() -> None:
    assert FALL_S >= 10 * RISE_S
    thermometer = Thermometer()
    assert thermometer.judge(20.0, 0.0, None) == 20.0
    assert thermometer.judge(90.0, RISE_S - 0.1, None) is None
    assert thermometer.judge(90.0, RISE_S, None) == 90.0
    assert thermometer.judge(20.0, RISE_S + FALL_S - 0.1, None) is None
    assert thermometer.judge(20.0, RISE_S + FALL_S, None) == 20.0


def test_a_clock_that_goes_back_makes_no_jump_believable() -> None:
    thermometer = Thermometer()
    assert thermometer.judge(80.0, 5000.0, None) == 80.0
    assert thermometer.judge(10.0, 100.0, None) is None
    assert thermometer.judge(10.0, 100.0 + FALL_S - 1.0, None) is None
    assert thermometer.judge(79.0, 90.0, None) == 79.0


def test_a_value_that_ignores_the_load_is_not_believed_until_it_moves() -> None:
    thermometer = Thermometer()
    assert thermometer.judge(44.0, 0.0, 0.1) == 44.0
    idle_s = int(FROZEN_S / 2)
    assert feed(thermometer, 45.0, idle_s, 0.1) == 45.0
    assert feed(thermometer, 45.0, idle_s, 0.9, float(idle_s)) == 45.0, "not long enough"
    assert feed(thermometer, 45.0, 2, 0.9, FROZEN_S) is None
    assert thermometer.counts, "it worked once: nobody knows how hot it is there now"
    assert thermometer.judge(45.001, FROZEN_S + 9.0, 0.9) == 45.001


def test_a_still_value_under_a_still_load_is_believed() -> None:
    thermometer = Thermometer()
    assert feed(thermometer, 45.0, 5 * int(FROZEN_S), 0.5) == 45.0
    assert feed(Thermometer(), 45.0, 5 * int(FROZEN_S), None) == 45.0


def test_a_constant_is_no_thermometer() -> None:
    thermometer = Thermometer()
    feed(thermometer, 27.8, int(FROZEN_S), 0.1)
    assert feed(thermometer, 27.8, 9, 0.9, FROZEN_S) is None
    assert not thermometer.counts, "its loss says nothing about the others"


@pytest.mark.parametrize("celsius", [None, 0.0, COLDEST_C - 0.001, HOTTEST_C + 0.001])
def test_the_impossible_was_never_said(celsius: float | None) -> None:
    thermometer = Thermometer()
    assert thermometer.judge(celsius, 0.0, None) is None
    assert not thermometer.counts
    assert thermometer.judge(60.0, 0.1, None) == 60.0


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(-300, 300),
            st.floats(-100, 100),
            st.none() | st.floats(0, 1),
        )
    )
)
def test_what_is_believed_is_possible_and_was_said(
    readings: list[tuple[float | None, float, float | None]],
) -> None:
    thermometer = Thermometer()
    now_s, last = 0.0, None
    for celsius, elapsed_s, load in readings:
        now_s += elapsed_s
        judged = thermometer.judge(celsius, now_s, load)
        assert judged in {None, celsius}
        if judged is None:
            continue
        assert COLDEST_C <= judged <= HOTTEST_C
        if last is not None and now_s - last[1] < RISE_S and elapsed_s >= 0.0:
            assert abs(judged - last[0]) <= JUMP_C or now_s < last[1]
        last = judged, now_s


@pytest.mark.parametrize(
    ("trips", "limits", "expected"),
    [
        ({}, ThermalLimits(), 85.0),
        ({}, STATED, 90.0),
        ({"passive": [95.0]}, ThermalLimits(), 95.0),
        ({"passive": [95.0]}, STATED, 90.0),
        ({"passive": [75.0]}, STATED, 75.0),
        ({"passive": [75.0, 85.0]}, ThermalLimits(), 85.0),
        ({"passive": [95.0], "hot": [80.0]}, ThermalLimits(), 80.0),
        ({"critical": [70.0]}, STATED, 70.0),
        ({"critical": [110.0]}, ThermalLimits(), 85.0),
        ({"active": [60.5]}, STATED, 90.0),
        ({"passive": [-274.0, 0.0, 40.0, 200.0]}, STATED, 90.0),
        ({"passive": [65.0]}, ThermalLimits(nominal_c=66.0, severe_c=90.0), 90.0),
    ],
)
def test_what_is_severe(
    trips: dict[str, list[float]], limits: ThermalLimits, expected: float
) -> None:
    assert severe_c(trips, limits) == expected


@given(
    st.dictionaries(
        st.sampled_from(["passive", "hot", "critical", "active"]),
        st.lists(st.floats(-300, 300)).map(sorted),
    ),
    st.floats(0, 100),
    st.floats(0.1, 50),
)
def test_severe_is_above_nominal_and_no_milder_than_the_profile(
    trips: dict[str, list[float]], nominal_c: float, span_c: float
) -> None:
    limits = ThermalLimits(nominal_c=nominal_c, severe_c=nominal_c + span_c)
    assert nominal_c < severe_c(trips, limits) <= limits.severe_c
