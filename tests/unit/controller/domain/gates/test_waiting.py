"""How long it takes until enough devices tell, from how fast they measure."""

from __future__ import annotations

import pytest

from controller.domain.gates.waiting import wait_text

MINUTE = 60.0


@pytest.mark.parametrize(
    ("treated", "control", "said"),
    [
        ([100.0] * 5, [100.0] * 9, ""),
        ([25.0] * 5, [100.0] * 9, "in about 30m"),
        ([100.0] * 5, [100.0] * 4 + [10.0, 1.0], "in about 1h30m"),
        ([100.0] * 5 + [50.0] * 15, [100.0] * 20, "in about 10m"),
        ([100.0] * 4, [100.0] * 9, "too few devices measure this at all: 13 of 13"),
        ([0.0] * 9, [0.0] * 9, "too few devices measure this at all: 0 of 18"),
        ([50.0] * 9, [], "in about 10m"),
        ([10.0] * 9, [10.0] * 3, "; 3 of 5 devices with the old release are left"),
    ],
)
def test_the_wait(treated: list[float], control: list[float], said: str) -> None:
    found = wait_text(treated, control, 100.0, 10 * MINUTE)
    assert said in found
    assert bool(said) == bool(found)
