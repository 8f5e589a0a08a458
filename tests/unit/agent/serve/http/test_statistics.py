"""Figures of the model that serves, as the statistics extension has them."""

from __future__ import annotations

from agent.serve.frames import Reply
from agent.serve.http.statistics import Statistics
from agent.serve.workers import ModelIdentity
from tests.simulators.clock import FakeClock

OLD, NEW = ModelIdentity(name="m", version="1"), ModelIdentity(name="m", version="2")
DONE = Reply(status=200, headers={}, body=memoryview(b""), compute_ms=2.0)


def test_requests_are_counted_with_their_time() -> None:
    clock = FakeClock()
    statistics = Statistics(clock)
    for reply in (DONE, DONE, Reply.refusal(503, "busy")):
        start_s = clock.monotonic_s()
        clock.advance(0.5)
        statistics.count(OLD, reply, start_s)
    (model,) = statistics.document(OLD)["model_stats"]
    assert (model["name"], model["version"]) == ("m", "1")
    assert model["last_inference"] == int(clock.now_s() * 1000)
    assert model["inference_stats"] == {
        "success": {"count": 2, "ns": 1_000_000_000},
        "fail": {"count": 1, "ns": 500_000_000},
        "compute_infer": {"count": 2, "ns": 4_000_000},
    }


def test_another_version_begins_at_zero() -> None:
    statistics = Statistics(FakeClock())
    statistics.count(OLD, DONE, 0.0)
    (model,) = statistics.document(NEW)["model_stats"]
    assert (model["version"], model["last_inference"]) == ("2", 0)
    assert {figure["count"] for figure in model["inference_stats"].values()} == {0}
