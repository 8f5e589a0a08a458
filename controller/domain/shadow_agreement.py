"""Whether a shadow answers as the release that serves, as far as devices have told.

Rules:
- A device counts once, however many requests it compared: those of one device resemble each other.
- Few requests of a device, or few devices, tell nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller.domain.gates.states import LEAST_DEVICES

LEAST_REQUESTS = 20
"""Of a device, so that it counts."""


def why_not(
    requests: Mapping[str, float], agreements: Mapping[str, float], least_percent: float
) -> str:
    """Return why a shadow does not agree as often as it should; empty if it does.

    Args:
        requests: Device to the requests that its shadow got.
        agreements: Device to those of them that both answered alike.
        least_percent: How often they should, at the mean over devices.
    """
    shares = [
        agreements.get(device, 0.0) / count
        for device, count in requests.items()
        if count >= LEAST_REQUESTS
    ]
    if len(shares) < LEAST_DEVICES:
        return (
            f"{len(shares)} devices have compared {LEAST_REQUESTS} requests or more with it, and "
            f"it takes {LEAST_DEVICES}"
        )
    percent = 100.0 * sum(shares) / len(shares)
    if percent >= least_percent:
        return ""
    return f"it agrees in {percent:.4g} % of the requests, at the mean over {len(shares)} devices"
