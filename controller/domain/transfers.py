"""The transfers of packages to devices, as devices report them, and several of them together. Pure.

Rules:
- What a device says is bounded: sizes that no package has, rates that are no numbers and further
  sources than `MAX_SOURCES` are not kept.
- Of several transfers an end is told only if it is known of as many as it is told of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.domain.device_text import clean
from wire.desired import MAX_REVISION
from wire.installs import InstallReport
from wire.progress import TransferProgress

FETCHING: Final = "fetching"
"""The phase of an install in which bytes come."""

MAX_SOURCES: Final = 16
MAX_SOURCE_CHARS: Final = 32
MAX_RATE_BYTES_PER_S: Final = 1e12
"""Above any network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSum:
    """Several transfers together."""

    devices: int
    """How many devices fetch."""

    silent: int
    """How many of them have sent no news for so long that their figures are not those of now."""

    done_bytes: int
    total_bytes: int
    rate_bytes_per_s: float
    """Of those that are not silent."""

    half_rest_s: float | None
    """When half of them, rounded up, may have all; None if that is known of fewer."""

    rest_s: float | None
    """When the last of them may have all; None if it is not known of each."""


def is_fetching(report: InstallReport) -> bool:
    """Tell whether a report is one of a transfer that runs."""
    return report.outcome == "running" and report.phase == FETCHING and report.total_bytes > 0


def transfer_of(report: InstallReport) -> TransferProgress:
    """Return the figures of a report, bounded; the news is of now.

    Args:
        report: As a device sent it.

    Returns:
        The figures.
    """
    total_bytes = size(report.total_bytes)
    rate = report.rate_bytes_per_s
    is_rate = isinstance(rate, float) and math.isfinite(rate) and 0 <= rate <= MAX_RATE_BYTES_PER_S
    by_source = report.bytes_by_source
    return TransferProgress(
        done_bytes=min(size(report.done_bytes), total_bytes),
        total_bytes=total_bytes,
        rate_bytes_per_s=rate if is_rate and isinstance(rate, float) else None,
        bytes_by_source={} if isinstance(by_source, msgspec.UnsetType) else _sources(by_source),
    )


def together(transfers: Sequence[TransferProgress]) -> TransferSum | None:
    """Return several transfers as one; None of none."""
    if not transfers:
        return None
    known_s = sorted(t.rest_s for t in transfers if t.rest_s is not None)
    half = math.ceil(len(transfers) / 2)
    return TransferSum(
        devices=len(transfers),
        silent=sum(t.silent for t in transfers),
        done_bytes=sum(t.done_bytes for t in transfers),
        total_bytes=sum(t.total_bytes for t in transfers),
        rate_bytes_per_s=sum(t.rate_bytes_per_s or 0.0 for t in transfers if not t.silent),
        half_rest_s=known_s[half - 1] if len(known_s) >= half else None,
        rest_s=known_s[-1] if len(known_s) == len(transfers) else None,
    )


def size(size_bytes: int) -> int:
    """Return a size from a device within what JSON and databases hold."""
    return min(max(size_bytes, 0), MAX_REVISION)


def _sources(by_source: Mapping[str, int]) -> dict[str, int]:
    """Return the sources of which most came; names of any version of the agent are taken."""
    most = sorted(by_source.items(), key=lambda item: (-item[1], item[0]))[:MAX_SOURCES]
    return {clean(name, MAX_SOURCE_CHARS): size(size_bytes) for name, size_bytes in most}
