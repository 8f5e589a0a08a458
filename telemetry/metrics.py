"""The metrics that agents report: their units, attributes and meaning. Pure.

A test holds the table against the code, and `docs/metrics.md` against the table.

Rules:
- Where OpenTelemetry's semantic conventions name a metric or an attribute, it has that name, with
  dots. The name of any other metric ends with its unit, and a counter's with `_total`. Units are
  those of UCUM, as OpenTelemetry writes them; what is counted stands in braces.
- A metric that is renamed stands in `OLD_NAMES` for one version: a query finds what devices report
  by either name.
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
    by_minute: bool = False
    """Whether it is reported only when its minute is over: it tells nothing urgent, and the store
    has one row for each minute anyway."""

    statistics: tuple[str, ...] = ()
    """What a query tells unless it asks for something else; empty for what its kind has."""

    least: float | None = 0.0
    """The least value that there can be; None where values may be negative."""

    greatest: float | None = None
    """The greatest value that there can be; None for any."""


OF_EVERY: Final = frozenset({"model", "release", "variant"})
"""The attributes that any metric may have. The model is a part of the release."""

_OF_VARIANT: Final = ("release", "variant")
_OF_PROCESS: Final = ("role", *_OF_VARIANT)
_OF_CODE: Final = (*_OF_VARIANT, "code")
_OF_BAND: Final = (*_OF_VARIANT, "thermal_band")

METRICS: Final[dict[str, Metric]] = {
    "advised_sampling_ratio": Metric(
        "gauge", "1", (), "share of their usual rate at which applications are advised to ask",
        greatest=1.0,
    ),
    "capture_dropped_total": Metric(
        "sum", "{sample}", (*_OF_VARIANT, "reason"),
        "samples that the fleet's operator wanted and the device did not take or keep, or the "
        "controller refused",
    ),
    "captured_samples_total": Metric(
        "sum", "{sample}", (*_OF_VARIANT, "why"),
        "samples that were captured for the fleet's operator",
    ),
    "cpu_frequency_ratio": Metric(
        "gauge", "1", (), "frequency of the processor, of its greatest", by_minute=True
    ),
    "cpu_stall_ratio": Metric(
        "gauge", "1", (), "share of 10 s in which a task waited for a core",
        by_minute=True, greatest=1.0,
    ),
    "deferred_expired_total": Metric(
        "sum", "{request}", (), "requests that could wait and were not answered in their time"
    ),
    "deferred_requests_total": Metric("sum", "{request}", (), "requests that were taken to wait"),
    "feedback_accuracy_ratio": Metric(
        "histogram", "1", _OF_BAND,
        "1 for each answer that was right and 0 for each that was wrong, as applications say: the "
        "mean is the accuracy",
        statistics=("count", "mean"), greatest=1.0,
    ),
    "feedback_refused_total": Metric(
        "sum", "{request}", ("reason",),
        "feedback about answers that were `unknown`, or with a `contradiction` to what was said",
    ),
    "feedback_scores": Metric(
        "histogram", "{score}", _OF_BAND, "how good answers were, as applications score them"
    ),
    "fetched_bytes_total": Metric(
        "sum", "By", ("network",), "what came over a network that has a budget"
    ),
    "golden_agreement_ratio": Metric(
        "gauge", "1", _OF_VARIANT,
        "share of the golden samples that the variant which serves answered as the reference does, "
        "when the device tested it last", greatest=1.0,
    ),
    "headroom_ratio": Metric(
        "gauge", "1", (), "heat from 0, which is nominal, to 1, which is severe throttling",
        least=None,
    ),
    "inference_deferred_total": Metric(
        "sum", "{request}", _OF_VARIANT, "requests that waited and have been answered"
    ),
    "hw.battery.charge": Metric("gauge", "1", (), "charge of the battery; 1 is full", greatest=1.0),
    "hw.energy": Metric(
        "sum", "J", ("hw.id",), "energy by the device's own counters", by_minute=True
    ),
    "hw.power": Metric("gauge", "W", ("hw.id",), "draw from the battery", by_minute=True),
    "hw.temperature": Metric(
        "gauge", "Cel", ("hw.id",), "temperature of each zone of the processor",
        by_minute=True, least=None,
    ),
    "inference_batch_requests": Metric(
        "histogram", "{request}", _OF_VARIANT,
        "how many requests the same run of the model answered, once for each of them",
    ),
    "inference_energy_j": Metric(
        "gauge", "J", (),
        "energy of the whole device over requests answered, while some were", by_minute=True,
    ),
    "inference_failures_total": Metric(
        "sum", "{request}", _OF_CODE,
        "requests that failed or were refused, by the code of the error or the HTTP status",
    ),
    "inference_fallbacks_total": Metric(
        "sum", "{request}", _OF_VARIANT,
        "requests answered by a variant that runs elsewhere than it promises, as the event "
        "`fallback` says",
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
    "io_stall_ratio": Metric(
        "gauge", "1", (), "share of 10 s in which a task waited for a disk",
        by_minute=True, greatest=1.0,
    ),
    "load_ratio": Metric("gauge", "1", (), "load average of a minute, by core", by_minute=True),
    "memory_stall_ratio": Metric(
        "gauge", "1", (), "share of 10 s in which a task waited for memory",
        by_minute=True, greatest=1.0,
    ),
    "memory_full_stall_ratio": Metric(
        "gauge", "1", (), "share of 10 s in which all tasks waited for memory",
        by_minute=True, greatest=1.0,
    ),
    "model_samples_total": Metric(
        "sum", "{sample}", (*_OF_VARIANT, "tensor", "measure", "bin"),
        "samples by the bins of the package's evaluation; some of the requests are looked at",
        by_minute=True,
    ),
    "peer_sent_bytes_total": Metric(
        "sum", "By", (), "what the device sent to others of its site"
    ),
    "process.cpu.time": Metric(
        "sum", "s", _OF_PROCESS, "processor time of the supervisor, and of workers", by_minute=True
    ),
    "process.memory.usage": Metric(
        "gauge", "By", _OF_PROCESS, "resident memory of each process", by_minute=True
    ),
    "shadow_agreements_total": Metric(
        "sum", "{request}", _OF_VARIANT,
        "those of `shadow_requests_total` that the shadow answered as the release that serves",
    ),
    "shadow_differences": Metric(
        "histogram", "{difference}", _OF_VARIANT,
        "greatest difference of any number in the answers of a shadow and of the release that "
        "serves",
    ),
    "shadow_failures_total": Metric(
        "sum", "{request}", _OF_VARIANT,
        "those of `shadow_requests_total` that the shadow could not answer",
    ),
    "shadow_latency_ms": Metric(
        "histogram", "ms", _OF_VARIANT, "time in the runtime of a shadow, for a request"
    ),
    "shadow_live_latency_ms": Metric(
        "histogram", "ms", _OF_VARIANT,
        "time in the runtime of the release that serves, for the same requests",
    ),
    "shadow_requests_total": Metric(
        "sum", "{request}", _OF_VARIANT,
        "requests that a shadow got after the release that serves had answered them",
    ),
    "shadow_skipped_total": Metric(
        "sum", "{request}", (*_OF_VARIANT, "reason"),
        "requests that were chosen for a shadow and not compared, by the reason",
    ),
    "slow_retrievals_total": Metric(
        "sum", "{window}", ("source",), "windows in which a source brought less than it has to"
    ),
    "switch_gap_ms": Metric(
        "histogram", "ms", _OF_VARIANT, "how long no worker answered while one replaced another"
    ),
    "system.cpu.utilization": Metric(
        "gauge", "1", (), "share of a second in which the cores were busy",
        by_minute=True, greatest=1.0,
    ),
    "system.disk.io": Metric(
        "sum", "By", ("system.device", "disk.io.direction"), "what was written to each disk",
        by_minute=True,
    ),
    "system.filesystem.usage": Metric(
        "gauge", "By", ("system.filesystem.state",),
        "what is `free` where packages are stored", by_minute=True,
    ),
    "system.linux.memory.available": Metric(
        "gauge", "By", (), "memory that programs can still get"
    ),
    "system.network.io": Metric(
        "sum", "By", ("network.interface.name", "network.io.direction"),
        "what each interface received and sent", by_minute=True,
    ),
    "telemetry_dropped_total": Metric(
        "sum", "{point}", (), "points and events that the agent could not keep"
    ),
    "temperature_c": Metric("gauge", "Cel", (), "the hottest zone of the device", least=None),
    "throttled_ratio": Metric(
        "gauge", "1", (), "share of readings that found it slowed down for heat or power",
        by_minute=True, greatest=1.0,
    ),
    "variant_switches_total": Metric(
        "sum", "{switch}", ("release",), "how often another variant took the requests"
    ),
    "worker_crashes_total": Metric(
        "sum", "{crash}", _OF_VARIANT, "workers that crashed or hung, or did not start again"
    ),
    "worker_compute_seconds_total": Metric(
        "sum", "s", _OF_VARIANT, "time in the runtime, of requests that were answered"
    ),
    "zone_headroom_ratio": Metric(
        "gauge", "1", ("hw.id",),
        "heat of each zone: 0 is nominal, 1 is severe throttling",
        by_minute=True, least=None,
    ),
}  # fmt: skip

BY_MINUTE: Final = frozenset(name for name, metric in METRICS.items() if metric.by_minute)

OLD_NAMES: Final[dict[str, str]] = {
    "battery_ratio": "hw.battery.charge",
    "memory_available_bytes": "system.linux.memory.available",
}
"""How version 0.1 called metrics, and how this one does."""


def names_of(metric: str) -> tuple[str, ...]:
    """Return all names by which devices of this version and the one before report a metric.

    Args:
        metric: Its name, or an old one of it.

    Returns:
        The present name first.
    """
    present = OLD_NAMES.get(metric, metric)
    return present, *(old for old, new in OLD_NAMES.items() if new == present)


def known(metric: str) -> Metric | None:
    """Return what is known of a metric.

    Args:
        metric: Its name, or an old one of it.

    Returns:
        None if no agent of this version reports it.
    """
    return METRICS.get(OLD_NAMES.get(metric, metric))


def own_attributes(metric: str) -> frozenset[str]:
    """Return the attributes that a metric is known to have, whatever devices send.

    Args:
        metric: Its name, or an old one of it.

    Returns:
        Those of every metric, for one that no agent of this version reports.
    """
    found = known(metric)
    return OF_EVERY if found is None else OF_EVERY.union(found.attributes)


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
