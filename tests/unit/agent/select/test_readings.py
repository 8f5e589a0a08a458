"""Readings that no device can have reach no policy."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.select.readings import POSSIBLE, possible
from wire.health import HealthSnapshot

ALL = HealthSnapshot(
    at_s=1e9, temperature_c=50.0, headroom=0.5, throttled=False, fan_ratio=0.0,
    cpu_frequency_limit_ratio=1.0, cpu_busy_ratio=0.3, cpu_stall_ratio=0.1, load_ratio=2.0,
    battery_ratio=0.5, battery_discharging=True, battery_energy_j=1e5, battery_capacity_j=2e5,
    power_mw=5000.0, memory_available_bytes=10**9,
)  # fmt: skip


def test_what_a_device_can_have_stays() -> None:
    assert possible(ALL) is ALL
    assert possible(HealthSnapshot(at_s=0.0)) == HealthSnapshot(at_s=0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", sorted(POSSIBLE))
def test_what_is_no_number_is_unknown(name: str, value: float) -> None:
    spoilt = msgspec.structs.replace(ALL, **{name: value})
    assert possible(spoilt) == msgspec.structs.replace(ALL, **{name: None})


@given(st.sampled_from(sorted(POSSIBLE)), st.floats())
def test_every_reading_is_within_its_bounds_or_unknown(name: str, value: float) -> None:
    kept = getattr(possible(msgspec.structs.replace(ALL, **{name: value})), name)
    least, most = POSSIBLE[name]
    assert kept is None or least <= kept <= most


@pytest.mark.parametrize("name", ["at_s", "utc_offset_s"])
def test_a_time_that_is_no_number_has_a_time_of_day(name: str) -> None:
    spoilt = msgspec.structs.replace(ALL, **{name: math.nan})
    assert math.isfinite(possible(spoilt).local_s)
