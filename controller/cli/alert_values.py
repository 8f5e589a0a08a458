"""What an alert compares, in words: `90 ms (> 85 ms)`.

Rules:
- An alert that fires may be back within its bound, because it ends at another one (`clear`). So the
  bound stands beside the value, and no sentence says that one is above the other.
"""

from __future__ import annotations

from controller.alert_schemas import Alert
from controller.cli.drawing.quantities import number_text, quantity_text, unit_of
from wire.console.text import UNKNOWN
from wire.durations import format_duration


def compared_text(alert: Alert) -> str:
    """Return the value of an alert beside its bound.

    Args:
        alert: The alert.

    Returns:
        Both with their unit; an absence says only that.
    """
    if alert.kind == "absence" and alert.metric:
        return "absent" if alert.value else "there"
    if alert.value is None:
        return UNKNOWN
    if alert.above is not None:
        return f"{_text(alert, alert.value)} (> {_text(alert, alert.above)})"
    if alert.below is not None:
        return f"{_text(alert, alert.value)} (< {_text(alert, alert.below)})"
    return _text(alert, alert.value)


def _text(alert: Alert, value: float) -> str:
    if alert.kind == "absence":  # of a device: how long it is silent
        return format_duration(round(value))
    if alert.kind == "threshold":
        return quantity_text(value, unit_of(alert.metric, alert.stat))
    return f"{number_text(value)}x" if alert.kind == "burn_rate" else number_text(value)
