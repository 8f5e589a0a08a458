"""Which rules the rows that are kept can answer."""

from __future__ import annotations

from typing import Any

import pytest

from telemetry.server.alerts.kept import faults, remedy
from telemetry.server.alerts.rules_file import checked_rule
from telemetry.server.levels import DAYS, HOURS, MINUTES
from wire.durations import DAY_S

RETAINED = {MINUTES: 7 * DAY_S, HOURS: 30 * DAY_S, DAYS: 60 * DAY_S}
MEAN = {"metric": "hw.power", "stat": "mean", "above": 1.2}
BURN = {"errors": "inference_failures_total", "total": "inference_requests_total"}


@pytest.mark.parametrize(
    ("kind", "keys", "fault"),
    [
        ("change", {"window": "15m", "offset": "6d", **MEAN}, ""),
        ("change", {"window": "1h", "offset": "7d", **MEAN}, ""),
        ("change", {"window": "15m", "offset": "7d", **MEAN}, "and window is not whole hours"),
        ("change", {"window": "1h", "offset": "169h30m", **MEAN}, "and offset is not whole hours"),
        ("change", {"window": "1d", "offset": "29d", **MEAN}, ""),
        ("change", {"window": "1h", "offset": "31d", **MEAN}, "and window is not whole days"),
        ("change", {"window": "31d", **MEAN}, "window + offset reaches 8w6d back, and telemetry"),
        ("threshold", {"window": "8d", **MEAN}, ""),
        ("threshold", {"window": "8d30m", **MEAN}, "window reaches 1w1d30m back, where only"),
        ("absence", {"metric": "temperature_c", "by": ["device"], "lookback": "8d30m"}, ""),
        ("absence", {}, ""),
        ("burn_rate", {"objective": 0.999, "long": "7d1m", **BURN}, "long reaches 1w1m back"),
    ],
)
def test_a_rule_that_nothing_can_answer_is_a_fault(
    kind: str, keys: dict[str, Any], fault: str
) -> None:
    rule = checked_rule({"name": "r", "kind": kind, **keys})
    found = list(faults(rule, RETAINED))
    assert bool(found) is bool(fault)
    assert fault in "".join(found)
    if fault:
        days = int(remedy(rule).split("keep_minutes = ")[1].split()[0])
        assert not list(faults(rule, {MINUTES: days * DAY_S, HOURS: days * DAY_S}))
