"""The profile of a variant by layer; this module is light, so that a build needs no NumPy.

A layer is what the runtime runs as one piece: often several layers of the model that it fused.
"""

from __future__ import annotations

import msgspec

MAX_LAYERS = 2000
"""More rows say nothing to a person; the rest is one sum, so that a report stays small."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work of a runtime."""

    name: str
    operator: str
    """As the runtime names it."""

    kernel: str = ""
    """What computes it: a provider, a delegate or a kernel of the runtime; empty where the runtime
    does not tell."""

    precision: str = ""
    """Types of its inputs, and of its output after an arrow where that is another."""

    time_us: float | None = None
    """Of one inference; None where the runtime does not tell."""

    calls: float = 1.0
    """How often one inference runs it."""

    output_bytes: int | None = None
    """None where the runtime does not tell the shapes."""

    fused: tuple[str, ...] = ()
    """The model's layers that it computes; empty where this is not known."""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the values between the layers."""

    peak_bytes: int
    """The greatest sum of values that are alive at one time."""

    at: str
    """The layer that runs then."""

    source: str
    """How the peak is known."""


class LayerProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What each layer of a variant costs on one machine, for one sample at a time."""

    runtime: str
    version: str
    threads: int
    machine: str
    runs: int = 0
    """Profiled inferences that the times are means of."""

    inference_us: float | None = None
    """The mean of these inferences, with the profiler on."""

    layers: tuple[Layer, ...] = ()
    """In the order in which the runtime runs them."""

    left_out: int = 0
    """Layers beyond the bound: the fastest ones."""

    left_out_us: float = 0.0
    removed: tuple[str, ...] = ()
    """The model's layers that cost no time of their own: computed in advance, or removed."""

    memory: MemoryPlan | None = None
    weights_bytes: int | None = None
    arena_bytes: int | None = None
    """The most memory that the runtime's own allocator had in use, where it tells."""

    notes: tuple[str, ...] = ()
    """Where the figures come from, and what they do not cover."""

    untold: str = ""
    """Why there are no times; empty where there are."""
