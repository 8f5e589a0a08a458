"""What the clocks of a device showed when it made a batch of telemetry. Pure.

Only an exchange tells how far two clocks are apart: a batch may wait at the broker for hours, and
look as if it came from a device that is behind. So the controller's acknowledgement says what time
it is, and how the device's steady clock stood when that batch was sent; the device then knows how
long the exchange took.
"""

from __future__ import annotations

import msgspec


class BatchClock(msgspec.Struct, frozen=True, kw_only=True):
    """The clocks of a device, when it made a batch and when it sent it."""

    made_at_s: float
    """Its wall clock when the batch was made, seconds since 1970."""

    made_steady_s: float
    """Its steady clock at that moment: seconds since it was switched on, those asleep included."""

    sent_steady_s: float | msgspec.UnsetType = msgspec.UNSET
    """Its steady clock when the batch was sent; unset in the spool."""

    shown_s: float | msgspec.UnsetType = msgspec.UNSET
    """What the wall clock by which the batch was made would show when the batch was sent. Unset in
    the spool, and for a batch of an earlier start of the agent."""

    ahead_s: float | msgspec.UnsetType | None = msgspec.UNSET
    """How far that wall clock is ahead of the controller's. Unset while the device does not know
    it; None if it never will."""
