"""How the sensors of a board err: steps, lag, noise, an offset, and times without a reading.

Rules:
- Pure. What is random follows from the seed and the tick alone (`agent.replay.chance`).
- The model of the board goes on with the true values; only the agent's readings err.

Source:
    Lag of the first order: Doebelin, Measurement Systems, 5th edition, section 3.3. Losses: the
    two-state Markov chain of Gilbert, Capacity of a burst-noise channel, Bell System Technical
    Journal 39 (1960).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from agent.replay.chance import SEEDS, normal, start, uniform

MAX_C: Final = 100.0
MAX_S: Final = 100_000.0
NOISE, LOSSES = 11, 12
"""Streams of random numbers, apart from those of the requests."""


class Sensors(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The errors of a board's sensors; by default there are none."""

    seed: int = 1
    temperature_step_c: float = 0.0
    """Readings are multiples of this; 0 for any value."""

    temperature_lag_s: float = 0.0
    """Time constant with which the sensor follows the chip."""

    temperature_noise_c: float = 0.0
    """Standard deviation of each reading."""

    temperature_offset_c: float = 0.0
    lost_share: float = 0.0
    """Share of the time without a temperature."""

    lost_s: float = 10.0
    """Mean length of such a time; longer where the share needs it."""

    charge_step: float = 0.0
    """Readings of the charge are multiples of this: 0.01 for whole percent; 0 for any value."""

    has_power_gauge: bool = True

    def temperature_c(self, followed_c: float, error: SensorError) -> float | None:
        """Return the reading of the temperature.

        Args:
            followed_c: The temperature that the sensor has, after its lag.
            error: What is random about the reading.
        """
        if error.is_lost:
            return None
        noise_c = self.temperature_noise_c * error.deviate
        return _in_steps(followed_c + self.temperature_offset_c + noise_c, self.temperature_step_c)

    def charge_ratio(self, truth: float) -> float:
        """Return the reading of the charge."""
        return min(_in_steps(truth, self.charge_step), 1.0)

    def followed_c(self, before_c: float, chip_c: float, step_s: float) -> float:
        """Return the temperature that the sensor has after a step.

        Args:
            before_c: What it had before.
            chip_c: Temperature of the chip during the step.
            step_s: Length of the step.
        """
        if self.temperature_lag_s == 0.0:
            return chip_c
        return chip_c + (before_c - chip_c) * math.exp(-step_s / self.temperature_lag_s)

    def faults(self) -> tuple[str, ...]:
        """Return what is impossible about the sensors; empty if they are possible."""
        rules = (
            (0 <= self.seed < SEEDS, f"seed is not within 0 to {SEEDS - 1}"),
            (
                0.0 <= self.temperature_step_c <= MAX_C,
                f"temperature_step_c is not within 0 to {MAX_C:g}",
            ),
            (
                0.0 <= self.temperature_lag_s <= MAX_S,
                f"temperature_lag_s is not within 0 to {MAX_S:g}",
            ),
            (
                0.0 <= self.temperature_noise_c <= MAX_C,
                f"temperature_noise_c is not within 0 to {MAX_C:g}",
            ),
            (
                -MAX_C <= self.temperature_offset_c <= MAX_C,
                f"temperature_offset_c is not within -{MAX_C:g} to {MAX_C:g}",
            ),
            (0.0 <= self.lost_share <= 1.0, "lost_share is not within 0 to 1"),
            (0.0 < self.lost_s <= MAX_S, f"lost_s is not above 0 and at most {MAX_S:g}"),
            (0.0 <= self.charge_step <= 1.0, "charge_step is not within 0 to 1"),
        )
        return tuple(text for holds, text in rules if not holds)


class SensorError(NamedTuple):
    """What is random about the readings of a tick."""

    deviate: float = 0.0
    """Of the standard normal distribution."""

    is_lost: bool = False
    """Whether there is no temperature."""


def sensor_errors(sensors: Sensors, ticks: int, period_s: float) -> Iterator[SensorError]:
    """Yield what is random about the readings of each tick.

    Args:
        sensors: The sensors.
        ticks: Number of ticks.
        period_s: Length of a tick in seconds.
    """
    share = sensors.lost_share
    comes = min(period_s / sensors.lost_s, 1.0)
    goes = comes * share / (1.0 - share) if share < 1.0 else 1.0
    if goes > 1.0 or share == 1.0:
        comes, goes = (1.0 - share) / share, 1.0
    is_lost, loses = False, share
    for tick in range(ticks):
        if share:
            is_lost = uniform(start(sensors.seed, LOSSES, tick), 0) < loses
            loses = 1.0 - comes if is_lost else goes
        noisy = sensors.temperature_noise_c > 0.0
        deviate = normal(start(sensors.seed, NOISE, tick), 0) if noisy else 0.0
        yield SensorError(deviate, is_lost)


def _in_steps(value: float, step: float) -> float:
    return round(value / step) * step if step else value
