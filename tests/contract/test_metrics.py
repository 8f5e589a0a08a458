"""`/metrics` of a real endpoint, read by Prometheus' own parsers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from agent.app.metrics import DEVICE, make_metrics
from agent.serve.advice import Advice
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.exposition import Family, Sample, exposed
from agent.serve.http.metrics import MetricsApi
from agent.serve.http.request_metrics import METRICS
from agent.serve.served import ServedModels
from tests.simulators.packages import variant
from tests.simulators.rig import CLOCK, Rig, body_of
from wire.health import HealthSnapshot
from wire.version import VERSION

ACCEPT: Final = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
SECRET: Final = "s3cret"
HEALTH: Final = HealthSnapshot(
    at_s=0.0,
    temperature_c=61.5,
    headroom=0.8,
    throttled=False,
    battery_ratio=0.75,
    power_mw=2500.0,
    memory_available_bytes=3_000_000,
    memory_stall_ratio=0.01,
)


class Scraped(Rig):
    """A rig with metrics."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.endpoint.stop()
        models = ServedModels(CLOCK)
        models.add("digits", self.server.router)
        metrics = make_metrics(
            models,
            health=lambda: HEALTH,
            advice=lambda: Advice(sampling_ratio=0.5),
            deferred=lambda: 2,
            device="dev-1",
        )
        self.endpoint = Endpoint(models, around=lambda api: MetricsApi(api, metrics), token=SECRET)
        self.endpoint.start()

    def scrape(
        self, accept: str = "", *, token: str = SECRET, method: str = "GET"
    ) -> tuple[int, str, str]:
        client = self.client()
        headers = {"Authorization": f"Bearer {token}"} | ({"Accept": accept} if accept else {})
        client.request(method, "/metrics", headers=headers)
        response = client.getresponse()
        text = response.read().decode()
        client.close()
        return response.status, response.headers["Content-Type"], text

    def ask(self) -> int:
        client, (body, headers) = self.client(), body_of()
        client.request(
            "POST",
            "/v2/models/digits/infer",
            body=body,
            headers={**headers, "Authorization": f"Bearer {SECRET}"},
        )
        response = client.getresponse()
        response.read()
        client.close()
        return response.status


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Scraped]:
    rig = Scraped(tmp_path)
    yield rig
    rig.stop()


def values(families: Iterable[Metric]) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values by the names of the lines and the labels' values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in families:
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_both_parsers_of_prometheus_read_the_same(rig: Scraped) -> None:
    rig.use(variant("first"))
    assert rig.ask() == 200
    status, kind, text = rig.scrape()
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    older = values(plain(text))
    status, kind, text = rig.scrape(ACCEPT)
    assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    newer = values(open_metrics(text))
    assert set(newer) == set(older)
    for name in set(older) - {
        "process_resident_memory_bytes",
        "edgefleet_worker_resident_memory_bytes",
    }:
        assert newer[name] == older[name]


def test_what_a_scrape_tells(rig: Scraped) -> None:
    rig.use(variant("first"))
    rig.use(variant("second"))
    for _ in range(3):
        assert rig.ask() == 200
    found = values(open_metrics(rig.scrape(ACCEPT)[2]))
    served = ("digits", "1.0", "second")
    assert found["edgefleet_requests_total"] == {(*served, "ok", "200"): 3}
    assert found["edgefleet_request_seconds_count"] == {served: 3}
    assert found["edgefleet_request_compute_seconds_bucket"][*served, "+Inf"] == 3
    assert found["edgefleet_samples_total"] == found["edgefleet_model_runs_total"] == {served: 3}
    assert found["edgefleet_request_bytes_total"][served] > 0
    assert found["edgefleet_answer_bytes_total"][served] > 0
    assert found["edgefleet_ready"] == {(): 1}
    assert found["edgefleet_variant_ready"] == {served: 1}
    assert found["edgefleet_switches_total"] == {("digits",): 2}
    assert found["edgefleet_requests_waiting"] == {("digits",): 0}
    assert found["edgefleet_requests_in_flight"] == {("digits",): 0}
    assert found["edgefleet_deferred_requests"] == {(): 2}
    assert found["edgefleet_advised_sampling_ratio"] == {(): 0.5}
    assert found["edgefleet_temperature_celsius"] == {(): 61.5}
    assert found["edgefleet_battery_power_watts"] == {(): 2.5}
    assert found["edgefleet_throttled"] == {(): 0}
    assert "edgefleet_gpu_busy_ratio" not in found  # this device has none
    assert found["edgefleet_build_info"] == {(VERSION, "dev-1"): 1}
    assert found["process_resident_memory_bytes"][()] > 1_000_000


def test_before_a_model_serves_it_is_not_ready(rig: Scraped) -> None:
    assert rig.ask() == 503
    found = values(open_metrics(rig.scrape(ACCEPT)[2]))
    assert found["edgefleet_ready"] == {(): 0}
    assert found["edgefleet_requests_total"] == {
        ("digits", "none", "none", "refused", "503"): 1,
    }
    assert "edgefleet_variant_ready" not in found


def test_who_has_no_token_gets_no_metrics(rig: Scraped) -> None:
    assert rig.scrape(token="another")[0] == 401


def test_metrics_are_only_read(rig: Scraped) -> None:
    assert rig.scrape(method="HEAD")[::2] == (200, "")
    assert rig.scrape(method="DELETE")[0] == 405


def test_an_endpoint_without_metrics_says_what_switches_them_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    client = rig.client()
    client.request("GET", "/metrics")
    answer = client.getresponse()
    assert (answer.status, b"`metrics = true` below [endpoint]" in answer.read()) == (501, True)
    client.close()
    rig.stop()


def test_names_follow_the_rules_of_prometheus() -> None:
    names = {*(name for name, *_ in METRICS), *(name for name, _ in DEVICE.values())}
    for name in names:
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_info"))
        assert not any(part in {"ms", "c", "mw", "kb"} for part in name.split("_"))


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(), min_size=1), st.floats())
def test_any_label_and_any_number_come_back(labels: dict[str, str], value: float) -> None:
    family = Family("x", "gauge", "X.", (Sample(value, labels),))
    for text, parser in (
        (exposed([family], open_metrics=False), plain),
        (exposed([family], open_metrics=True), open_metrics),
    ):
        (read,) = parser(text.decode())
        (sample,) = read.samples
        assert sample.labels == labels
        assert sample.value == value or value != value  # noqa: PLR0124 - NaN
