"""A Kalman filter of a line. Pure: a measurement in, the next filter out.

Source:
    Kalman, A New Approach to Linear Filtering and Prediction Problems (1960); Bar-Shalom, Li and
    Kirubarajan, Estimation with Applications to Tracking and Navigation (2001), section 5.2.
"""

from __future__ import annotations

import msgspec


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """y = base + slope * x. Base and slope drift slowly; the slope is never negative."""

    base: float
    slope: float
    base_variance: float
    slope_variance: float
    covariance: float = 0.0

    def at(self, x: float) -> float:
        """Return y at x."""
        return self.base + self.slope * x

    def variance_at(self, x: float) -> float:
        """Return the variance of the line's y at x."""
        spread = self.base_variance + 2.0 * x * self.covariance + x * x * self.slope_variance
        return max(spread, 0.0)

    def drifted(self, base_step: float, slope_step: float) -> Line:
        """Return the line after a time in which its base and slope may have drifted.

        Args:
            base_step: Variance that the drift adds to the base.
            slope_step: Variance that the drift adds to the slope.
        """
        return msgspec.structs.replace(
            self,
            base_variance=self.base_variance + base_step,
            slope_variance=self.slope_variance + slope_step,
        )

    def update(self, x: float, measured: float, *, gain: float, noise: float) -> Line:
        """Return the line after a measurement of `gain` times its y.

        Args:
            x: Where it was measured.
            measured: The measurement.
            gain: Factor of y in the measurement.
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
