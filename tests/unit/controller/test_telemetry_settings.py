"""Bounds of telemetry that make no sense are refused, each by its name."""

from __future__ import annotations

import math

import msgspec
import pytest

from controller.telemetry_settings import TelemetryConfig, faults


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clock_tolerance_s", 59.0),
        ("clock_tolerance_s", math.nan),
        ("clock_tolerance_s", math.inf),
        ("label_values", 0),
        ("device_label_values", 0),
        ("device_series", 0),
    ],
)
def test_a_bound_that_makes_no_sense_is_named(name: str, value: float) -> None:
    assert list(faults(TelemetryConfig())) == []
    (fault,) = faults(msgspec.structs.replace(TelemetryConfig(), **{name: value}))
    assert fault.startswith(f"telemetry.{name} ")
