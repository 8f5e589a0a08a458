"""Records how the variants that serve did in their golden tests on this device.

A device tests each variant once, when its package is installed. What it found is recorded again and
again, as a temperature is: so it can be asked of any time, of releases that came long ago too.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.app.models import Model
from telemetry.device.recorder import Recorder


def record_golden(models: Iterable[Model], recorder: Recorder) -> None:
    """Record the agreement of each variant that serves; nothing of one that was not tested.

    Args:
        models: The models of this device.
        recorder: Takes the figures.
    """
    for model in models:
        active = model.model_server.active
        if active is None:
            continue
        tested = model.store.state.agreements.get(active.digest, {})
        agreement = tested.get(active.variant.name)
        if agreement is not None:
            named = {"release": active.release, "variant": active.variant.name}
            recorder.gauge("golden_agreement_ratio", agreement, named)
