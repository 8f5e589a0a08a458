from __future__ import annotations

import pytest

from controller.cli.drawing.quantities import Unit
from controller.cli.telemetry import _told
from controller.telemetry_schemas import ComparedGroup, TelemetryComparison


def compared(difference: float, low: float | None, high: float | None) -> TelemetryComparison:
    return TelemetryComparison(
        metric="inference_latency_ms", statistic="p95", by="release",
        first=ComparedGroup(name="digits:1", value=20.0, devices=9, values=900),
        second=ComparedGroup(name="digits:2", value=20.0 + difference, devices=9, values=900),
        difference=difference, low=low, high=high,
        told=low is not None and high is not None and low * high > 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "unit", "sentence"),
    [
        (
            compared(-2.5, -3.0, -2.0), None,
            "digits:2 is lower: -2.5 (-12.5 %), between -3 and -2 with 95 % confidence",
        ),
        (
            compared(2.5, 2.0, 3.0), Unit("ms"),
            "digits:2 is higher: +2.5 ms (+12.5 %), between +2 ms and +3 ms with 95 % confidence",
        ),
        (
            compared(0.5, -1.0, 2.0), None,
            "no difference can be told: +0.5 (+2.5 %), between -1 and +2 with 95 % confidence",
        ),
        (
            compared(0.5, None, None), None,
            "whether they differ cannot be told: too few devices have values",
        ),
    ],
)  # fmt: skip
def test_a_comparison_in_one_sentence(
    found: TelemetryComparison, unit: Unit | None, sentence: str
) -> None:
    assert _told(found, unit) == sentence
