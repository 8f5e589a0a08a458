"""The figures of further metrics as rows: of a build, of a package, and of two packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from packager.judge.further import clause, figures_of
from packager.package.differences import PackageDifference
from packager.report.text import error_text, range_text, share
from packager.result import CandidateReport
from wire.package.accuracy import Accuracy
from wire.package.manifest import Manifest

Row = tuple[object, ...]

COLUMNS: Final = (
    "VARIANT", "OUTPUT=METRIC", "VALUE", "REFERENCE", "RETENTION", "AT LEAST", "SAMPLES",
    "WORST ERROR",
)  # fmt: skip
MINOR: Final = ("SAMPLES", "WORST ERROR", "REFERENCE")
"""Columns that a narrow terminal leaves out first."""

DIFFERENCE_COLUMNS: Final = ("VARIANT", "OUTPUT=METRIC", "VALUE", "RETENTION")


def candidate_rows(candidates: Sequence[CandidateReport]) -> list[Row]:
    """Return one row per evaluated candidate and further metric; none without further metrics."""
    return _rows((c.name, c.accuracy) for c in candidates)


def manifest_rows(manifest: Manifest) -> list[Row]:
    """Return one row per variant of a package and further metric."""
    return _rows((v.name, v.info.accuracy) for v in manifest.variants)


def difference_rows(difference: PackageDifference) -> list[Row]:
    """Return one row per variant and further metric of either package, old and new in one cell."""
    return [
        (
            variant.name,
            one.metric,
            _pair(one.old_value, one.new_value),
            _pair(one.old_retention, one.new_retention),
        )
        for variant in difference.variants
        for one in variant.further or ()
    ]


def page_rows(candidates: Sequence[CandidateReport]) -> list[tuple[str, ...]]:
    """Return the rows of the report's page, as text: a name once, and its figures below it."""
    rows: list[tuple[str, ...]] = []
    for candidate in candidates:
        for found in figures_of(candidate.accuracy):
            known = found.certainty or None
            bounds = range_text(known.retention_low, known.retention_high) if known else ""
            rows.append(
                (
                    candidate.name,
                    clause(found),
                    share(found.value),
                    share(found.reference),
                    share(found.retention) + bounds,
                    error_text(found.worst_error),
                    str(found.samples),
                )
            )
    return rows


def _rows(named: Iterable[tuple[str, Accuracy | None]]) -> list[Row]:
    rows: list[Row] = []
    for name, accuracy in named:
        for found in figures_of(accuracy):
            low = found.certainty.retention_low if found.certainty else None
            rows.append(
                (
                    name,
                    clause(found),
                    round(found.value, 4),
                    round(found.reference, 4),
                    round(found.retention, 4),
                    None if low is None else round(low, 4),
                    found.samples,
                    float(error_text(found.worst_error)),
                )
            )
    return rows


def _pair(old: float | None, new: float | None) -> str:
    was, now = ("-" if value is None else f"{value:.4f}" for value in (old, new))
    return was if was == now else f"{was} -> {now}"
