"""When a device that nobody asks may put off its next decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent.select.pace import CALM_HEADROOM, CHANGES, EQUAL, may_rest
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

MIB = 2**20
SPEC = PolicySpec()
CALM = HealthSnapshot(
    at_s=0.0, headroom=0.3, cpu_busy_ratio=0.2, cpu_stall_ratio=0.0, load_ratio=0.1,
    battery_ratio=0.8, throttled=False, fan_ratio=0.0, cpu_frequency_limit_ratio=1.0,
    battery_discharging=True, memory_available_bytes=900 * MIB,
)  # fmt: skip


def test_it_may_where_nothing_has_changed() -> None:
    assert may_rest(CALM, replace(CALM, at_s=1.0, power_mw=900.0), SPEC)
    assert may_rest(HealthSnapshot(at_s=0.0), HealthSnapshot(at_s=1.0), SPEC)


@pytest.mark.parametrize(("name", "most"), CHANGES)
def test_a_reading_that_changes_more_than_a_little_is_looked_at(name: str, most: float) -> None:
    before = getattr(CALM, name)
    for to, may in ((before + 0.9 * most, True), (before + 1.1 * most, False), (None, False)):
        now = replace(CALM, **{name: to})
        assert may_rest(CALM, now, SPEC) is may


@pytest.mark.parametrize("name", EQUAL)
def test_a_state_that_changes_is_looked_at(name: str) -> None:
    other = {"throttled": True, "battery_discharging": False, "utc_offset_s": 3600.0}
    assert not may_rest(CALM, replace(CALM, **{name: other.get(name, 0.5)}), SPEC)


@given(st.floats(CALM_HEADROOM, 2.0, exclude_min=True))
def test_a_warm_device_may_not(headroom: float) -> None:
    warm = replace(CALM, headroom=headroom)
    assert not may_rest(warm, warm, SPEC)


def test_a_device_without_room_or_with_less_of_it_may_not() -> None:
    tight = replace(CALM, memory_available_bytes=2 * SPEC.low_memory_bytes - 1)
    assert not may_rest(tight, tight, SPEC)
    less = replace(CALM, memory_available_bytes=800 * MIB)
    assert not may_rest(CALM, less, SPEC)
    assert may_rest(CALM, replace(CALM, memory_available_bytes=880 * MIB), SPEC)
