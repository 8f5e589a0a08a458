"""What each profile gets and why, for the report's page: verdicts as text, figures as plots.

Rules:
- A device gets no plot of latency if the measuring machine is no such device: its variants are
  drawn by size, which is valid everywhere.
- The variant that serves first is the one that a cool device with enough power chooses: it has the
  best quality; among equals, the smallest worst error, then the least latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from markupsafe import Markup

from packager.judge.gates import Gates
from packager.judge.metrics import METRICS
from packager.judge.ranking import MIB
from packager.report.field import as_profile_sees
from packager.report.marks import mark
from packager.report.plots import Axis, Limit, Point, draw
from packager.report.text import architecture_of, machine_of, ms, share, size_text
from packager.result import BuildResult, CandidateReport
from wire.package.accuracy import Accuracy
from wire.profile import DeviceProfile

BY_WORST_ERROR: Final = frozenset({"cosine"})
"""Metrics whose values hardly differ between good variants."""

KIB: Final = 1024


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate of a profile, as text."""

    name: str
    reason: str = ""
    metric: str = ""
    retention: str = ""
    latency: str = ""
    memory: str = ""
    size: str = ""
    doubt: str = ""
    """Why the samples cannot tell whether it passes the gates."""

    glyph: str = ""
    mark: int = 0
    """Number of its runtime's colour."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A plot with its title and remarks."""

    title: str
    svg: Any
    remarks: tuple[str, ...]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A profile and what it gets."""

    profile: DeviceProfile
    limits: str
    foreign: bool
    """Whether the measuring machine is no such device, so that its speed is unknown."""

    first: Row | None
    kept: tuple[Row, ...]
    kept_size: str
    """Size of all kept variants together."""

    lost: tuple[Row, ...]
    slow: tuple[Row, ...]
    """What was too slow to be evaluated."""

    refused: tuple[Row, ...]
    beaten: tuple[Row, ...]
    impossible: tuple[tuple[str, tuple[str, ...]], ...]
    """Reason to candidates."""

    pictures: tuple[Picture, ...]
    runtimes: tuple[tuple[str, str, int], ...]
    """Glyph, runtime and number of its colour, for each runtime in the plots."""

    @property
    def impossible_count(self) -> int:
        """How many candidates the profile cannot have."""
        return sum(len(names) for _reason, names in self.impossible)


def devices(
    result: BuildResult, profiles: Sequence[DeviceProfile], gates: Gates | None
) -> list[Device]:
    """Return what each profile gets.

    Args:
        result: The result of the build.
        profiles: The profiles that it was built for.
        gates: The limits of the build; None if they are not known.

    Returns:
        One value per profile, in their order.
    """
    return [_device(as_profile_sees(result, p.name), p, gates) for p in profiles]


def serving_order(candidates: Sequence[CandidateReport]) -> list[CandidateReport]:
    """Return candidates in the order in which a device without any pressure prefers them."""
    return sorted(candidates, key=_preference)


def _device(result: BuildResult, profile: DeviceProfile, gates: Gates | None) -> Device:
    machine = machine_of(result)
    judged = [c for c in result.candidates if profile.name in c.profiles and not c.lost]
    kept = serving_order([c for c in judged if c.profiles[profile.name].kept])
    slow = [c for c in judged if not c.profiles[profile.name].evaluated]
    dropped = [c for c in judged if not c.profiles[profile.name].kept and c not in slow]
    foreign = is_foreign(result, profile)
    rows = tuple(_row(c, profile, machine) for c in kept)
    beaten = [c for c in dropped if c.profiles[profile.name].excess is None]
    return Device(
        profile=profile,
        limits=(
            f"{profile.architecture}, {size_text(profile.memory_bytes)} of memory and "
            f"{size_text(profile.storage_bytes)} of storage for models"
        ),
        foreign=foreign,
        first=rows[0] if rows else None,
        kept=rows,
        kept_size=size_text(sum(c.size_bytes or 0 for c in kept)),
        lost=tuple(
            Row(
                name=c.name, reason=c.lost, glyph=mark(c.runtime).glyph, mark=mark(c.runtime).number
            )
            for c in result.candidates
            if c.lost and profile.name in c.planned
        ),
        slow=tuple(_row(c, profile, machine) for c in slow),
        refused=tuple(_row(c, profile, machine) for c in dropped if c not in beaten),
        beaten=tuple(_row(c, profile, machine) for c in beaten),
        impossible=_impossible(result, profile),
        pictures=_pictures(
            judged, profile, machine, gates, first=rows[0].name if rows else "", foreign=foreign
        ),
        runtimes=tuple(
            (mark(runtime).glyph, runtime, mark(runtime).number)
            for runtime in dict.fromkeys(c.runtime for c in judged)
        ),
    )


def is_foreign(result: BuildResult, profile: DeviceProfile) -> bool:
    """Tell whether the machine that measured latencies is no such device."""
    if result.here is not None:
        return profile.name not in result.here
    return architecture_of(machine_of(result)) != profile.architecture


def _row(candidate: CandidateReport, profile: DeviceProfile, machine: str) -> Row:
    accuracy, performance = candidate.accuracy, candidate.performance
    here = performance if performance is not None and performance.machine == machine else None
    return Row(
        name=candidate.name,
        reason=candidate.profiles[profile.name].reason,
        doubt=candidate.profiles[profile.name].doubt,
        metric=share(accuracy.value if accuracy else None),
        retention=share(accuracy.retention if accuracy else None),
        latency=ms(here.latency_p50_ms if here else None),
        memory=size_text(here.peak_memory_bytes if here else None),
        size=size_text(candidate.size_bytes),
        glyph=mark(candidate.runtime).glyph,
        mark=mark(candidate.runtime).number,
    )


def _impossible(
    result: BuildResult, profile: DeviceProfile
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for item in result.impossible:
        if item.profile == profile.name:
            found.setdefault(item.reason, []).append(item.candidate)
    return tuple((reason, tuple(names)) for reason, names in found.items())


def _pictures(
    judged: Sequence[CandidateReport],
    profile: DeviceProfile,
    machine: str,
    gates: Gates | None,
    *,
    first: str,
    foreign: bool,
) -> tuple[Picture, ...]:
    field = any(profile.name in (candidate.field or {}) for candidate in judged)
    told = f"measured on devices of {profile.name}" if field else f"measured on {machine}"
    by_size = ("size", "quality by size (the same on every machine)", _size_axis(profile, gates))
    views = [
        ("latency", f"quality by median latency, {told}", _latency_axis(gates)),
        by_size,
        ("memory", f"quality by peak memory, {told}", _memory_axis(profile, gates)),
    ]
    if foreign:
        views = [by_size]
    y = _quality_axis(judged, gates)
    pictures: list[Picture] = []
    for kind, title, x in views:
        found = ((c, _place(c, kind, machine)) for c in judged)
        points = [_point(c, place, profile, first=first) for c, place in found if place]
        if points:
            plot = draw(points, x, y, title=f"{profile.name}: {title}")
            svg = Markup(plot.svg)  # noqa: S704 - every text in it was escaped when it was drawn
            pictures.append(Picture(title=title, svg=svg, remarks=plot.remarks))
    return tuple(pictures)


def _place(candidate: CandidateReport, kind: str, machine: str) -> tuple[float, float] | None:
    """Return a candidate's place in a plot; None if it is not known, or not comparable."""
    accuracy, performance = candidate.accuracy, candidate.performance
    cost: float = candidate.size_bytes or 0
    if kind == "size":
        cost /= KIB
    elif performance is None or performance.machine != machine:
        return None
    else:
        latency_ms, peak_bytes = performance.latency_p50_ms, performance.peak_memory_bytes
        cost = latency_ms if kind == "latency" else peak_bytes / MIB
    if accuracy is None or cost <= 0:
        return None
    value = accuracy.worst_error if accuracy.metric in BY_WORST_ERROR else accuracy.value
    return (cost, value) if math.isfinite(value) and math.isfinite(cost) else None


def _point(
    candidate: CandidateReport, place: tuple[float, float], profile: DeviceProfile, *, first: str
) -> Point:
    verdict = candidate.profiles[profile.name]
    return Point(
        name=candidate.name,
        runtime=candidate.runtime,
        x=place[0],
        y=place[1],
        kept=verdict.kept,
        refused=verdict.excess is not None,
        first=candidate.name == first,
        text=f"{place[0]:.4g}, {place[1]:.4g}; {verdict.reason}",
    )


def _quality_axis(judged: Sequence[CandidateReport], gates: Gates | None) -> Axis:
    accuracy = next((c.accuracy for c in judged if c.accuracy), None)
    metric = accuracy.metric if accuracy else "quality"
    if accuracy is None or metric in BY_WORST_ERROR:
        return Axis(label=f"worst error ({metric})", smaller_is_better=True)
    smaller_is_better = metric in METRICS and not METRICS[metric].larger_is_better
    limits = () if gates is None else _retention(accuracy, gates, smaller=smaller_is_better)
    return Axis(label=metric, smaller_is_better=smaller_is_better, limits=limits)


def _retention(accuracy: Accuracy, gates: Gates, *, smaller: bool) -> tuple[Limit, ...]:
    """Return the gate of retention as a value of the metric."""
    kept, reference = gates.min_retention, accuracy.reference
    row = METRICS.get(accuracy.metric)
    if row is not None and row.kept == "complement":
        at = 1.0 - kept * (1.0 - reference)
    elif not smaller:
        at = reference - (1.0 - kept) * abs(reference)
    elif kept and reference:
        at = reference / kept
    else:
        return ()  # without labels it depends on the answers' magnitude, which is not known here
    return (Limit(at=at, text=f"retention {kept:g}"),)


def _latency_axis(gates: Gates | None) -> Axis:
    gate = gates.max_latency_ms if gates else None
    limits = () if gate is None else (Limit(at=gate, text=f"latency gate {gate:g} ms"),)
    return Axis(label="median latency, ms (log scale)", limits=limits)


def _size_axis(profile: DeviceProfile, gates: Gates | None) -> Axis:
    room, gate = profile.storage_bytes, gates.max_size_bytes if gates else None
    limits = [Limit(at=room / KIB, text=f"the device's storage ({size_text(room)})")]
    if gate is not None:
        limits.append(Limit(at=gate / KIB, text=f"size gate {size_text(gate)}"))
    return Axis(label="size, KiB (log scale)", limits=tuple(limits))


def _memory_axis(profile: DeviceProfile, gates: Gates | None) -> Axis:
    room, gate = profile.memory_bytes, gates.max_memory_bytes if gates else None
    limits = [Limit(at=room / MIB, text=f"the device's memory ({size_text(room)})")]
    if gate is not None:
        limits.append(Limit(at=gate / MIB, text=f"memory gate {size_text(gate)}"))
    return Axis(label="peak memory of the process, MiB (log scale)", limits=tuple(limits))


def _preference(candidate: CandidateReport) -> tuple[float, float, float, str]:
    accuracy, performance = candidate.accuracy, candidate.performance
    return (
        -min(accuracy.retention, 1.0) if accuracy else math.inf,
        accuracy.worst_error if accuracy else math.inf,
        performance.latency_p50_ms if performance else math.inf,
        candidate.name,
    )
