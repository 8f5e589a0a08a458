"""Where the tensors of a safetensors file are. Pure.

Source:
    github.com/huggingface/safetensors, README.md, "Format".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from wire.codec import from_json
from wire.delta.places import Place
from wire.errors import WireFormatError

if TYPE_CHECKING:
    from wire.delta.layout import Element

MAX_HEADER_BYTES: Final = 4 * 1024**2
"""Tens of thousands of tensors. Decoded, a header takes almost twenty times as much memory."""
_ELEMENTS: Final[dict[str, Element]] = {
    "F64": "f8", "F32": "f4", "F16": "f2", "BF16": "f2", "F8_E4M3": "f1", "F8_E5M2": "f1",
    "I64": "i8", "U64": "i8", "I32": "i4", "U32": "i4", "I16": "i2", "U16": "i2", "I8": "i1",
    "U8": "i1", "BOOL": "i1",
}  # fmt: skip
_SIZE_BYTES: Final = 8


class _Tensor(msgspec.Struct, frozen=True):
    """One entry of the header; its bytes are counted from the end of the header."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    data_offsets: Annotated[tuple[int, ...], msgspec.Meta(max_length=2)] = ()


def places(file: memoryview) -> list[Place]:
    """Return the tensors of a file; none when it is damaged.

    Args:
        file: Its content.

    Returns:
        Their places.
    """
    size = int.from_bytes(file[:_SIZE_BYTES], "little")
    if not 0 < size <= min(MAX_HEADER_BYTES, len(file) - _SIZE_BYTES):
        return []
    start = _SIZE_BYTES + size
    text = bytes(file[_SIZE_BYTES:start])
    try:
        tensors = from_json(text, dict[str, _Tensor], limit_bytes=MAX_HEADER_BYTES)
    except WireFormatError:
        return []
    found: list[Place] = []
    for name, tensor in tensors.items():
        element = _ELEMENTS.get(tensor.dtype)
        if element is not None and len(tensor.data_offsets) == 2:  # noqa: PLR2004 - begin and end
            begin, end = tensor.data_offsets
            found.append(Place(name, element, tensor.shape, start + begin, end - begin))
    return found
