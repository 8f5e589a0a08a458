"""A build's result as tables: the figures of each variant, and what each profile gets.

Rules:
- A figure that was not measured is None; the reader sees a dash.
- Each latency comes with the name of the machine that measured it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from packager.judge.intervals import rounded_down
from packager.judge.metrics import named
from packager.judge.ranking import MIB
from packager.plan.values import Impossible, Plan
from packager.result import BuildResult, CandidateReport
from wire.package.accuracy import Accuracy
from wire.package.manifest import Manifest
from wire.package.performance import Performance
from wire.profile import DeviceProfile

Row = tuple[object, ...]

VERDICT_COLUMNS = ("PROFILE", "VARIANT", "IN PACKAGE", "WHY")
IMPOSSIBLE_COLUMNS = ("PROFILE", "WHY NOT", "VARIANTS")
STEP_COLUMNS = ("STEP", "KIND", "NEEDS")
KIB = 1024


def figure_columns(metric: str) -> tuple[str, ...]:
    """Return the headings of the table of figures."""
    return (
        "VARIANT", "KIB", named(metric).upper(), "RETENTION", "AT LEAST", "SAMPLES", "AGREEMENT",
        "SQNR DB", "WORST ERROR", "P50 MS", "P95 MS", "LOAD MS", "PEAK MIB",
    )  # fmt: skip


FIGURES_MINOR: Final = (
    "SAMPLES", "SQNR DB", "P95 MS", "LOAD MS", "RETENTION", "WORST ERROR", "AGREEMENT", "AT LEAST",
)  # fmt: skip
"""Columns that a narrow terminal leaves out first: a report and `--json` have them all."""


def figure_rows(candidates: Sequence[CandidateReport]) -> list[Row]:
    """Return one row per candidate that was measured."""
    return [
        figures_row(c.name, c.size_bytes, c.accuracy, c.performance)
        for c in candidates
        if not c.lost
    ]


def manifest_rows(manifest: Manifest) -> list[Row]:
    """Return one row of figures per variant of a package."""
    return [
        figures_row(v.name, v.info.size_bytes, v.info.accuracy, v.info.performance)
        for v in manifest.variants
    ]


def figures_row(
    name: str,
    size_bytes: int | None,
    accuracy: Accuracy | None,
    performance: Performance | None,
) -> Row:
    """Return a variant's row of figures, rounded to what is meaningful."""
    quality: Row = (None,) * 7
    cost: Row = (None,) * 4
    if accuracy is not None:
        # What answers exactly as the reference keeps everything, whatever the samples.
        exact = accuracy.worst_error == 0.0
        low = accuracy.certainty.retention_low if accuracy.certainty and not exact else None
        quality = (
            round(accuracy.value, 4),
            round(accuracy.retention, 4),
            None if low is None else float(rounded_down(low)),
            accuracy.samples,
            None if accuracy.agreement is None else round(accuracy.agreement, 4),
            _sqnr(accuracy),
            float(f"{accuracy.worst_error:.3g}"),
        )
    if performance is not None:
        cost = (
            round(performance.latency_p50_ms, 3),
            round(performance.latency_p95_ms, 3),
            round(performance.load_ms, 1),
            round(performance.peak_memory_bytes / MIB, 1),
        )
    return (name, None if size_bytes is None else round(size_bytes / KIB, 1), *quality, *cost)


def _sqnr(accuracy: Accuracy) -> object:
    """Return the ratio in decibels; without one, whether nothing differs."""
    if accuracy.sqnr_db is not None:
        return round(accuracy.sqnr_db, 1)
    return None if accuracy.worst_error else "exact"


def verdict_rows(result: BuildResult, profiles: Sequence[DeviceProfile]) -> list[Row]:
    """Return the candidates that each profile gets, and why it does not get the others."""
    rows: list[Row] = []
    for profile in profiles:
        for candidate in result.candidates:
            verdict = candidate.profiles.get(profile.name)
            if verdict is not None:
                rows.append((profile.name, candidate.name, verdict.kept, verdict.reason))
            elif candidate.lost and profile.name in candidate.planned:
                rows.append((profile.name, candidate.name, False, candidate.lost))
    return rows


def plan_rows(plan: Plan, profiles: Sequence[DeviceProfile]) -> list[Row]:
    """Return the candidates that each profile may get."""
    rows: list[Row] = []
    for profile in profiles:
        rows += [
            (profile.name, c.name, None, "planned")
            for c in plan.candidates
            if profile.name in c.info.profiles
        ]
        rows += [
            (
                profile.name,
                r.candidate.name,
                None,
                f"the build tries it only if {r.of} misses the quality gate",
            )
            for r in plan.repairs
            if profile.name in r.candidate.info.profiles
        ]
    return rows


def step_rows(plan: Plan) -> list[Row]:
    """Return the steps of a plan."""
    return [(s.name, s.kind, ", ".join(sorted(set(s.inputs.values())))) for s in plan.steps]


def impossible_rows(
    impossible: Sequence[Impossible], profiles: Sequence[DeviceProfile]
) -> list[Row]:
    """Return the candidates that each profile cannot have, one row for all with the same reason."""
    rows: list[Row] = []
    for profile in profiles:
        reasons: dict[str, list[str]] = {}
        for found in impossible:
            if found.profile == profile.name:
                reasons.setdefault(found.reason, []).append(found.candidate)
        rows += [(profile.name, why, ", ".join(names)) for why, names in reasons.items()]
    return rows
