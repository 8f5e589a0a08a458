"""The model cards in a bill of materials: what the manifest says, in the words of CycloneDX. Pure.

Rules:
- A figure stands there only if it was measured; what nobody told, such as the intended use, is left
  out.
- A task is told only where the metric is one of that task alone.

Source:
    CycloneDX 1.6, JSON schema: `modelCard`, `inputOutputMLParameters`, `performanceMetric`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from packager.judge.further import clause, figures_of
from packager.judge.metrics import named
from wire.codec import to_json
from wire.package.accuracy import Accuracy, Certainty
from wire.package.performance import Performance
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant

TASKS: Final = {
    "top1": "classification",
    "top5": "classification",
    "miou": "semantic segmentation",
    "map": "object detection",
    "wer": "transcription",
    "cer": "transcription",
    "perplexity": "language modelling",
    "r2": "regression",
}
"""Metric to the task that it is for."""


def model_card(variants: Sequence[Variant], metric: str, datasets: Sequence[str]) -> dict[str, Any]:
    """Return the card of a model.

    Args:
        variants: Those of its package.
        metric: That of the build.
        datasets: References to the components of its samples.

    Returns:
        A `modelCard`.
    """
    info = variants[0].info
    task = TASKS.get(named(metric))
    unchanged = [v.info.accuracy for v in variants if v.info.accuracy is not None][:1]
    figures = [_metric(a.metric, a.reference, part="the float model") for a in unchanged]
    return {
        "modelParameters": {
            **({"task": task} if task else {}),
            "datasets": [{"ref": ref} for ref in datasets],
            "inputs": [{"format": _tensor(spec)} for spec in info.inputs],
            "outputs": [{"format": _tensor(spec)} for spec in info.outputs],
        },
        **_analysis(figures),
    }


def variant_card(variant: Variant) -> dict[str, Any]:
    """Return the card of one variant: its figures; empty if nothing was measured."""
    info = variant.info
    figures: list[dict[str, Any]] = []
    if info.accuracy is not None:
        figures += _quality(info.accuracy)
    if info.performance is not None:
        figures += _costs(info.performance, f"on {info.performance.machine}")
    for profile, found in sorted((info.field or {}).items()):
        figures += _costs(found.performance, f"on {found.devices} devices of {profile}")
    return _analysis(figures)


def _quality(accuracy: Accuracy) -> Iterator[dict[str, Any]]:
    yield _metric(accuracy.metric, accuracy.value)
    yield _metric("retention", accuracy.retention, bounds=_retention_bounds(accuracy.certainty))
    if accuracy.agreement is not None:
        yield _metric("agreement", accuracy.agreement)
    yield _metric("samples", accuracy.samples)
    for further in figures_of(accuracy):
        bounds = _retention_bounds(further.certainty)
        yield _metric(further.metric, further.value, part=clause(further))
        yield _metric("retention", further.retention, part=clause(further), bounds=bounds)


def _costs(performance: Performance, where: str) -> Iterator[dict[str, Any]]:
    yield _metric("latency_p50_ms", performance.latency_p50_ms, part=where)
    yield _metric("latency_p95_ms", performance.latency_p95_ms, part=where)
    yield _metric("peak_memory_bytes", performance.peak_memory_bytes, part=where)


def _retention_bounds(
    certainty: Certainty | msgspec.UnsetType,
) -> tuple[float | None, float | None]:
    if certainty is msgspec.UNSET:
        return None, None
    return certainty.retention_low, certainty.retention_high


def _metric(
    kind: str,
    value: float,
    *,
    part: str = "",
    bounds: tuple[float | None, float | None] = (None, None),
) -> dict[str, Any]:
    names = zip(("lowerBound", "upperBound"), bounds, strict=True)
    interval = {name: _text(bound) for name, bound in names if bound is not None}
    return {
        "type": kind,
        "value": _text(value),
        **({"slice": part} if part else {}),
        **({"confidenceInterval": interval} if interval else {}),
    }


def _analysis(figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {"quantitativeAnalysis": {"performanceMetrics": figures}} if figures else {}


def _text(number: float) -> str:
    return to_json(number).decode()


def _tensor(spec: TensorSpec) -> str:
    axes = ",".join("?" if size < 0 else str(size) for size in spec.shape)
    return f"{spec.name}: {spec.datatype} [{axes}]"
