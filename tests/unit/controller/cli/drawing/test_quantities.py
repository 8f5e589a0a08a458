from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.drawing.quantities import Unit, number_text, quantity_text, scale_of, unit_of


@pytest.mark.parametrize(
    ("metric", "statistic", "value", "shown"),
    [
        ("inference_latency_ms", "p95", 12.34567, "12.35 ms"),
        ("inference_latency_ms", "count", 1800, "1800"),
        ("inference_latency_ms", "rate", 4.25, "4.25/s"),
        ("inference_latency_ms", "total", 123456.0, "123456 ms"),
        ("temperature_c", "max", 71.25, "71.25 °C"),
        ("battery_ratio", "mean", 0.5, "0.5"),
        ("memory_available_bytes", "min", 1.5 * 2**30, "1.5 GiB"),
        ("install_bytes_total", "total", 3 * 2**20, "3.0 MiB"),
        ("install_bytes_total", "rate", 2560.0, "2.5 KiB/s"),
        ("install_bytes_total", "rate", -2560.0, "-2.5 KiB/s"),
        ("inference_requests_total", "total", 12, "12"),
        ("inference_requests_total", "rate", 0.125, "0.125/s"),
        ("worker_compute_seconds_total", "rate", 0.5, "500 ms/s"),
        ("inference_queue_s", "p95", 5.658e-05, "56.58 \N{MICRO SIGN}s"),
        ("inference_queue_s", "p95", 0.0123, "12.3 ms"),
        ("inference_queue_s", "p95", 0.0, "0 s"),
        ("inference_queue_s", "p95", 2e-9, "0.002 \N{MICRO SIGN}s"),
        ("inference_latency_ms", "p95", 0.25, "250 \N{MICRO SIGN}s"),
        ("install_duration_s", "max", 340.0, "340 s"),
        ("somebody_s_metric", "p95", 3.0, "3"),
        ("temperature_c", "max", None, "-"),
        ("temperature_c", "max", math.nan, "-"),
    ],
)
def test_golden(metric: str, statistic: str, value: float | None, shown: str) -> None:
    assert quantity_text(value, unit_of(metric, statistic)) == shown


@given(st.floats(-1e300, 1e300))
def test_a_number_keeps_about_four_digits(value: float) -> None:
    text = number_text(value)
    assert len(text) <= 11
    assert math.isclose(float(text), value, rel_tol=1e-3, abs_tol=1e-300)


def test_an_axis_of_bytes_has_one_unit() -> None:
    assert scale_of([10.0, 3 * 2.0**20], Unit("By")) == (2.0**20, "MiB")
    assert scale_of([10.0], Unit("By", per_s=True)) == (1.0, "B/s")
    assert scale_of([], Unit("Cel")) == (1.0, "°C")
    assert scale_of([1.0], Unit("1")) == (1.0, "")


def test_an_axis_of_times_has_one_unit() -> None:
    assert scale_of([2e-5, 6e-5], Unit("s")) == (1e-6, "\N{MICRO SIGN}s")
    assert scale_of([2e-5, 0.1], Unit("s")) == (1e-3, "ms")
    assert scale_of([0.5, 90.0], Unit("ms")) == (1.0, "ms")
    assert scale_of([0.0], Unit("s", per_s=True)) == (1.0, "s/s")
