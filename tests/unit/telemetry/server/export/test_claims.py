"""No device takes the name of another metric at Prometheus, nor the labels of another series."""

from __future__ import annotations

from collections import Counter

import pytest

from controller.exporting.own_figures import FIGURES
from telemetry.histogram import ExponentialHistogram
from telemetry.metrics import METRICS, OLD_NAMES, Kind
from telemetry.server.export.claims import OWN_PREFIX, Offered, Shown, shown
from telemetry.server.export.families import (
    HistogramValue,
    gauge_names,
    names_at,
    prometheus_name,
)

REQUESTS = "inference_requests_total"


def offered(
    metric: str, kind: Kind = "sum", *, value: float = 1.0, age: float = 0.0, **attributes: str
) -> Offered:
    name = prometheus_name(metric, kind)
    named = {word.replace("__", "."): text for word, text in attributes.items()}
    if kind == "gauge":
        return Offered(metric, kind, named, ((gauge_names(metric)[0], "gauge", value),), age)
    if kind == "sum":
        return Offered(metric, kind, named, ((name, "counter", value),), age)
    empty = HistogramValue(value, ExponentialHistogram())
    return Offered(metric, kind, named, ((name, "histogram", empty),), age)


def values(found: Shown) -> dict[str, float]:
    """Return the values of all samples, by name and labels."""
    return {
        " ".join([family.name, *(f"{name}={text}" for name, text in sample.labels)]): (
            sample.value if isinstance(sample.value, float) else sample.value.total
        )
        for family in found.families
        for sample in family.samples
    }


@pytest.mark.parametrize(
    "foreign",
    [
        offered("inference_requests"),
        offered("inference.requests"),
        offered(REQUESTS, "histogram"),
        offered(REQUESTS, "gauge"),
        offered("hw_temperature_celsius", "gauge"),
        offered("inference_latency_milliseconds", "histogram"),
        offered("inference_latency_milliseconds_count", "histogram"),
        offered("controller_messages_total"),
        offered("controller.devices", "histogram"),
    ],
    ids=lambda one: f"{one.metric}-{one.kind}",
)
def test_a_name_that_agents_or_the_controller_have_is_not_taken(foreign: Offered) -> None:
    own = offered(REQUESTS, value=7.0)
    found = shown([foreign, own])
    assert values(found) == {"edgefleet_inference_requests_total": 7.0}
    assert [one.metric for one in found.left_out] == (
        [foreign.metric] if foreign.metric != REQUESTS else []
    )


def test_of_unknown_metrics_with_one_name_the_first_has_it() -> None:
    two = [offered("n_total"), offered("n_total", "histogram"), offered("n", "gauge")]
    expected = {"edgefleet_n_total": 1.0, "edgefleet_n_mean": 1.0}
    found = shown([*two, offered("a.b", value=2.0), offered("a_b", value=3.0)])
    assert values(found) == expected | {"edgefleet_a_b_total": 2.0}
    assert shown(reversed([*two, offered("a.b", value=2.0), offered("a_b")])) == found
    assert {one.metric for one in found.left_out} == {"a_b", "n_total"}


def test_of_series_with_the_same_labels_that_of_agents_is_shown_else_the_oldest() -> None:
    reads = offered("system.disk.io", value=5.0, age=9.0, system__device="sda")
    foreign = offered("system.disk.io", value=6.0, age=1.0, system_device="sda")
    for both in ([reads, foreign], [foreign, reads]):
        found = shown(both)
        assert values(found) == {"edgefleet_system_disk_io_bytes_total system_device=sda": 5.0}
        assert [one.metric for one in found.left_out] == ["system.disk.io"]
    old, new = offered("n", value=1.0, age=1.0, a__b="x"), offered("n", value=2.0, age=2.0, a_b="x")
    assert values(shown([new, old])) == {"edgefleet_n_total a_b=x": 1.0}


def test_no_two_metrics_of_agents_have_one_name_and_none_that_of_the_controllers_own() -> None:
    kinds = {metric: known.kind for metric, known in METRICS.items()}
    kinds |= {old: kinds[new] for old, new in OLD_NAMES.items()}
    names = Counter(name for metric, kind in kinds.items() for name in names_at(metric, kind))
    assert set(names.values()) == {1}
    assert not any(name.startswith(OWN_PREFIX) for name in names)
    assert all(name.startswith(OWN_PREFIX) for name in FIGURES)
