"""What a simulated device measures, by the names of `telemetry.metrics`."""

from __future__ import annotations

import math
from typing import Final

from agent.replay.chance import normal, uniform
from agent.simulate.body import Body
from agent.simulate.fate import Fate
from telemetry.device.recorder import Recorder
from wire.installs import ReleaseRef

MOST_REQUESTS: Final = 120
"""Requests of one report that are recorded one by one; more would tell no more."""

JITTER: Final = 0.2
"""Standard deviation of the logarithm of one request's latency."""

FAILED: Final = "agent.worker.failed"


def record_requests(
    recorder: Recorder,
    body: Body,
    fate: Fate,
    served: tuple[ReleaseRef, str],
    span_s: float,
    *,
    is_first: bool,
) -> None:
    """Record the requests of a time.

    Args:
        recorder: Takes the figures.
        body: The device, as it is now.
        fate: Its draws.
        served: The release and the variant that answer.
        span_s: Since when.
        is_first: Whether it is the first release of the model that the device ran.
    """
    release, variant = served
    attributes = {
        "release": f"{release.name}:{release.version}",
        "variant": variant,
    }
    slower = 1.0 if is_first else fate.factor("slower")
    failing = 0.0 if is_first else fate.share("failing")
    at = fate.numbers(f"requests {body.at_s}")
    for number in range(min(MOST_REQUESTS, body.requests(span_s))):
        if uniform(at, 2 * number) < failing:
            recorder.request(attributes, (("inference_requests_total", 1.0),))
            recorder.add("inference_failures_total", 1.0, {**attributes, "code": FAILED})
            continue
        latency_ms = body.latency_ms * slower * math.exp(JITTER * normal(at, 2 * number + 1))
        recorder.request(
            attributes,
            (("inference_requests_total", 1.0),),
            (("inference_latency_ms", latency_ms),),
        )


def record_body(recorder: Recorder, body: Body) -> None:
    """Record the state of the device."""
    recorder.gauge("temperature_c", body.temperature_c, {})
    recorder.gauge("headroom_ratio", body.headroom, {})
    if body.charge is not None:
        recorder.gauge("hw.battery.charge", body.charge, {})
