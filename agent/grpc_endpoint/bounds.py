"""What a request for inference may hold, checked on its bytes before it is parsed.

Pure. A parsed message can take many times the memory of its bytes: an empty tensor has two bytes
on the wire and a hundred in memory. Raw tensors stay as long as they are.

Rules:
- All but `raw_input_contents` together is bounded as JSON is over HTTP, and so is the number of
  fields.
- What is no protocol buffer is refused here or by the parser.

Source:
    Protocol Buffers, Encoding.
"""

from __future__ import annotations

from typing import Final

from agent.grpc_endpoint.statuses import RefusedCallError

MAX_PARSED_BYTES: Final = 16 * 1024 * 1024
MAX_FIELDS: Final = 4096
RAW_FIELD: Final = 7
"""Number of `raw_input_contents`."""

NOT_A_MESSAGE: Final = "the message is not a protocol buffer of this call"
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10


def check_bounds(content: bytes) -> None:
    """Refuse a request that would take too much memory when it is parsed.

    Args:
        content: The serialized `ModelInferRequest`.

    Raises:
        RefusedCallError: It is too large, or not a protocol buffer.
    """
    at = fields = parsed_bytes = 0
    while at < len(content):
        begin = at
        key, at = _varint(content, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, at = _varint(content, at)
        elif kind == _LENGTH:
            size, at = _varint(content, at)
            at += size
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise RefusedCallError("INVALID_ARGUMENT", NOT_A_MESSAGE)
        if at > len(content):
            raise RefusedCallError("INVALID_ARGUMENT", NOT_A_MESSAGE)
        fields += 1
        if number != RAW_FIELD or kind != _LENGTH:
            parsed_bytes += at - begin
        if fields > MAX_FIELDS:
            raise RefusedCallError(
                "RESOURCE_EXHAUSTED", f"the request has over {MAX_FIELDS} tensors and parameters"
            )
        if parsed_bytes > MAX_PARSED_BYTES:
            raise RefusedCallError(
                "RESOURCE_EXHAUSTED",
                f"the request has over {MAX_PARSED_BYTES} bytes beside raw_input_contents: "
                "send large tensors there",
            )


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length and where it ends.

    Raises:
        RefusedCallError: It is broken off, or too long.
    """
    value = 0
    for place, byte in enumerate(content[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follows
            return value, at + place + 1
    raise RefusedCallError("INVALID_ARGUMENT", NOT_A_MESSAGE)
