"""What is counted of requests for Prometheus."""

from __future__ import annotations

from typing import Any

from agent.serve.answered import Outcome
from agent.serve.http.request_metrics import MAX_VARIANTS, RequestMetrics
from tests.simulators.answers import answered


def told(metrics: RequestMetrics, name: str, **labels: str) -> dict[tuple[str, ...], Any]:
    """Return the values of a metric, by their ending and the values of their other labels."""
    (family,) = (f for f in metrics.families() if f.name == f"edgefleet_{name}")
    return {
        (sample.ending, *(v for k, v in sample.labels.items() if k not in labels)): sample.value
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    }


def test_requests_are_counted_by_variant_outcome_and_status() -> None:
    metrics = RequestMetrics()
    for variant, outcome, status in [
        ("a", Outcome.OK, 200),
        ("a", Outcome.OK, 200),
        ("b", Outcome.OK, 200),
        ("a", Outcome.REFUSED, 503),
        ("a", Outcome.REFUSED, 504),
    ]:
        metrics.count(answered(variant, outcome=outcome, status=status))
    assert told(metrics, "requests", model="digits", version="1") == {
        ("", "a", "ok", "200"): 2,
        ("", "b", "ok", "200"): 1,
        ("", "a", "refused", "503"): 1,
        ("", "a", "refused", "504"): 1,
    }


def test_versions_of_a_model_are_apart_and_go_on_where_they_were() -> None:
    metrics = RequestMetrics()
    for release in ("digits:1", "digits:2", "digits:1"):
        metrics.count(answered(release=release))
    assert told(metrics, "samples", variant="a") == {("", "digits", "1"): 2, ("", "digits", "2"): 1}


def test_the_name_that_a_stranger_asks_for_is_no_label() -> None:
    metrics = RequestMetrics()
    metrics.count(answered(outcome=Outcome.UNKNOWN_MODEL, status=404))
    assert told(metrics, "requests") == {
        ("", "none", "none", "none", "unknown_model", "404"): 1,
    }


def test_what_no_variant_could_answer_is_counted_for_its_model() -> None:
    metrics = RequestMetrics()
    metrics.count(answered("none", release="none", outcome=Outcome.REFUSED, status=503))
    assert told(metrics, "requests") == {
        ("", "digits", "none", "none", "refused", "503"): 1,
    }


def test_times_are_those_of_answers() -> None:
    metrics = RequestMetrics()
    metrics.count(answered(total_s=0.004, queue_s=0.001, compute_s=0.002))
    metrics.count(answered(total_s=60.0))
    metrics.count(answered(total_s=1.0, outcome=Outcome.FAILED, status=500))
    found = told(metrics, "request_seconds", model="digits", version="1", variant="a")
    assert found["_bucket", "0.0025"] == 0
    assert found["_bucket", "0.005"] == found["_bucket", "30.0"] == 1
    assert found["_bucket", "+Inf"] == found["_count",] == 2
    assert found["_sum",] == 60.004
    queue = told(metrics, "request_queue_seconds", model="digits", version="1", variant="a")
    assert queue["_bucket", "0.001"] == 2  # a bucket holds its bound


def test_joined_requests_count_a_run_once() -> None:
    metrics = RequestMetrics()
    for _ in range(4):
        metrics.count(answered(samples=2, joined=4, request_bytes=10, answer_bytes=20))
    assert told(metrics, "model_runs") == {("", "digits", "1", "a"): 1.0}
    assert told(metrics, "samples") == {("", "digits", "1", "a"): 8}
    assert told(metrics, "request_bytes") == {("", "digits", "1", "a"): 40}
    assert told(metrics, "answer_bytes") == {("", "digits", "1", "a"): 80}
    found = told(metrics, "batch_requests", model="digits", version="1", variant="a")
    assert (found["_bucket", "2.0"], found["_bucket", "4.0"], found["_count",]) == (0, 4, 4)


def test_of_too_many_variants_the_one_goes_that_answered_longest_ago() -> None:
    metrics = RequestMetrics()
    metrics.count(answered("first"))
    for number in range(MAX_VARIANTS - 1):
        metrics.count(answered(f"v{number}"))
    metrics.count(answered("first"))
    metrics.count(answered("one more"))
    left = {key[-1] for key in told(metrics, "samples")}
    assert len(left) == MAX_VARIANTS
    assert {"first", "one more"} <= left
    assert "v0" not in left
