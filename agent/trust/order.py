"""The desired state that a device follows: who signed it, and what it says of its time."""

from __future__ import annotations

from typing import Final

from wire.desired import DESIRED_PAYLOAD_TYPE
from wire.errors import FleetError
from wire.trust.root import Role

NOBODY: Final = Role(keys=(), threshold=1)


class Order:
    """A desired state that was accepted; without arguments none was.

    Args:
        envelope: It, signed.
        director: Who could sign desired states then.
        expires_at_s: When it expires, seconds since 1970; None if it does not say.
        timestamp: The version of the timestamp that its controller had signed by then.
    """

    def __init__(
        self,
        envelope: bytes = b"",
        director: Role = NOBODY,
        expires_at_s: float | None = None,
        timestamp: int | None = None,
    ) -> None:
        self.expires_at_s = expires_at_s
        self.timestamp = timestamp
        self._envelope = envelope
        self._right_by = director

    def not_by(self, director: Role) -> str | None:
        """Return why it counts no more if these keys sign desired states now, or None.

        Args:
            director: Who may sign them now. A check that went well is remembered.
        """
        if not self._envelope or director == self._right_by:
            return None
        try:
            director.unseal(self._envelope, DESIRED_PAYLOAD_TYPE)
        except FleetError:
            return "who ordered it may order nothing any more: the device waits for a new order"
        self._right_by = director
        return None
