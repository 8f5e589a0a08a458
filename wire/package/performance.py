"""What a variant needed: time, memory, energy; on the build machine or on devices of the fleet."""

from __future__ import annotations

from typing import Final

import msgspec

LATENCY_TOLERANCE: Final = 0.05
"""Smaller differences of a latency are noise, or too small to keep a variant for."""


class Relative(msgspec.Struct, frozen=True, kw_only=True):
    """How slow a variant is beside the unchanged model, both measured in turn in one process."""

    reference: str
    """The runtime that served the unchanged model."""

    ratio: float
    """Median, over the pairs, of the variant's latency divided by the unchanged model's."""

    low: float
    high: float
    """The range in which the ratio lies with a probability of at least 0.95."""

    pairs: int


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant needed on the machine that built the package, for one sample at a time."""

    latency_p50_ms: float
    latency_p95_ms: float
    load_ms: float
    first_inference_ms: float
    peak_memory_bytes: int
    """`VmHWM` of the fresh process that measured it."""

    runs: int
    latency_iqr_ms: float | None = None
    """Interquartile range: the width of the range of the middle half of the latencies."""

    threads: int
    machine: str
    """`uname -m` and the processor's name: figures hold for this machine only."""

    relative: Relative | msgspec.UnsetType = msgspec.UNSET
    """Unset where there were too few pairs."""

    background_cpus: float | msgspec.UnsetType = msgspec.UNSET
    """How many processors other processes kept busy meanwhile, on average."""

    energy_j: float | msgspec.UnsetType = msgspec.UNSET
    """Joules that one inference added to what the processors took without it; unset where no
    counter told."""


class FieldFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant needed on devices of the fleet, which went on with their work meanwhile."""

    performance: Performance
    """Each figure is the middle one of the devices that measured the variant. `background_cpus`
    says how busy they were beside."""

    devices: int
    """How many devices of the profile measured it."""

    at_s: float
    """When the controller got the newest of their answers, in seconds since 1970."""
