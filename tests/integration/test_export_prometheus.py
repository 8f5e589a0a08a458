"""A real Prometheus scrapes a controller; its quantiles are those of `fleet telemetry query`."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.export_settings import PrometheusConfig
from examples.digits.box import free_port
from telemetry.histogram import BASE
from tests.simulators.controller_fleet import API_TOKEN
from tests.simulators.measured_fleet import LATENCY, REQUESTS, MeasuredFleet
from tests.simulators.patience import PATIENCE_S, until

PROMETHEUS = shutil.which("prometheus")
NAME = "edgefleet_inference_latency_milliseconds"
DEVICES = ("cam-1", "cam-2", "cam-3")
MEDIANS = {"int8": 12.0, "fp32": 45.0}

pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed")


class Prometheus:
    """A running Prometheus.

    Args:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, query: str) -> dict[str, float]:
        """Return the values of an expression, by variant."""
        found = self._get("/api/v1/query", query=query)["result"]
        return {each["metric"].get("variant", ""): float(each["value"][1]) for each in found}

    def is_scraped(self) -> bool:
        """Tell whether the last scrape went well."""
        try:
            (target,) = self._get("/api/v1/targets")["activeTargets"]
        except (httpx.TransportError, httpx.HTTPStatusError, ValueError):
            return False
        assert target["health"] != "down", target["lastError"]
        return bool(target["health"] == "up")

    def _get(self, path: str, **asked: str) -> Any:
        answer = httpx.get(self._url + path, params=asked, trust_env=False).raise_for_status()
        return answer.json()["data"]


@contextmanager
def prometheus(folder: Path, url: str) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes an address."""
    (folder / "token").write_text(API_TOKEN)
    port = free_port()
    target = url.removeprefix("http://")
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
                "scrape_configs": [
                    {
                        "job_name": "fleet",
                        "authorization": {"credentials_file": str(folder / "token")},
                        "static_configs": [{"targets": [target]}],
                    }
                ],
            }
        )
    )
    process = subprocess.Popen(
        [
            str(PROMETHEUS), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=native-histograms", "--log.level=error",
        ],
        cwd=folder, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.fixture
def fleet(sqlite_template: Path, tmp_path: Path) -> Iterator[MeasuredFleet]:
    database = shutil.copyfile(sqlite_template, tmp_path / "fleet.db")
    config = PrometheusConfig(enabled=True)
    made = MeasuredFleet(f"sqlite:///{database}", tmp_path, prometheus=config)
    made.hand_on()
    yield made
    made.close()


def measure(fleet: MeasuredFleet, seed: int, *, times: float) -> None:
    """Let all devices answer requests for three minutes, and that be settled."""
    generator = random.Random(seed)
    for _ in range(3):
        for device in DEVICES:
            for variant, median in MEDIANS.items():
                values = [times * median * generator.lognormvariate(0, 0.4) for _ in range(60)]
                fleet.measure(device, variant, [*values, 0.0])
        fleet.pass_minutes(1)
    fleet.pass_minutes(2, *DEVICES)


def queried(fleet: MeasuredFleet, metric: str, statistic: str) -> dict[str, float]:
    asked = {"metric": metric, "stat": statistic, "by": "variant", "since": "1h"}
    answer = fleet.api.get("/v1/telemetry/query", params=asked).raise_for_status()
    return dict(answer.json()["rows"])


def close(found: dict[str, float], expected: dict[str, float]) -> bool:
    """Tell whether quantiles lie in one bucket, or in neighbours.

    Prometheus goes on within a bucket by rank; our quantile stands in its middle.
    """
    return found.keys() == expected.keys() and all(
        1 / BASE**1.5 < found[variant] / expected[variant] < BASE**1.5 for variant in expected
    )


def test_prometheus_has_the_quantiles_of_the_fleet(fleet: MeasuredFleet, tmp_path: Path) -> None:
    measure(fleet, 1, times=1)
    with fleet.serving() as url, prometheus(tmp_path, url) as server:
        until(server.is_scraped, "the first scrape")
        until(lambda: server.ask(f"histogram_count({NAME})"), "native histograms")
        for q in (0.5, 0.95, 0.99):
            found = server.ask(f"histogram_quantile({q}, sum by (variant) ({NAME}))")
            expected = queried(fleet, LATENCY, f"p{100 * q:g}")
            assert close(found, expected), (q, found, expected)
        counts = queried(fleet, LATENCY, "count")
        assert server.ask(f"sum by (variant) (histogram_count({NAME}))") == counts
        totals = queried(fleet, LATENCY, "total")
        assert server.ask(f"sum by (variant) (histogram_sum({NAME}))") == pytest.approx(totals)
        requests = "sum by (variant) (edgefleet_inference_requests_total)"
        assert server.ask(requests) == queried(fleet, REQUESTS, "total")
        assert server.ask("sum(edgefleet_controller_broker_connected)") == {"": 1.0}
        measure(fleet, 2, times=10)
        until(lambda: server.ask(requests) == queried(fleet, REQUESTS, "total"), "the next scrape")
        # Of what came meanwhile alone, which is ten times as slow.
        found = server.ask(f"histogram_quantile(0.5, sum by (variant) (rate({NAME}[10m])))")
        assert found == {
            variant: pytest.approx(10 * median, rel=0.2) for variant, median in MEDIANS.items()
        }
