"""The messages by which devices measure packages, and the figures that come home. Pure.

Rules:
- They follow the rules of `wire.messages`; the request travels signed by the `director` role
  (`wire.trust.envelope`).
- A request counts once, and only for the start of the agent that it names: nobody can let a device
  measure by a recording.
- A device that does not know these messages ignores them.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from wire.codec import sha256_hex, to_json
from wire.errors import WireFormatError
from wire.installs import ReleaseRef
from wire.messages import Message
from wire.package.performance import FieldFigures, Performance
from wire.package.variant import VariantInfo
from wire.profile import NAME_PATTERN

MEASURE_PAYLOAD_TYPE: Final = "application/vnd.edgefleet.measure+json"
MAX_LIMIT_S: Final = 86_400.0
MAX_VARIANTS: Final = 64
"""Variants of one answer: with the reason of each it fits into a message."""

MAX_REASON_CHARS: Final = 500
ENOUGH_DEVICES: Final = 3
"""From so many devices on, one of them that lies decides nothing."""

MAX_COUNT: Final = 2**53 - 1
"""JSON readers lose digits of larger integers."""

MAX_MS: Final = 1e9
MAX_JOULES: Final = 1e9
MAX_CELSIUS: Final = 1000.0

MeasuredState = Literal["measured", "refused", "interrupted"]


class Measure(Message, frozen=True, kw_only=True):
    """A device is asked to measure a package beside what it serves. Signed."""

    device: str
    id: str
    """Of the request; devices that are asked together have the same."""

    boot_id: str
    """The start of the agent that is asked, as in its hello."""

    issued_at_s: float
    """Grows from one request for a device to the next."""

    limit_s: float
    """After this time from its arrival the answer is not waited for."""

    release: ReleaseRef
    has_sources: bool = False
    """As in `DesiredState`."""


class MeasuredVariant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one variant needed, or why that is not known."""

    name: str
    performance: Performance | None = None
    reason: str = ""
    """Why it could not be measured; empty where it was."""


class Measured(Message, frozen=True, kw_only=True):
    """A device's answer to a request to measure."""

    device: str
    id: str
    state: MeasuredState
    """`refused`: nothing was measured, or not all, for the reason. `interrupted`: the agent was
    started again meanwhile."""

    reason: str = ""
    variants: tuple[MeasuredVariant, ...] = ()
    temperature_before_c: float | None = None
    temperature_after_c: float | None = None
    """The hottest zone of the processor; None where nothing tells."""

    at_s: float = 0.0
    """The device's wall time."""


class ProfileFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one variant needed on devices of one profile."""

    profile: str
    release: str
    """Name and version of the package that was measured."""

    variant: str
    files_sha256: str
    """As `files_digest` gives it: the figures hold for these files alone."""

    figures: FieldFigures


class FieldFile(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a fleet as a file, for a build."""

    schema_version: int = 1
    field: tuple[ProfileFigures, ...]


def files_digest(info: VariantInfo) -> str:
    """Return the digest of the files of a variant; empty for a package that does not tell them."""
    if isinstance(info.files_sha256, msgspec.UnsetType):
        return ""
    return sha256_hex(to_json(sorted(info.files_sha256.items())))


def with_short_reasons(measured: Measured) -> Measured:
    """Return an answer whose reasons are cut to `MAX_REASON_CHARS`."""
    cut = tuple(
        msgspec.structs.replace(variant, reason=variant.reason[:MAX_REASON_CHARS])
        for variant in measured.variants
    )
    return msgspec.structs.replace(
        measured, reason=measured.reason[:MAX_REASON_CHARS], variants=cut
    )


def check_measured(measured: Measured) -> None:
    """Refuse an answer with impossible values.

    Args:
        measured: As a device sent it.

    Raises:
        WireFormatError: Too many variants, one twice, or a figure that nothing can have.
    """
    names = {variant.name for variant in measured.variants}
    if not all(NAME_PATTERN.fullmatch(name) for name in names):
        raise WireFormatError("an answer names a variant that no package can have")
    if len(measured.variants) > MAX_VARIANTS or len(names) != len(measured.variants):
        raise WireFormatError(f"an answer names at most {MAX_VARIANTS} variants, each once")
    for variant in measured.variants:
        if (variant.performance is None) == (not variant.reason):
            raise WireFormatError("a variant has either figures or a reason")
        if variant.performance is not None and not is_possible(variant.performance):
            raise WireFormatError("a variant has figures that nothing can have")
    for temperature_c in (measured.temperature_before_c, measured.temperature_after_c):
        if temperature_c is not None and abs(temperature_c) > MAX_CELSIUS:
            raise WireFormatError(f"a temperature of {temperature_c} °C is not possible")


def is_possible(figures: Performance) -> bool:
    """Tell whether anything can have such figures: a device or a file may say what it likes."""
    times_ms = (
        figures.latency_p50_ms,
        figures.latency_p95_ms,
        figures.latency_iqr_ms or 0.0,
        figures.load_ms,
        figures.first_inference_ms,
    )
    ratio, cpus = figures.relative or None, figures.background_cpus or 0.0
    bounds = (0.0, 0.0, 0.0) if ratio is None else (ratio.low, ratio.ratio, ratio.high)
    return (
        all(0.0 <= value <= MAX_MS for value in (*times_ms, *bounds, cpus))
        and figures.latency_p50_ms > 0.0
        and list(bounds) == sorted(bounds)
        and (ratio is None or (ratio.low > 0.0 and 0 < ratio.pairs <= MAX_COUNT))
        and all(
            0 < count <= MAX_COUNT
            for count in (figures.peak_memory_bytes, figures.runs, figures.threads)
        )
        and _is_plain(figures.machine)
        and 0.0 <= (figures.energy_j or 0.0) <= MAX_JOULES
        and (ratio is None or _is_plain(ratio.reference))
    )


def _is_plain(text: str) -> bool:
    """Tell whether a text is one bounded line, which a build may show."""
    return len(text) <= MAX_REASON_CHARS and text.isprintable()
