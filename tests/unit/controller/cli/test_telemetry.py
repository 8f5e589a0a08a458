from __future__ import annotations

import pytest

from controller.cli.drawing.quantities import Unit
from controller.cli.drift import _said
from controller.cli.telemetry import _told
from controller.drift_schemas import DriftPart, ReleaseDrift
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


def test_why_nothing_can_be_told_of_drift() -> None:
    def said(**lacking: str) -> str:
        parts = [
            DriftPart(
                variant=variant, tensor="output.y", measure="class", stability_index=0.1,
                distance=0.1, samples=9.0, devices=9, units=9, chance=None if lacks else 0.5,
                lacks=lacks, moved=False,
            )
            for variant, lacks in lacking.items()
        ]  # fmt: skip
        return _said(ReleaseDrift(release="digits:1", variants=len(parts), parts=parts))

    few = "a few of the 9 devices bring most of the requests"
    assert said(a=few) == f"whether they moved cannot be told: {few}"
    assert said(a=few, b=few) == (
        f"whether they moved cannot be told: {few}; each variant is judged alone"
    )
    assert said(a=few, b="") == (
        "nothing has moved beyond what chance gives; of the unknown it cannot be told: "
        f"{few}; each variant is judged alone"
    )
    assert said(a="") == "nothing has moved beyond what chance gives"
