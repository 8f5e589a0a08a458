"""Why the device is not connected to its controller, for `fleet-agent status` and the events.

Rules:
- A reason is recorded at once when it is new, and again after an hour: what repeats for days must
  not push other events out of the spool. Many reasons that alternate do not either.
- No reason holds a secret.
"""

from __future__ import annotations

import threading
from typing import Final, Literal

from agent.ports import RecorderPort
from wire.broker_address import LOOK_AT_BROKER, LOOK_AT_SETTING
from wire.clock import Clock

REPEAT_S: Final = 3600.0
MAX_REASONS: Final = 16
MAX_CHARS: Final = 400
SILENCE_S: Final = 10.0
"""After so long without a word of the broker, the device says that."""

Part = Literal["connection", "enrolment", "certificate"]
"""What fails: the connection with the device's own account, being enrolled, or the renewal of its
certificate."""


class Repeats:
    """Tells which reasons are new; usable from any thread.

    Args:
        clock: For the time after which a reason is new again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._told_s: dict[str, float] = {}

    def is_new(self, reason: str) -> bool:
        """Tell whether a reason is to be recorded; from then on it is not new for an hour."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            recent = {text: at_s for text, at_s in self._told_s.items() if now_s - at_s < REPEAT_S}
            self._told_s = recent
            if reason in recent or len(recent) >= MAX_REASONS:
                return False
            recent[reason] = now_s
            return True


class Outage:
    """What is in the way of the connection now; usable from any thread.

    Args:
        where: Host and port of the broker.
        recorder: Takes an event for each new reason; its log does too.
        clock: For the time between two events of one reason.
    """

    def __init__(self, where: str, recorder: RecorderPort, clock: Clock) -> None:
        self.silence = (
            f"no MQTT broker answers at {where} within {SILENCE_S:g} s; {LOOK_AT_BROKER}, and "
            f"{LOOK_AT_SETTING}"
        )
        """What to say when nothing was heard for `SILENCE_S`."""

        self._recorder = recorder
        self._repeats = Repeats(clock)
        self._lock = threading.Lock()
        self._reasons: dict[Part, str] = {}

    @property
    def reason(self) -> str:
        """Why there is no connection, on one line; empty if no reason is known."""
        with self._lock:
            return "; ".join(self._reasons.values())

    def met(self, part: Part, reason: str, code: str = "", kind: str = "refused") -> None:
        """Note that something failed, and why.

        Args:
            part: What failed.
            reason: Why, for people.
            code: The code of the error, if there is one.
            kind: The kind of the event.
        """
        reason = "".join(char if char.isprintable() else " " for char in reason[:MAX_CHARS])
        with self._lock:
            self._reasons[part] = reason
        if self._repeats.is_new(reason):
            self._recorder.event(kind, reason, {"code": code} if code else {})

    def over(self, part: Part | None = None) -> None:
        """Note that a part works again; None if the device is connected."""
        with self._lock:
            if part is None:
                self._reasons.clear()
            else:
                self._reasons.pop(part, None)
