"""How often the API may be asked."""

from __future__ import annotations

import pytest

from controller.services.api_rates import Rates
from tests.simulators.clock import FakeClock


def test_a_burst_and_then_a_rate() -> None:
    clock = FakeClock()
    rates = Rates(clock, most=2)
    assert [rates.take("ci", 2.0, 3.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert rates.take("ci", 2.0, 3.0) == pytest.approx(0.5)
    assert rates.take("kim", 2.0, 3.0) == 0.0
    clock.advance(0.5)
    assert rates.take("ci", 2.0, 3.0) == 0.0


def test_only_so_many_are_kept() -> None:
    rates = Rates(FakeClock(), most=2)
    for number in range(10):
        assert rates.take(f"address {number}", 1.0, 1.0) == 0.0
    assert len(rates) == 2
    assert rates.take("address 9", 1.0, 1.0) > 0.0
    assert rates.take("address 0", 1.0, 1.0) == 0.0
