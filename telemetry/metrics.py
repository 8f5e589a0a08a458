"""The metrics that agents report: their units, attributes and meaning. Pure.

A test holds the table against the code, and `docs/metrics.md` against the table.

Rules:
- The name of a metric ends with its unit; a counter ends with `_total`. Units are those of UCUM, as
  OpenTelemetry writes them; what is counted stands in braces.
- An attribute that is missing in a point counts as empty.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["histogram", "sum", "gauge"]


class Metric(NamedTuple):
    """What a metric means."""

    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    meaning: str


_OF_VARIANT: Final = ("release", "variant")
_OF_CODE: Final = (*_OF_VARIANT, "code")

METRICS: Final[dict[str, Metric]] = {
    "advised_sampling_ratio": Metric(
        "gauge", "1", (), "share of their usual rate at which applications are advised to ask"
    ),
    "battery_ratio": Metric("gauge", "1", (), "charge of the battery; 1 is full"),
    "deferred_expired_total": Metric(
        "sum", "{request}", (), "requests that could wait and were not answered in their time"
    ),
    "deferred_requests_total": Metric("sum", "{request}", (), "requests that were taken to wait"),
    "fetched_bytes_total": Metric(
        "sum", "By", ("network",), "what came over a network that has a budget"
    ),
    "headroom_ratio": Metric(
        "gauge", "1", (), "heat from 0, which is nominal, to 1, which is severe throttling"
    ),
    "inference_deferred_total": Metric(
        "sum", "{request}", _OF_VARIANT, "requests that waited and have been answered"
    ),
    "inference_batch_requests": Metric(
        "histogram", "{request}", _OF_VARIANT,
        "how many requests the same run of the model answered, once for each of them",
    ),
    "inference_failures_total": Metric(
        "sum", "{request}", _OF_CODE,
        "requests that failed or were refused, by the code of the error or the HTTP status",
    ),
    "inference_invalid_total": Metric(
        "sum", "{request}", _OF_CODE,
        "requests that the model cannot take as they are, by the HTTP status",
    ),
    "inference_joined_total": Metric(
        "sum", "{request}", _OF_VARIANT, "requests that one run of the model answered with others"
    ),
    "inference_latency_ms": Metric(
        "histogram", "ms", _OF_VARIANT,
        "from the whole request to the answer, of requests that were answered",
    ),
    "inference_queue_s": Metric(
        "histogram", "s", _OF_VARIANT,
        "the part of the latency until the request's turn with the worker began",
    ),
    "inference_refusals_total": Metric(
        "sum", "{request}", _OF_CODE,
        "requests that were refused, by the reason; `agent.worker.shed` made room for others",
    ),
    "inference_requests_total": Metric(
        "sum", "{request}", _OF_VARIANT, "requests for a model, whatever became of them"
    ),
    "inference_runs_total": Metric(
        "sum", "{run}", _OF_VARIANT, "runs of the model; joined requests share one"
    ),
    "inference_runtime_s": Metric(
        "histogram", "s", _OF_VARIANT,
        "the part of the latency in the runtime; a joined request counts its share of the run",
    ),
    "install_bytes_total": Metric(
        "sum", "By", ("source",), "bytes of packages, by the way they came"
    ),
    "install_duration_s": Metric(
        "histogram", "s", ("outcome",), "from the order of an install to its outcome"
    ),
    "memory_available_bytes": Metric("gauge", "By", (), "memory that programs can still get"),
    "peer_sent_bytes_total": Metric(
        "sum", "By", (), "what the device sent to others of its site"
    ),
    "slow_retrievals_total": Metric(
        "sum", "{window}", ("source",), "windows in which a source brought less than it has to"
    ),
    "switch_gap_ms": Metric(
        "histogram", "ms", _OF_VARIANT, "how long no worker answered while one replaced another"
    ),
    "telemetry_dropped_total": Metric(
        "sum", "{point}", (), "points and events that the agent could not keep"
    ),
    "temperature_c": Metric("gauge", "Cel", (), "the hottest zone of the device"),
    "variant_switches_total": Metric(
        "sum", "{switch}", ("release",), "how often another variant took the requests"
    ),
    "worker_compute_seconds_total": Metric(
        "sum", "s", _OF_VARIANT, "time in the runtime, of requests that were answered"
    ),
}  # fmt: skip


def document() -> str:
    """Return the table as it stands in `docs/metrics.md`."""
    lines = ["| metric | kind | unit | attributes | meaning |", "|---|---|---|---|---|"]
    for name, metric in sorted(METRICS.items()):
        attributes = ", ".join(f"`{each}`" for each in metric.attributes)
        kind = KINDS[metric.kind]
        lines.append(f"| `{name}` | {kind} | {metric.unit} | {attributes} | {metric.meaning} |")
    return "\n".join(lines) + "\n"


KINDS: Final[dict[Kind, str]] = {"histogram": "histogram", "sum": "counter", "gauge": "gauge"}
"""The words of OpenTelemetry for people."""
