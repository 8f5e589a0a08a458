"""The rules of alerts: what each kind compares, and with which bounds. Pure.

Rules:
- A rule gives each of its groups one number, or none; `Limits` says when that number is beyond its
  bound. So all kinds have the same states (`telemetry.server.alerts.states`).
- Durations are text, as people write them; `telemetry.server.alerts.rules_file` has checked them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from telemetry.server.question import QUANTILE, SECONDS_PER_MINUTE
from wire.durations import parse_duration_s

Severity = Literal["info", "warning", "critical"]
Compare = Literal["ratio", "difference"]

SILENT_DEVICE: Final = "silent-device"
DEVICE_GROUP: Final = ("device",)
ABSENT: Final = 1.0
"""What a rule about the absence of a metric compares for a group that is absent; else 0."""

BEYOND_QUANTILE: Final = 10
"""How many values must lie beyond a quantile that is compared with another: with fewer, the two
differ by chance as much as rules ask for."""

LEAST_FAILURES: Final = 5
"""A burn rate is beyond its bound after more failures than these, however few requests there are,
unless its rule says otherwise."""

CLEAR_RATIO: Final = 0.9
"""A burn rate is clear below this part of its bound, unless its rule says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a number is beyond its bound, and when it is back."""

    above: float | None = None
    below: float | None = None
    clear: float | None = None
    """The bound that ends an alert, on the good side of the other; None for the same."""

    for_s: float = 0.0
    """How long the number must be beyond the bound before the alert fires."""

    def is_beyond(self, value: float) -> bool:
        """Tell whether a number is beyond the bound; one on the bound is not."""
        if self.above is not None:
            return value > self.above
        return self.below is not None and value < self.below

    def is_clear(self, value: float) -> bool:
        """Tell whether a number ends an alert."""
        if self.above is not None:
            return value <= (self.above if self.clear is None else self.clear)
        return self.below is None or value >= (self.below if self.clear is None else self.clear)


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all rules have."""

    name: str
    summary: str = ""
    """What is told with the alert."""

    severity: Severity = "warning"
    enabled: bool = True
    """If not, the rule is kept and judges nothing."""

    for_: str = msgspec.field(name="for", default="0s")
    selector: str = ""
    """Only devices that match it."""

    @property
    def for_s(self) -> float:
        """How long the condition must hold."""
        return parse_duration_s(self.for_)

    @property
    def names(self) -> tuple[str, ...]:
        """What parts its groups."""
        return ()

    @property
    def heard_s(self) -> float:
        """How long the controller must have heard its devices before the rule judges."""
        return 0.0


class OfMetric(Rule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What rules about metrics have."""

    where: tuple[str, ...] = ()
    """`key=value`, as `fleet telemetry query --where`."""

    by: tuple[str, ...] = ()
    """One alert for each value of these, as `fleet telemetry query --by`."""

    @property
    def names(self) -> tuple[str, ...]:
        """What parts its groups."""
        return self.by


class Threshold(OfMetric, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="threshold"):
    """A statistic is above or below a bound."""

    metric: str
    stat: str
    """One of `fleet telemetry query --stat`."""

    window: str = "5m"
    """Over how long the statistic is taken, until now."""

    above: float | None = None
    below: float | None = None
    clear: float | None = None
    min_count: float = 0.0
    """A group with fewer values in the window has no statistic; of a counter, with less counted."""

    @property
    def window_s(self) -> float:
        """The length of the window."""
        return parse_duration_s(self.window)

    @property
    def least_count(self) -> float:
        """How many values a group must have in a window."""
        return self.min_count

    @property
    def limits(self) -> Limits:
        """The bounds as they are written."""
        return Limits(above=self.above, below=self.below, clear=self.clear, for_s=self.for_s)


class Change(Threshold, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="change"):
    """A statistic differs from that of an earlier window."""

    offset: str = ""
    """How much earlier that window is; empty for the window just before."""

    compare: Compare = "ratio"
    """The later value divided by the earlier one, or less the earlier one."""

    @property
    def offset_s(self) -> float:
        """How much earlier the other window is."""
        return parse_duration_s(self.offset) if self.offset else self.window_s

    @property
    def least_count(self) -> float:
        """How many values a group must have in each of the windows.

        Source:
            A quantile q of n values has n * min(q, 1 - q) of them beyond it, give or take the root
            of n * q * (1 - q): with ten, about a third.
        """
        found = QUANTILE.fullmatch(self.stat)
        percent = float(found[1]) if found is not None else 0.0
        beyond = min(percent, 100.0 - percent)
        if beyond <= 0:
            return self.min_count
        return max(self.min_count, math.ceil(round(100 * BEYOND_QUANTILE / beyond, 6)))


class Absence(OfMetric, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="absence"):
    """Groups of a metric, or devices, have been silent for too long."""

    metric: str | None = None
    """None: enrolled devices of which the controller has heard nothing at all."""

    window: str = "15m"
    """How long the silence must be."""

    lookback: str = "1d"
    """A group is expected if it had values in this time."""

    @property
    def names(self) -> tuple[str, ...]:
        """What parts its groups."""
        return DEVICE_GROUP if self.metric is None else self.by

    @property
    def window_s(self) -> float:
        """How long the silence must be."""
        return parse_duration_s(self.window)

    @property
    def lookback_s(self) -> float:
        """How long ago a group may have had its last values."""
        return parse_duration_s(self.lookback)

    @property
    def heard_s(self) -> float:
        """As long as the silence: else it may be the controller that heard nobody.

        The window of a metric may have begun a minute earlier.
        """
        return self.window_s + (0 if self.metric is None else SECONDS_PER_MINUTE)

    @property
    def limits(self) -> Limits:
        """Of the seconds of silence; of a metric, of `ABSENT` or 0."""
        above = self.window_s if self.metric is None else ABSENT / 2
        return Limits(above=above, for_s=self.for_s)


class BurnRate(OfMetric, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="burn_rate"):
    """Errors use up the budget of an objective too fast, over a long and a short window.

    Source:
        Beyer et al., The Site Reliability Workbook (2018), chapter 5, "Multiwindow,
        Multi-Burn-Rate Alerts".
    """

    errors: str
    """The metric that counts what went wrong."""

    total: str
    """The metric that counts everything."""

    objective: float
    """The share that should go well, such as 0.999."""

    long: str = "1h"
    short: str = "5m"
    factor: float = 14.4
    """How many times too fast. 14.4 for an hour uses 2 % of the budget of 30 days."""

    clear: float | None = None
    """None for `CLEAR_RATIO` of the factor."""

    min_count: float | None = None
    """If less was counted in total in the long window, it is taken as so much, of which the rest
    went well; None for as many as `LEAST_FAILURES` failures bring to the bound."""

    @property
    def long_s(self) -> float:
        """The length of the long window."""
        return parse_duration_s(self.long)

    @property
    def short_s(self) -> float:
        """The length of the short window."""
        return parse_duration_s(self.short)

    @property
    def least_count(self) -> float:
        """How much the long window is taken to hold at least.

        Source:
            The same chapter, "Low-Traffic Services and Error Budget Alerting": one failure of few
            requests is a great burn rate; traffic that is added makes it small. Here it is only
            counted.
        """
        if self.min_count is not None:
            return self.min_count
        return math.ceil(round(LEAST_FAILURES / ((1.0 - self.objective) * self.factor), 6))

    @property
    def limits(self) -> Limits:
        """Of the lower of the two burn rates."""
        clear = self.factor * CLEAR_RATIO if self.clear is None else self.clear
        return Limits(above=self.factor, clear=clear, for_s=self.for_s)


AnyRule = Threshold | Change | Absence | BurnRate
KINDS: Final[Mapping[str, type[AnyRule]]] = {
    "threshold": Threshold,
    "change": Change,
    "absence": Absence,
    "burn_rate": BurnRate,
}
TOLD_ONLY: Final = ("summary", "severity")
"""What may change in a rule while its alerts go on."""

SILENT_DEVICES: Final = Absence(
    name=SILENT_DEVICE,
    summary="the controller hears nothing of this device",
    severity="warning",
    window="15m",
)
"""The rule that a fleet has without any file. A rule of the same name takes its place."""
