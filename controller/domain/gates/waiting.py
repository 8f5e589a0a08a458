"""How long a gate has to wait until enough devices have measured enough. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from controller.domain.gates.silence import MOST_SILENT
from controller.domain.gates.states import LEAST_DEVICES
from wire.durations import format_duration


def wait_text(
    treated: Sequence[float], control: Sequence[float], needed: float, window_s: float
) -> str:
    """Say how long it takes until enough devices tell, if they go on as fast as until now.

    Args:
        treated: How many values each device with the new release has measured.
        control: The same of those with the old one; none if nothing is compared with them.
        needed: How many a device must have.
        window_s: How long they have measured, above 0.

    Returns:
        The end of a sentence, with its semicolon; empty if enough devices tell already.
    """
    if control and len(control) < LEAST_DEVICES:
        # No time helps: it needs other devices, or a person.
        return f"; {len(control)} of {LEAST_DEVICES} devices with the old release are left"
    usual = sum(count >= needed for count in control) / len(control) if control else 1.0
    wanted = max(LEAST_DEVICES, math.ceil(len(treated) * (usual - MOST_SILENT)))
    waits = [_wait_s(treated, wanted, needed, window_s)]
    if control:
        waits.append(_wait_s(control, LEAST_DEVICES, needed, window_s))
    longest_s = max(waits)
    if longest_s <= 0.0:
        return ""
    if math.isinf(longest_s):
        measure = sum(count > 0 for count in (*treated, *control))
        every = len(treated) + len(control)
        return f"; too few devices measure this at all: {measure} of {every}"
    about = format_duration(math.ceil(longest_s / 60.0) * 60.0)
    return f"; enough devices tell in about {about}, as fast as they measure now"


def _wait_s(counts: Sequence[float], wanted: int, needed: float, window_s: float) -> float:
    """Return how long it takes until so many devices have measured enough; infinite for never."""
    waits = sorted(
        max(needed / count - 1.0, 0.0) * window_s if count > 0.0 else math.inf for count in counts
    )
    return waits[wanted - 1] if wanted <= len(waits) else math.inf
