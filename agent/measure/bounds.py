"""What a device may measure now, and when it must stop. Pure.

Rules:
- Heat and a low battery end a measurement; they begin and end as for the levers
  (`agent.select.levers`). Other programs and load do not: a measurement waits for the processor
  behind all else.
- The memory that the policy keeps free stays free.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from agent.select.levers import Levers
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.policy import PolicySpec

BASE_BYTES: Final = 96 * 1024**2
"""What a process with a runtime takes beside the model, where a variant does not tell its need."""

STRAINS: Final = frozenset({"battery", "heat"})
UNCHANGED: Final = "fp32"


def why_stop(levers: Levers, health: HealthSnapshot, spec: PolicySpec) -> str:
    """Return why a device should not measure now; empty if it may.

    Args:
        levers: What is in force against heat, a low battery and load.
        health: The newest readings.
        spec: The policy.
    """
    strains = [cause for cause in levers.causes if cause in STRAINS]
    if strains:
        reasons = [text for text in levers.reasons if text.partition(":")[0] in STRAINS]
        return f"the device is strained: {'; '.join(reasons) or ', '.join(strains)}"
    free = health.memory_available_bytes
    if free is not None and free < spec.low_memory_bytes:
        return f"only {free} bytes of memory are free, and {spec.low_memory_bytes} stay so"
    return ""


def why_not(variants: Iterable[Variant], health: HealthSnapshot, spec: PolicySpec) -> str:
    """Return why the memory does not hold some variants in one process; empty if it does.

    Args:
        variants: What is to be loaded.
        health: The newest readings.
        spec: The policy.
    """
    free = health.memory_available_bytes
    needed = sum(map(_need_bytes, variants))
    if free is None or needed <= free - spec.low_memory_bytes:
        return ""
    return (
        f"it needs {needed} bytes of memory, but only {free} are free, of which the policy keeps "
        f"{spec.low_memory_bytes}"
    )


def reference_of(variants: Iterable[Variant]) -> Variant | None:
    """Return the variant that computes what the reference computes; None if there is none.

    It is the one in single precision whose answers were the closest to the reference's.
    """
    exact = [v for v in variants if v.info.precision == UNCHANGED]
    return min(exact, key=_distance, default=None)


def _need_bytes(variant: Variant) -> int:
    declared = variant.info.requirements.memory_bytes
    return declared or BASE_BYTES + 2 * variant.info.size_bytes


def _distance(variant: Variant) -> tuple[float, str]:
    accuracy = variant.info.accuracy
    error = float("inf") if accuracy is None else accuracy.worst_error
    return error, variant.name
