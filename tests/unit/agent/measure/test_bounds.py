"""What a device may measure: strains, memory, and the variant that stands for the reference."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.measure.bounds import BASE_BYTES, reference_of, why_not, why_stop
from agent.select.levers import Cause, Levers
from tests.simulators.packages import variant
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.policy import PolicySpec

SPEC = PolicySpec()
MIB = 2**20


def health(free_bytes: int | None = None) -> HealthSnapshot:
    return HealthSnapshot(at_s=0.0, memory_available_bytes=free_bytes)


def levers(*causes: Cause) -> Levers:
    return Levers(causes=causes, reasons=tuple(f"{cause}: it is so" for cause in causes))


@pytest.mark.parametrize("cause", ["heat", "battery"])
def test_heat_and_a_low_battery_stop_it(cause: Cause) -> None:
    reason = why_stop(levers("load", cause), health(), SPEC)
    assert f"{cause}: it is so" in reason
    assert "load" not in reason


def test_load_and_other_programs_do_not_stop_it_because_it_waits_behind_them() -> None:
    assert not why_stop(levers("load", "contention"), health(), SPEC)


def test_the_memory_that_the_policy_keeps_free_stays_free() -> None:
    assert "memory" in why_stop(levers(), health(SPEC.low_memory_bytes - 1), SPEC)
    assert not why_stop(levers(), health(SPEC.low_memory_bytes), SPEC)
    assert not why_stop(levers(), health(None), SPEC), "unknown is no reason to refuse"


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 2000))
def test_variants_are_measured_together_only_if_the_memory_holds_both(
    one: int, other: int, free: int
) -> None:
    both = (variant("a", memory_bytes=one * MIB), variant("b", memory_bytes=other * MIB))
    fits = (one + other) * MIB <= free * MIB - SPEC.low_memory_bytes
    assert (not why_not(both, health(free * MIB), SPEC)) == fits


def test_a_need_that_is_not_told_is_guessed_from_the_size() -> None:
    unknown = variant("a", memory_bytes=0, size_bytes=MIB)
    free = SPEC.low_memory_bytes + BASE_BYTES + 2 * MIB
    assert not why_not((unknown,), health(free), SPEC)
    assert why_not((unknown,), health(free - 1), SPEC)


def precise(name: str, precision: str, error: float) -> Variant:
    found = variant(name)
    assert found.info.accuracy is not None
    accuracy = msgspec.structs.replace(found.info.accuracy, worst_error=error)
    info = msgspec.structs.replace(found.info, precision=precision, accuracy=accuracy)
    return msgspec.structs.replace(found, info=info)


def test_the_reference_is_the_most_exact_variant_in_single_precision() -> None:
    far, near = precise("far", "fp32", 0.5), precise("near", "fp32", 0.0)
    assert reference_of((far, precise("half", "fp16", 0.0), near)) is near
    assert reference_of((precise("int8", "int8", 0.0),)) is None
