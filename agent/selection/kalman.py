"""Kalman filters of one and two numbers, as values: a measurement in, the next filter out.

Source:
    Kalman, A New Approach to Linear Filtering and Prediction Problems (1960); Bar-Shalom, Li and
    Kirubarajan, Estimation with Applications to Tracking and Navigation (2001), section 5.2.
    A level's noises that adapt: Akhlaghi, Zhou and Huang, Adaptive Adjustment of Noise Covariance
    in Kalman Filter for Dynamic State Estimation (2017): from the surprise that of the steps, from
    what is left of it after the update that of the measurements. The least process noise: Wan et
    al., ALERT (USENIX ATC 2020), section 3.3.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

ADAPTS: Final = 0.3
"""Share of the process noise that stays at an update; the rest is what the update showed."""

LEAST_PROCESS: Final = 4e-4
"""Steps of two hundredths: without them a level that was quiet for long would no longer move."""

NOISE_KEPT: Final = 0.9
"""Share of the measurements' noise that stays at an update."""

LEAST_NOISE: Final = 1e-4


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A number that wanders, by steps whose size is learnt, as the measurements' noise is."""

    mean: float = 0.0
    variance: float = 0.25
    """Of the mean."""

    process: float = 0.01
    """Variance of a step."""

    noise: float = 0.0025
    """Variance of a measurement."""

    def update(self, measured: float) -> Level:
        """Return the filter after a measurement."""
        before = self.variance + self.process
        gain = before / (before + self.noise)
        step, variance = gain * (measured - self.mean), (1.0 - gain) * before
        mean = self.mean + step
        process = ADAPTS * self.process + (1.0 - ADAPTS) * step**2
        shown = (measured - mean) ** 2 + variance
        return Level(
            mean=mean,
            variance=variance,
            process=max(process, LEAST_PROCESS),
            noise=max(NOISE_KEPT * self.noise + (1.0 - NOISE_KEPT) * shown, LEAST_NOISE),
        )

    @property
    def next_sigma(self) -> float:
        """Standard deviation of the next measurement."""
        return math.sqrt(self.variance + self.process + self.noise)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """y = base + slope * x, both of which wander slowly; a slope is never negative."""

    base: float
    slope: float
    base_variance: float
    slope_variance: float
    covariance: float = 0.0

    def at(self, x: float) -> float:
        """Return y at a place."""
        return self.base + self.slope * x

    def variance_at(self, x: float) -> float:
        """Return the variance of the line's y at a place."""
        spread = self.base_variance + 2.0 * x * self.covariance + x * x * self.slope_variance
        return max(spread, 0.0)

    def drifted(self, base_step: float, slope_step: float) -> Line:
        """Return the line after a time in which its parts may have wandered.

        Args:
            base_step: Variance by which the base may have moved.
            slope_step: Of the slope.
        """
        return msgspec.structs.replace(
            self,
            base_variance=self.base_variance + base_step,
            slope_variance=self.slope_variance + slope_step,
        )

    def update(self, x: float, measured: float, *, gain: float, noise: float) -> Line:
        """Return the line after a measurement of `gain` times its y.

        Args:
            x: The place.
            measured: The measurement.
            gain: By which y counts in it.
            noise: Variance of the measurement.
        """
        toward_base = gain * (self.base_variance + x * self.covariance)
        toward_slope = gain * (self.covariance + x * self.slope_variance)
        total = gain * gain * self.variance_at(x) + noise
        surprise = measured - gain * self.at(x)
        base_gain, slope_gain = toward_base / total, toward_slope / total
        return Line(
            base=self.base + base_gain * surprise,
            slope=max(self.slope + slope_gain * surprise, 0.0),
            base_variance=max(self.base_variance - base_gain * toward_base, 0.0),
            slope_variance=max(self.slope_variance - slope_gain * toward_slope, 0.0),
            covariance=self.covariance - base_gain * toward_slope,
        )
