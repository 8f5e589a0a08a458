"""The formats of Prometheus, read again by its own parser and by protobuf."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # has no stubs
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from prometheus_client.parser import text_string_to_metric_families

from telemetry.histogram import BASE, COUNT_MAX, ZERO_MAX, ExponentialHistogram
from telemetry.metrics import METRICS
from telemetry.server.export import protobuf_format, text_format
from telemetry.server.export.families import (
    Family,
    HistogramValue,
    Sample,
    gauge_names,
    labels_of,
    prometheus_name,
)

FIELD = descriptor_pb2.FieldDescriptorProto
PACKAGE = "io.prometheus.client"
MESSAGES: dict[str, list[tuple[int, str, Any, bool]]] = {
    "LabelPair": [(1, "name", FIELD.TYPE_STRING, False), (2, "value", FIELD.TYPE_STRING, False)],
    "Gauge": [(1, "value", FIELD.TYPE_DOUBLE, False)],
    "Counter": [
        (1, "value", FIELD.TYPE_DOUBLE, False),
        (3, "created_timestamp", "google.protobuf.Timestamp", False),
    ],
    "Bucket": [
        (1, "cumulative_count", FIELD.TYPE_UINT64, False),
        (2, "upper_bound", FIELD.TYPE_DOUBLE, False),
    ],
    "BucketSpan": [
        (1, "offset", FIELD.TYPE_SINT32, False),
        (2, "length", FIELD.TYPE_UINT32, False),
    ],
    "Histogram": [
        (1, "sample_count", FIELD.TYPE_UINT64, False),
        (2, "sample_sum", FIELD.TYPE_DOUBLE, False),
        (3, "bucket", f"{PACKAGE}.Bucket", True),
        (5, "schema", FIELD.TYPE_SINT32, False),
        (6, "zero_threshold", FIELD.TYPE_DOUBLE, False),
        (7, "zero_count", FIELD.TYPE_UINT64, False),
        (12, "positive_span", f"{PACKAGE}.BucketSpan", True),
        (13, "positive_delta", FIELD.TYPE_SINT64, True),
        (15, "created_timestamp", "google.protobuf.Timestamp", False),
    ],
    "Metric": [
        (1, "label", f"{PACKAGE}.LabelPair", True),
        (2, "gauge", f"{PACKAGE}.Gauge", False),
        (3, "counter", f"{PACKAGE}.Counter", False),
        (7, "histogram", f"{PACKAGE}.Histogram", False),
    ],
    "MetricFamily": [
        (1, "name", FIELD.TYPE_STRING, False),
        (2, "help", FIELD.TYPE_STRING, False),
        (3, "type", FIELD.TYPE_INT32, False),
        (4, "metric", f"{PACKAGE}.Metric", True),
    ],
}


def family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="metrics.proto", package=PACKAGE, dependency=["google/protobuf/timestamp.proto"]
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind, repeated in fields:
            label = FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                made.type, made.type_name = FIELD.TYPE_MESSAGE, f".{kind}"
            else:
                made.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb))
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.MetricFamily"))


def decoded(page: bytes) -> list[Any]:
    """Split a page of messages, each after its length, and decode them."""
    kind, found = family_class(), []
    while page:
        size = shift = 0
        while True:
            byte, page = page[0], page[1:]
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(kind.FromString(page[:size]))
        page = page[size:]
    return found


def value_of(values: list[float]) -> HistogramValue:
    histogram = ExponentialHistogram()
    for value in values:
        histogram.add(value)
    return HistogramValue(histogram.total, histogram)


VALUES = [0.0, 1e-9, 0.05, 1.0, 1.5, 2.0, 2.0, 3.0, 100.0, 5e4, 1e9]
FAMILIES = [
    Family("a_total", "counter", "a \\ and\na line", (Sample((("x", 'q"\\\n'),), 7.5, 12.25),)),
    Family("b", "gauge", "", (Sample((), -1.0), Sample((("device", "zu heiß"),), math.inf))),
    Family(
        "c_seconds", "histogram", "how long", (Sample((("v", "int8"),), value_of(VALUES), 3.0),)
    ),
]


def test_protobuf_holds_what_was_given() -> None:
    counter, gauge, histogram = decoded(protobuf_format.encode(FAMILIES))
    assert (counter.name, counter.help, counter.type) == ("a_total", "a \\ and\na line", 0)
    (metric,) = counter.metric
    assert [(pair.name, pair.value) for pair in metric.label] == [("x", 'q"\\\n')]
    created = metric.counter.created_timestamp
    assert (metric.counter.value, created.seconds, created.nanos) == (7.5, 12, 250_000_000)
    assert [metric.gauge.value for metric in gauge.metric] == [-1.0, math.inf]
    assert (gauge.type, gauge.metric[1].label[0].value) == (1, "zu heiß")
    found = histogram.metric[0].histogram
    assert (histogram.type, found.sample_count, found.schema) == (4, len(VALUES), 5)
    assert (found.zero_threshold, found.zero_count) == (ZERO_MAX, 1)
    assert found.sample_sum == pytest.approx(sum(VALUES))
    assert found.created_timestamp.seconds == 3


def test_native_buckets_are_numbered_by_their_upper_bounds() -> None:
    generator = random.Random(1)
    values = [generator.lognormvariate(3, 1) for _ in range(500)]
    value = value_of(values)
    family = Family("c", "histogram", "", (Sample((), value),))
    (message,) = decoded(protobuf_format.encode([family]))
    found = message.metric[0].histogram
    counts, index, count, delta = {}, 0, 0, iter(found.positive_delta)
    for span in found.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(delta)
            counts[index] = count
            index += 1
    assert next(delta, None) is None
    for index, number in counts.items():
        inside = [each for each in values if BASE ** (index - 1) < each <= BASE**index]
        assert len(inside) == number
    assert sum(counts.values()) == len(values)


def test_prometheus_reads_the_text() -> None:
    text = text_format.encode(FAMILIES).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(found) == {"a", "b", "c_seconds"}
    assert found["a"].samples[0].labels == {"x": 'q"\\\n'}
    assert [sample.value for sample in found["b"].samples] == [-1.0, math.inf]
    buckets = {
        float(sample.labels["le"]): sample.value
        for sample in found["c_seconds"].samples
        if sample.name == "c_seconds_bucket"
    }
    for bound, count in buckets.items():
        assert count == sum(value <= bound for value in VALUES), bound
    sums = {s.name: s.value for s in found["c_seconds"].samples if "le" not in s.labels}
    assert sums == {"c_seconds_count": len(VALUES), "c_seconds_sum": pytest.approx(sum(VALUES))}


def test_names_end_with_units_and_counters_with_total() -> None:
    assert prometheus_name("inference_latency_ms", "histogram") == (
        "edgefleet_inference_latency_milliseconds"
    )
    assert prometheus_name("install_bytes_total", "sum") == "edgefleet_install_bytes_total"
    assert prometheus_name("wait_s_total", "sum") == "edgefleet_wait_seconds_total"
    assert gauge_names("temperature_c")[0] == "edgefleet_temperature_celsius_mean"
    names = [prometheus_name(name, metric.kind) for name, metric in METRICS.items()]
    assert len(set(names)) == len(METRICS)
    for name, metric in METRICS.items():
        assert prometheus_name(name, metric.kind).endswith("_total") == (metric.kind == "sum")


def test_labels_that_prometheus_writes_itself_are_called_otherwise() -> None:
    assert labels_of({"variant": "v", "le": "1"}) == (("le_", "1"), ("variant", "v"))


def test_attributes_that_become_one_label_have_their_values_in_it() -> None:
    assert labels_of({"a_b": "2", "a.b": "1", "le": "3", "le_": "4"}) == (
        ("a_b", "1;2"),
        ("le_", "3;4"),
    )


def test_a_full_bucket_is_counted_by_the_number_of_values_too() -> None:
    histogram = ExponentialHistogram()
    for _ in range(3):
        histogram.add(5.0, COUNT_MAX)
    family = Family("c", "histogram", "", (Sample((), HistogramValue(1.0, histogram)),))
    (message,) = decoded(protobuf_format.encode([family]))
    found = message.metric[0].histogram
    assert (found.sample_count, list(found.positive_delta)) == (COUNT_MAX, [COUNT_MAX])
    assert f"c_count {COUNT_MAX}" in text_format.encode([family]).decode()
