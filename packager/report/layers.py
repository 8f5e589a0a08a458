"""The profile of a variant by layer, as rows for a terminal and as text for the report's page.

Rules:
- The longest layer comes first; shares are of the sum of all layers.
- What a runtime does not tell is a dash, and the page says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from packager.layers.sums import by_time, layers_us, totals
from packager.layers.values import LayerProfile
from packager.report.text import UNKNOWN, size_text
from packager.result import CandidateReport
from wire.package.performance import Performance

SHOWN: Final = 60
"""Rows of a table: the slowest layers; the JSON report has all."""

SHOWN_NAMES: Final = 8
"""Names of fused layers in one cell."""

COLUMNS: Final = ("LAYER", "TIME US", "SHARE", "OPERATOR", "PRECISION", "OUTPUT", "KERNEL", "FUSED")
MINOR: Final = ("KERNEL", "OUTPUT", "FUSED", "PRECISION")
TOTAL_COLUMNS: Final = ("OPERATOR", "LAYERS", "TIME US", "SHARE")
PERCENT: Final = 100.0
US_PER_MS: Final = 1000.0


class LayerTable(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows of one variant."""

    name: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    totals: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]
    """Layer, time, share, operator, precision, output, kernel, fused."""

    left: str
    """What the rows leave out; empty if nothing."""

    notes: tuple[str, ...]


def layer_rows(profile: LayerProfile) -> list[tuple[str, ...]]:
    """Return a row for each of the slowest layers, under `COLUMNS`."""
    whole_us = layers_us(profile)
    shown = by_time(profile.layers)[:SHOWN]
    return [
        (
            layer.name,
            UNKNOWN if layer.time_us is None else f"{layer.time_us:.1f}",
            UNKNOWN
            if layer.time_us is None or not whole_us
            else _percent(layer.time_us / whole_us),
            layer.operator if layer.calls == 1 else f"{layer.operator}, {layer.calls:.3g} times",
            layer.precision or UNKNOWN,
            size_text(layer.output_bytes),
            layer.kernel or UNKNOWN,
            _names(layer.fused) if layer.fused != (layer.name,) else "",
        )
        for layer in shown
    ]


def total_rows(profile: LayerProfile) -> list[tuple[str, ...]]:
    """Return a row for each operator, under `TOTAL_COLUMNS`; none where no time is known."""
    if profile.untold:
        return []
    return [
        (total.operator, str(total.layers), f"{total.time_us:.1f}", _percent(total.share))
        for total in totals(profile)
    ]


def left_text(profile: LayerProfile) -> str:
    """Say what `layer_rows` leaves out; empty if nothing."""
    count = max(0, len(profile.layers) - SHOWN) + profile.left_out
    if not count:
        return ""
    rest = by_time(profile.layers)[SHOWN:]
    left_us = sum(layer.time_us or 0.0 for layer in rest) + profile.left_out_us
    return f"{count} more layers take {left_us:.1f} us together"


def layer_facts(
    profile: LayerProfile, performance: Performance | None
) -> tuple[tuple[str, str], ...]:
    """Return the sums of a profile beside what was measured without a profiler."""
    facts: list[tuple[str, str]] = []
    if not profile.untold and profile.inference_us is not None:
        facts += [
            ("sum of the layers", f"{layers_us(profile) / US_PER_MS:.3f} ms"),
            (
                "whole inference with the profiler on",
                f"{profile.inference_us / US_PER_MS:.3f} ms, mean of {profile.runs} runs",
            ),
        ]
    if performance is not None:
        facts.append(
            ("measured without it", f"{performance.latency_p50_ms:.3f} ms, median, in the build")
        )
    if profile.memory is not None:
        at = f" at {profile.memory.at}" if profile.memory.at else ""
        facts.append(("greatest memory of values", size_text(profile.memory.peak_bytes) + at))
    if profile.arena_bytes is not None:
        facts.append(("most in use by the runtime's allocator", size_text(profile.arena_bytes)))
    if profile.weights_bytes is not None:
        facts.append(("weights", size_text(profile.weights_bytes)))
    if performance is not None:
        facts.append(
            ("measured peak of the whole process", size_text(performance.peak_memory_bytes))
        )
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    facts.append(("runtime", f"{profile.runtime} {profile.version}, {threads}".replace(" ,", ",")))
    facts.append(("machine", profile.machine))
    return tuple(facts)


def layer_notes(profile: LayerProfile) -> tuple[str, ...]:
    """Say where the figures come from, and what is in none of them."""
    notes = [*profile.notes]
    if profile.memory is not None:
        notes.append(f"the memory of values is {profile.memory.source}")
    if profile.removed:
        count = len(profile.removed)
        notes.append(
            f"{count} of the model's layers have no time of their own, because the runtime removed "
            f"them or computed them in advance: {_names(profile.removed)}"
        )
    return tuple(f"{note[:1].upper()}{note[1:]}." for note in notes)


def layer_tables(candidates: Sequence[CandidateReport]) -> list[LayerTable]:
    """Return what the page shows: a table for each variant that was profiled."""
    return [_table(c, c.layers) for c in candidates if c.layers is not None]


def _table(candidate: CandidateReport, profile: LayerProfile) -> LayerTable:
    return LayerTable(
        name=candidate.name,
        summary=_summary(profile),
        facts=layer_facts(profile, candidate.performance),
        totals=tuple(total_rows(profile)),
        rows=tuple(layer_rows(profile)),
        left=left_text(profile),
        notes=layer_notes(profile),
    )


def _summary(profile: LayerProfile) -> str:
    """Say in a few words where the time goes."""
    if profile.untold:
        return f"{UNKNOWN} {profile.untold}"
    first = [f"{total.operator} {_percent(total.share)}" for total in totals(profile)[:3]]
    count = len(profile.layers) + profile.left_out
    return f"{count} layers, {layers_us(profile) / US_PER_MS:.3f} ms: {', '.join(first)}"


def _names(names: Sequence[str]) -> str:
    text = ", ".join(names[:SHOWN_NAMES])
    more = len(names) - SHOWN_NAMES
    return f"{text} and {more} more" if more > 0 else text


def _percent(share: float) -> str:
    return f"{share * PERCENT:.1f} %"
