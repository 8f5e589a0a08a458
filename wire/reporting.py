"""What asks a device to report its telemetry now.

Rules:
- A request is not signed: like an acknowledgement it orders nothing but telemetry, and the broker
  lets nobody but the controller publish it. The device bounds how often it obeys.
"""

from __future__ import annotations

from typing import Final

from wire.messages import Message

MAX_REQUEST_ID: Final = 32


class ReportRequest(Message, frozen=True, kw_only=True):
    """The controller asks a device to report what it has now."""

    id: str
    """Random; the last batch of the report has it again. At most `MAX_REQUEST_ID` characters."""
