"""The figures of samples of several shapes as rows: of a build and of a package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from packager.judge.shapes import shape_text
from packager.report.text import error_text, share
from packager.result import CandidateReport
from wire.package.accuracy import Accuracy
from wire.package.manifest import Manifest

Row = tuple[object, ...]

COLUMNS: Final = (
    "VARIANT", "SHAPE", "SAMPLES", "VALUE", "REFERENCE", "RETENTION", "WORST ERROR",
)  # fmt: skip
MINOR: Final = ("WORST ERROR", "REFERENCE")
"""Columns that a narrow terminal leaves out first."""


def candidate_rows(candidates: Sequence[CandidateReport]) -> list[Row]:
    """Return one row per evaluated candidate and shape; none where the samples have one shape."""
    return _rows((c.name, c.accuracy) for c in candidates)


def manifest_rows(manifest: Manifest) -> list[Row]:
    """Return one row per variant of a package and shape."""
    return _rows((v.name, v.info.accuracy) for v in manifest.variants)


def page_rows(candidates: Sequence[CandidateReport]) -> list[tuple[str, ...]]:
    """Return the rows of the report's page, as text."""
    return [
        (
            candidate.name,
            shape_text(one.sizes),
            str(one.samples),
            share(one.value),
            share(one.reference),
            share(one.retention),
            error_text(one.worst_error),
        )
        for candidate in candidates
        if candidate.accuracy is not None
        for one in candidate.accuracy.shapes or ()
    ]


def _rows(named: Iterable[tuple[str, Accuracy | None]]) -> list[Row]:
    return [
        (
            name,
            shape_text(one.sizes),
            one.samples,
            round(one.value, 4),
            round(one.reference, 4),
            round(one.retention, 4),
            float(error_text(one.worst_error)),
        )
        for name, accuracy in named
        if accuracy is not None
        for one in accuracy.shapes or ()
    ]
