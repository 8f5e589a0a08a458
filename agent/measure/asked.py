"""Checks a request to measure before anything acts on it. Pure: bytes in, a checked value out.

Rules:
- The signature by the `director` role is checked first; nothing is read before it.
- It must be for this device and this start of the agent, and newer than the one before it: so no
  recording counts, whatever the clock of the device shows.
"""

from __future__ import annotations

import re
from typing import Final

from agent.errors import RefusedError
from agent.install.desired import check_release
from wire.measuring import MAX_LIMIT_S, MEASURE_PAYLOAD_TYPE, Measure
from wire.messages import decode_message
from wire.trust.root import Trust

_ID: Final = re.compile(r"[a-z0-9-]{1,63}")


def read_asked(
    envelope: bytes, trust: Trust, *, device: str, boot_id: str, after_s: float
) -> Measure:
    """Verify and read a request to measure.

    Args:
        envelope: The signed form, as received.
        trust: The keys that may sign it.
        device: This device.
        boot_id: This start of the agent.
        after_s: When the request before it was issued; below 0 if there was none.

    Returns:
        The request.

    Raises:
        SignatureError: The director has not signed it.
        WireFormatError: It is malformed.
        RefusedError: It is for another device or start, is a recording, or has impossible values.
    """
    payload = trust.unseal(envelope, role="director", payload_type=MEASURE_PAYLOAD_TYPE)
    asked = decode_message(payload, Measure)
    if asked.device != device:
        raise RefusedError(f"device {device} received a request to measure for {asked.device!r}")
    if asked.boot_id != boot_id:
        raise RefusedError("a request to measure is for another start of the agent")
    if asked.issued_at_s <= after_s:
        raise RefusedError("a request to measure is not newer than the one before it")
    if _ID.fullmatch(asked.id) is None or not 0 < asked.limit_s <= MAX_LIMIT_S:
        raise RefusedError("a request to measure has an impossible name or limit")
    check_release(asked.release)
    return asked
