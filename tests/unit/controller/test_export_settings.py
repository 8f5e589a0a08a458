"""Settings of exports: what is impossible is named, and secrets are not."""

from __future__ import annotations

from typing import Any

import pytest

from controller.export_settings import OtlpConfig, PrometheusConfig, faults, parse_headers
from controller.exporting.metrics_page import takes_protobuf

HERE = "http://127.0.0.1:4318"


def of_otlp(endpoint: str = HERE, **more: Any) -> list[str]:
    return list(faults(PrometheusConfig(), OtlpConfig(endpoint=endpoint, **more)))


def test_nothing_is_handed_on_by_default() -> None:
    assert list(faults(PrometheusConfig(), None)) == []
    assert not PrometheusConfig().enabled


@pytest.mark.parametrize(
    ("endpoint", "fault"),
    [
        ("collector:4318", "is not an http or https URL"),
        ("https://", "is not an http or https URL"),
        ("https://c:port", "is not a URL"),
        ("https://me:secret@c", "has more than host"),
        ("https://c/?token=1", "has more than host"),
        ("https://c/v1/metrics", "ends with the path of one signal"),
        ("http://collector:4318", "has no TLS"),
    ],
)
def test_an_endpoint_that_cannot_be(endpoint: str, fault: str) -> None:
    (told,) = of_otlp(endpoint)
    assert told.startswith(f"otlp.endpoint {fault}")


def test_an_endpoint_that_can_be() -> None:
    assert of_otlp("https://collector.example/otlp/") == []
    assert of_otlp() == []
    assert of_otlp("http://collector:4318", clear_text=True) == []


def test_other_settings_that_cannot_be() -> None:
    assert "otlp.interval_s" in of_otlp(interval_s=0.5)[0]
    assert "otlp.timeout_s" in of_otlp(timeout_s=600.0)[0]
    assert "nothing would be sent" in of_otlp(metrics=False, events=False)[0]
    assert "prometheus.enabled" in next(faults(PrometheusConfig(by_device=True), None))


def test_headers() -> None:
    assert parse_headers("A: b: c\n\n X-D : e ") == {"A": "b: c", "X-D": "e"}
    for text in ("secret", "A b: secret", ": secret", "A: \x07"):
        with pytest.raises(ValueError, match="line 1 is not NAME: VALUE"):
            parse_headers(text)
    with pytest.raises(ValueError, match="more than 16"):
        parse_headers("\n".join(f"H{number}: 1" for number in range(17)))


PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)


@pytest.mark.parametrize(
    ("accept", "taken"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        (f"{PROTOBUF},application/openmetrics-text;version=1.0.0;q=0.8", True),
        (f"application/openmetrics-text;q=0.9, {PROTOBUF.replace(';', '; ')};q=0.2", True),
        ("application/vnd.google.protobuf;proto=other;encoding=delimited", False),
        (f"{PROTOBUF};q=0", False),
    ],
)
def test_protobuf_is_answered_to_who_takes_it(accept: str, taken: bool) -> None:
    assert takes_protobuf(accept) is taken
