"""What all messages between a device and the controller have in common.

Rules:
- Each message has a schema version. A reader accepts unknown fields and refuses an unknown version.
- Control messages are JSON; telemetry is MessagePack.
- Each subject has its messages in a module of its own: `wire.enrolling`, `wire.presence`,
  `wire.desired`, `wire.installs`, `wire.telemetry`, `wire.delivery` (blobs), `wire.measuring`,
  `wire.reporting`, `wire.samples`, `wire.metadata`, `wire.certificates`.
- A receiver trusts a device's message only as far as the broker guarantees its topic: the `device`
  field must equal the topic's, and the receiver checks that.
- Desired states and the answers to enrolments travel signed by the `director` role
  (`wire.trust.envelope`).
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec

from wire.codec import from_json, from_msgpack
from wire.errors import WireFormatError
from wire.packed import is_packed, unpacked

SCHEMA_VERSION = 1
MAX_MESSAGE_BYTES = 256 * 1024
"""Brokers are commonly limited to packets of this size."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that all messages have."""

    may_be_packed: ClassVar[bool] = False
    """Whether it may come compressed (`wire.packed`)."""

    schema_version: int = SCHEMA_VERSION


M = TypeVar("M", bound=Message)


def decode_message(data: bytes, kind: type[M], *, packed: bool = False) -> M:
    """Decode a message and check its schema version.

    Args:
        data: The payload as received.
        kind: The message that this topic carries.
        packed: MessagePack rather than JSON.

    Returns:
        The message.

    Raises:
        WireFormatError: Too large, malformed, or of another schema version.
    """
    if packed and kind.may_be_packed and is_packed(data):
        data = unpacked(data, MAX_MESSAGE_BYTES)
    decode = from_msgpack if packed else from_json
    message = decode(data, kind, limit_bytes=MAX_MESSAGE_BYTES)
    if message.schema_version != SCHEMA_VERSION:
        raise WireFormatError(
            f"{kind.__name__}: schema version {message.schema_version} is not {SCHEMA_VERSION}"
        )
    return message
