"""The turns of devices that do not begin come evenly while others begin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.turns import MOMENTS, moment, passed
from controller.domain.starting_order import PLACES


@given(st.integers(0, 102 * PLACES))
def test_each_device_has_its_turn_before_a_stage_is_full(place: int) -> None:
    assert 0 <= moment(place) < passed(7, 7)


@given(st.integers(0, 500), st.integers(0, 500))
def test_turns_come_with_the_devices_that_begin(begun: int, size: int) -> None:
    over = passed(begun, size)
    assert 0 <= over <= MOMENTS == passed(size, size)
    if begun < size:
        assert over / MOMENTS <= begun / size < (over + 1) / MOMENTS
