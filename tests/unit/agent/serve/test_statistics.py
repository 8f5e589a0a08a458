"""Figures of the model that serves, as the statistics extension has them."""

from __future__ import annotations

from agent.serve.answered import Outcome
from agent.serve.frames import ModelIdentity
from agent.serve.statistics import Statistics
from tests.simulators.answers import answered
from tests.simulators.clock import FakeClock

OLD = ModelIdentity(name="digits", version="1")
NEW = ModelIdentity(name="digits", version="2")
OTHER = ModelIdentity(name="other", version="1")


def test_requests_are_counted_with_their_time() -> None:
    clock = FakeClock()
    statistics = Statistics(clock)
    for outcome in (Outcome.OK, Outcome.OK, Outcome.REFUSED):
        clock.advance(0.5)
        statistics.count(
            answered(outcome=outcome, total_s=0.5, queue_s=0.01, compute_s=0.002, active=OLD)
        )
    model = statistics.document(OLD)
    assert (model["name"], model["version"]) == ("digits", "1")
    assert model["last_inference"] == int(clock.now_s() * 1000)
    assert model["inference_stats"] == {
        "success": {"count": 2, "ns": 1_000_000_000},
        "fail": {"count": 1, "ns": 500_000_000},
        "queue": {"count": 2, "ns": 20_000_000},
        "compute_infer": {"count": 2, "ns": 4_000_000},
    }


def test_samples_and_runs_are_counted_as_the_extension_says() -> None:
    statistics = Statistics(FakeClock())
    for samples in (1, 4, 3):
        statistics.count(answered(samples=samples, joined=3, active=OLD))
    statistics.count(answered(samples=256, active=OLD))
    model = statistics.document(OLD)
    assert (model["inference_count"], model["execution_count"]) == (264, 2)


def test_another_version_begins_at_zero() -> None:
    statistics = Statistics(FakeClock())
    statistics.count(answered(active=OLD))
    model = statistics.document(NEW)
    assert (model["version"], model["last_inference"]) == ("2", 0)
    assert {figure["count"] for figure in model["inference_stats"].values()} == {0}


def test_a_request_counts_only_for_the_active_model() -> None:
    statistics = Statistics(FakeClock())
    statistics.count(answered(outcome=Outcome.UNKNOWN_MODEL, active=OTHER))
    statistics.count(answered(None, outcome=Outcome.REFUSED, active=None))
    statistics.count(answered(outcome=Outcome.UNKNOWN_MODEL, active=OLD))  # another version
    model = statistics.document(OLD)
    counts = {kind: figure["count"] for kind, figure in model["inference_stats"].items()}
    assert counts == {"success": 0, "fail": 1, "queue": 0, "compute_infer": 0}


def test_the_version_that_was_asked_last_is_not_forgotten_for_a_new_one() -> None:
    clock = FakeClock()
    statistics = Statistics(clock)
    third = ModelIdentity(name="digits", version="3")
    for model in (OLD, NEW, OLD, third):  # a way back, and the next release
        clock.advance(1.0)
        statistics.count(answered(active=model))
    counts = [statistics.document(m)["inference_count"] for m in (OLD, third)]
    assert counts == [2, 1]
