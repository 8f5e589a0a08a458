"""Tells the controller, the log and the events which desired states this device refuses.

Rules:
- The controller is told at once, but at most five times in five seconds: a broker that sends
  nonsense gets no flood in return.
- A refusal that repeats is one event an hour, and always shown by `fleet-agent status`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.link.outage import Repeats
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.errors import FleetError, SignatureError, shortened
from wire.installs import Refusal

WINDOW_S: Final = 5.0
MAX_TOLD: Final = 5
"""Messages within a window."""

MAX_DETAIL: Final = 500


class Refusals:
    """What this device refused.

    Args:
        device: This device.
        tell: Sends a refusal to the controller.
        recorder: Takes the events; its log does too.
        clock: For the time between two refusals.
    """

    def __init__(
        self, device: str, tell: Callable[[Refusal], None], recorder: RecorderPort, clock: Clock
    ) -> None:
        self._device = device
        self._tell = tell
        self._recorder = recorder
        self._clock = clock
        self._repeats = Repeats(clock)
        self._told_s: list[float] = []
        self.last = ""
        """Why the newest desired state was refused; empty if it was accepted."""

    def accepted(self) -> None:
        """Note that a desired state was accepted."""
        self.last = ""

    def refused(self, envelope: bytes, why: FleetError) -> None:
        """Note that a desired state was refused.

        Args:
            envelope: What was refused, as received.
            why: The fault in it.
        """
        self.last = shortened(_text(why), MAX_DETAIL)
        if self._repeats.is_new(self.last):
            what = {"code": why.code, "what": "desired state"}
            self._recorder.event("refused", self.last, what)
        now_s = self._clock.monotonic_s()
        self._told_s = [at_s for at_s in self._told_s if now_s - at_s < WINDOW_S]
        if len(self._told_s) >= MAX_TOLD:
            return
        self._told_s.append(now_s)
        self._tell(
            Refusal(
                device=self._device,
                sha256=sha256_hex(envelope),
                error_code=why.code,
                detail=self.last,
                at_s=self._clock.now_s(),
            )
        )


def _text(why: FleetError) -> str:
    if isinstance(why, SignatureError):
        return f"no director that the device trusts signed the desired state: {why.message}"
    return why.message
