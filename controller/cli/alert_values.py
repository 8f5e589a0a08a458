"""What an alert compares, in words: `90 ms (> 85 ms)`.

Rules:
- An alert that fires may be back within its bound, because it ends at another one (`clear`). So the
  bound stands beside the value, and no sentence says that one is above the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controller.alert_schemas import Alert
from controller.cli.drawing.quantities import number_text, quantity_text, unit_of
from wire.console.text import UNKNOWN
from wire.durations import format_duration

FLEET: Final = "the fleet"
"""How a group is shown that is all there is."""


def compared_text(alert: Alert) -> str:
    """Return the value of an alert beside its bound.

    Args:
        alert: The alert.

    Returns:
        Both with their unit; an absence says only that.
    """
    spec = {"kind": alert.kind, "metric": alert.metric, "stat": alert.stat}
    text = amount_text(spec, alert.value)
    if alert.value is None or (alert.kind == "absence" and alert.metric):
        return text
    for sign, bound in ((">", alert.above), ("<", alert.below)):
        if bound is not None:
            return f"{text} ({sign} {amount_text(spec, bound)})"
    return text


def amount_text(spec: Mapping[str, Any], value: float | None) -> str:
    """Return what a rule compared, with its unit.

    Args:
        spec: The keys of the rule; others than `kind`, `metric`, `stat` and `compare` do not
            matter.
        value: The number; None for none.

    Returns:
        Of an absence of a metric whether it is one.
    """
    kind, metric = spec.get("kind"), str(spec.get("metric") or "")
    if value is None:
        return UNKNOWN
    if kind == "absence":
        if metric:
            return "absent" if value else "there"
        return format_duration(round(value))  # how long a device is silent
    if kind == "threshold" or spec.get("compare") == "difference":
        return quantity_text(value, unit_of(metric, str(spec.get("stat", ""))))
    return f"{number_text(value)}x" if kind == "burn_rate" else number_text(value)


def group_shown(group: str) -> str:
    """Return a group as tables show it."""
    return group or FLEET
