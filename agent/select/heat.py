"""How warm the device will be: a first-order model, fitted while it runs.

The headroom (0.0 nominal, 1.0 severe) moves towards `base + slope * load` with a time constant.
The right time constant is not known, so the fit keeps one filter for each of several and weights
them by how well they predicted.

Rules:
- Pure. Without a reading the model continues alone and its uncertainty grows: unknown never counts
  as cool.
- A forecast has a standard deviation, which includes the disagreement of the filters.
- While the sensor gives no readings, the model remembers the loads and learns from them later.
- While a fan runs, a second line holds. A forecast assumes that the fan starts at the headroom at
  which it last started.

Source:
    Lumped-capacitance heat balance: Incropera and DeWitt, Fundamentals of Heat and Mass Transfer,
    chapter 5. Several filters side by side: Magill, Optimal Adaptive Estimation of Sampled
    Stochastic Processes (1965). The scale of the headroom: Android's getThermalHeadroom.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from agent.select.asked_last import last_asked
from agent.select.kalman import Line

TIME_CONSTANTS_S: Final = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0)
"""From a bare chip to a box of cast aluminium."""

SLOPE_PRIOR: Final = 0.8
"""Full load warms a small board by about 30 degrees; its scale is about 35 degrees wide."""

SLOPE_SIGMA, BASE_SIGMA = 0.4, 0.3
READING_SIGMA: Final = 0.015
"""Half a degree, the step of thermal zones."""

BASE_DRIFT_PER_S: Final = 1e-5
"""Variance per second: the ambient temperature may change by about a degree in a minute."""

BLIND_PER_S: Final = 0.002
"""Standard deviation that a second without a reading adds: four degrees in a minute, as when a
device comes out of the shade."""

SLOPE_DRIFT_PER_S: Final = 1e-7
STEP_S: Final = 30.0
"""Shorter steps show more of the sensor's noise than of the board: a slow board would look like a
quick one that no load warms."""

FIRST_STEP_S: Final = 15.0
"""While nothing is known, even a short step helps more than it misleads."""

KEPT: Final = 0.98
"""Share of the mean of a model's errors that is kept after `STEP_S`: only many errors together tell
one time constant from another."""


LEAST_WORTH: Final = 1e-3
"""A model whose likelihood, relative to the best one's, is below this gets no weight."""


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The headroom at a later time."""

    mean: float
    sigma: float

    def at_most(self, z: float) -> float:
        """Return the headroom that is `z` standard deviations above the mean."""
        return self.mean + z * self.sigma


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One time constant, and the lines of the headroom's steady value under it."""

    time_constant_s: float
    steady: Line
    cooled: Line
    """Like `steady`, while a fan runs."""

    unlikeliness: float = 0.0
    """Mean of -2 log of the likelihood of the changes that it learnt from."""

    unexplained: float = 0.0
    """Variance of the steady headroom that the errors show beyond the variance of the line."""

    def share(self, after_s: float) -> float:
        """Return the share of the way to its steady headroom that the board goes in a time."""
        return _share(self.time_constant_s, after_s)

    def line(self, *, fan: bool) -> Line:
        """Return the line of the steady headroom with a running fan, or without one."""
        return self.cooled if fan else self.steady

    def response(self, before: float, load: float, period_s: float) -> float:
        """Return what one unit of slope has added to the headroom by the end of a period."""
        share = self.share(period_s)
        return (1.0 - share) * before + share * load

    def learn(
        self,
        before: float,
        after: float,
        response: float,
        period_s: float,
        *,
        fan: bool,
        moved_sigma: float,
    ) -> Model:
        """Return the model after it has learnt from a change of the headroom.

        Args:
            before: Headroom at the start of the change.
            after: Headroom at its end.
            response: What one unit of slope added in between.
            period_s: Time in between.
            fan: Whether a fan ran.
            moved_sigma: Deviation of the ambient temperature's change without readings.
        """
        share = self.share(period_s)
        # The effect of an early load has faded: it equals that of a smaller load all the time.
        load = response / share
        moved = after - (1.0 - share) * before
        base_step = BASE_DRIFT_PER_S * period_s + moved_sigma**2
        line = self.line(fan=fan).drifted(base_step, SLOPE_DRIFT_PER_S * period_s)
        noise = 2.0 * READING_SIGMA**2
        expected = share * share * line.variance_at(load) + noise
        square = (moved - share * line.at(load)) ** 2
        learnt = line.update(load, moved, gain=share, noise=noise)
        kept = KEPT ** (period_s / STEP_S)
        return Model(
            time_constant_s=self.time_constant_s,
            steady=self.steady if fan else learnt,
            cooled=learnt if fan else self.cooled,
            unlikeliness=_mix(self.unlikeliness, square / expected + math.log(expected), kept),
            unexplained=_mix(self.unexplained, max(square - expected, 0.0) / share**2, kept),
        )

    def forecast(
        self, now: float, sigma: float, load: float, after_s: float, *, fan: bool
    ) -> tuple[float, float]:
        """Return the headroom after a time under a load: its mean and its standard deviation.

        Args:
            now: What it is now.
            sigma: Its standard deviation now.
            load: Share of the processor that is busy.
            after_s: The time.
            fan: Whether a fan runs.
        """
        share, line = _share(self.time_constant_s, after_s), self.cooled if fan else self.steady
        variance = (
            line.base_variance + 2.0 * load * line.covariance + load * load * line.slope_variance
        )
        steady_sigma = math.sqrt(max(variance, 0.0) + self.unexplained)
        # An error of the steady headroom keeps its sign all the time, so deviations add.
        return (
            (1.0 - share) * now + share * (line.base + line.slope * load),
            (1.0 - share) * sigma + share * steady_sigma,
        )

    def reaches_s(self, headroom: float, now: float, load: float) -> float:
        """Return in what time the headroom reaches a value without a fan; infinite if never."""
        left, whole = self.steady.at(load) - headroom, self.steady.at(load) - now
        if left <= 0.0:
            return math.inf
        return self.time_constant_s * math.log(whole / left) if whole > left else 0.0


class HeatFit(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the fit of a board's heat."""

    now: Forecast | None = None
    """The headroom, from the model if the sensor gives none; None before the first reading."""

    models: tuple[Model, ...] = ()
    weights: tuple[float, ...] = ()
    """Weight of each model, by how well it predicted; they sum to 1."""

    fan: bool = False
    """Whether a fan runs."""

    fan_from: float | None = None
    """The headroom at which the fan last started."""

    start: float | None = None
    """The reading from which the models learn next; None if there is none."""

    since_s: float = 0.0
    """Time since that reading."""

    responses: tuple[float, ...] = ()
    """What one unit of slope has added since that reading, by model."""

    learnt: bool = False
    """Whether the models have learnt anything yet."""

    def update(
        self, headroom: float | None, load: float, period_s: float, *, fan: bool = False
    ) -> HeatFit:
        """Return the fit after a period.

        Args:
            headroom: Reading at the end of the period; None if there was no plausible reading.
            load: Share of the period in which the processor was busy, 0 to 1.
            period_s: Length of the period in seconds.
            fan: Whether a fan runs at the end of the period.
        """
        doubt = self.now.sigma if self.now else 0.0
        # A change during which a fan started or stopped is not clear enough to learn from.
        start = self.start if fan is self.fan else None
        since_s = self.since_s + period_s
        responses = tuple(
            model.response(before, load, period_s)
            for model, before in zip(self.models, self.responses, strict=True)
        )
        if headroom is None:
            ahead = self.forecast(load, period_s)
            if ahead is not None:
                ahead = Forecast(mean=ahead.mean, sigma=doubt + BLIND_PER_S * period_s)
            return msgspec.structs.replace(
                self, now=ahead, fan=fan, start=start, since_s=since_s, responses=responses
            )
        begun = headroom if fan and not self.fan and self.now is not None else self.fan_from
        fresh = msgspec.structs.replace(
            self, now=Forecast(mean=headroom, sigma=READING_SIGMA), fan=fan, fan_from=begun
        )
        if start is not None and since_s < (STEP_S if self.learnt else FIRST_STEP_S):
            return msgspec.structs.replace(fresh, since_s=since_s, responses=responses)
        models = self.models or _priors(headroom, load)
        if start is not None:
            blind_sigma = max(doubt - READING_SIGMA, 0.0)
            models = tuple(
                model.learn(start, headroom, came, since_s, fan=fan, moved_sigma=blind_sigma)
                for model, came in zip(models, responses, strict=True)
            )
        return msgspec.structs.replace(
            fresh,
            models=models,
            weights=_weights(models),
            start=headroom,
            since_s=0.0,
            responses=(0.0,) * len(models),
            learnt=self.learnt or start is not None,
        )

    @property
    def slope(self) -> float:
        """How much a fully busy processor adds to the headroom in the end."""
        return math.fsum(
            weight * model.line(fan=self.fan).slope
            for weight, model in zip(self.weights, self.models, strict=True)
        )

    def forecast(self, load: float, after_s: float) -> Forecast | None:
        """Return the headroom after a time under a load; None before the first reading."""
        if self.now is None:
            return None
        known = _forecasts(self, None)
        found = known.get((load, after_s))
        if found is None:
            found = known[load, after_s] = self._forecast(self.now, load, after_s)
        return found

    def _forecast(self, here: Forecast, load: float, after_s: float) -> Forecast:
        now, sigma = here.mean, here.sigma
        means, squares = 0.0, 0.0
        for weight, model in zip(self.weights, self.models, strict=True):
            if weight:
                at, off = self._by(model, now, sigma, load, after_s)
                means += weight * at
                squares += weight * (off * off + at * at)
        # If the models disagree, at least one is wrong.
        return Forecast(mean=means, sigma=math.sqrt(max(squares - means * means, 0.0)))

    def _by(
        self, model: Model, now: float, sigma: float, load: float, after_s: float
    ) -> tuple[float, float]:
        if self.fan or self.fan_from is None:
            return model.forecast(now, sigma, load, after_s, fan=self.fan)
        begins_s = model.reaches_s(self.fan_from, now, load)
        if begins_s >= after_s:
            return model.forecast(now, sigma, load, after_s, fan=False)
        there = max(self.fan_from, now)
        return model.forecast(there, sigma, load, after_s - begins_s, fan=True)


@last_asked
def _forecasts(_fit: HeatFit, _what: None) -> dict[tuple[float, float], Forecast]:
    """Return the forecasts of a fit that are known: many variants ask for the same ones."""
    return {}


@functools.lru_cache(256)
def _share(time_constant_s: float, after_s: float) -> float:
    return -math.expm1(-after_s / time_constant_s)


def _priors(headroom: float, load: float) -> tuple[Model, ...]:
    line = Line(
        base=headroom - SLOPE_PRIOR * load,
        slope=SLOPE_PRIOR,
        base_variance=BASE_SIGMA**2,
        slope_variance=SLOPE_SIGMA**2,
    )
    return tuple(Model(time_constant_s=tau, steady=line, cooled=line) for tau in TIME_CONSTANTS_S)


def _weights(models: Sequence[Model]) -> tuple[float, ...]:
    least = min(model.unlikeliness for model in models)
    # One change has the weight 1 - KEPT in the mean of -2 log of the likelihood.
    worths = [math.exp((least - m.unlikeliness) / (2.0 * (1.0 - KEPT))) for m in models]
    heard = [worth if worth >= LEAST_WORTH else 0.0 for worth in worths]
    total = math.fsum(heard)
    return tuple(worth / total for worth in heard)


def _mix(before: float, added: float, kept: float) -> float:
    return kept * before + (1.0 - kept) * added
