"""Messages of devices, each believed only of the device that sent it."""

from __future__ import annotations

from wire.errors import WireFormatError
from wire.messages import M, decode_message


def own_message(payload: bytes, kind: type[M], device: str, *, packed: bool = False) -> M:
    """Decode a message and check that it names the device that sent it.

    Args:
        payload: As it came.
        kind: What the topic carries.
        device: Who sent it, as the topic says.
        packed: MessagePack rather than JSON.

    Returns:
        The message.

    Raises:
        WireFormatError: The message is malformed or names another device.
    """
    message = decode_message(payload, kind, packed=packed)
    if getattr(message, "device", None) != device:
        raise WireFormatError(f"the device sent a {kind.__name__} for another device")
    return message
