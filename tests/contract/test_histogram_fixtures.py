"""The histogram is OpenTelemetry's exponential histogram at scale 5, as its own SDK makes it.

`opentelemetry/exponential_histogram.json` was written by the SDK that it names: bucket indices of
single values, and whole histograms of some lists of values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from telemetry.histogram import (
    BASE,
    HEADER,
    SCALE,
    VALUE_MAX,
    ZERO_MAX,
    ExponentialHistogram,
    bucket_index,
)

FIXTURES: dict[str, Any] = json.loads(
    Path(__file__).with_name("opentelemetry").joinpath("exponential_histogram.json").read_bytes()
)
MAPPING = [(float.fromhex(value), index) for value, index in FIXTURES["mapping"]]


def test_the_fixtures_span_the_whole_range_at_our_scale() -> None:
    values = [value for value, _ in MAPPING]
    assert ZERO_MAX < min(values) < 2 * ZERO_MAX
    assert max(values) == VALUE_MAX
    assert len({index for _, index in MAPPING}) > 400
    assert {histogram["scale"] for histogram in FIXTURES["histograms"]} == {SCALE}


def test_every_value_falls_into_the_bucket_that_the_sdk_gives_it() -> None:
    assert [(v, bucket_index(v)) for v, _ in MAPPING] == MAPPING


def test_the_bounds_of_a_bucket_are_powers_of_the_base() -> None:
    for value, index in MAPPING:
        assert BASE**index * (1 - 1e-12) < value <= BASE ** (index + 1) * (1 + 1e-12)


@pytest.mark.parametrize("expected", FIXTURES["histograms"], ids=lambda h: f"{h['count']} values")
def test_a_histogram_has_the_buckets_that_the_sdk_counts(expected: dict[str, Any]) -> None:
    histogram = ExponentialHistogram()
    for value in expected["values"]:
        histogram.add(float.fromhex(value))
    encoded = histogram.to_bytes()
    _, scale, width, first, length, zeros, total, least, greatest = HEADER.unpack_from(encoded)
    counts = [
        int.from_bytes(encoded[at : at + width], "little")
        for at in range(HEADER.size, HEADER.size + width * length, width)
    ]
    known = expected["counts"]
    # The SDK's array grows by doubling: what follows the last value is empty.
    assert not any(known[length:])
    assert (scale, first, counts) == (SCALE, expected["offset"], known[:length])
    assert (histogram.count, zeros) == (expected["count"], expected["zero_count"])
    assert total == pytest.approx(float.fromhex(expected["sum"]), rel=1e-12)
    assert (least, greatest) == tuple(float.fromhex(expected[key]) for key in ("min", "max"))
