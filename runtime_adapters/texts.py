"""Texts in tensors: how they lie in files, and how they cross the network.

Rules:
- In a file, texts are an array of NumPy's type `<U`: four bytes for each character, and every text
  as long as the longest. Such a file is read without unpickling.
- A session takes texts as an array of objects, which are Python's `str`.
- Raw bytes of a `BYTES` tensor are UTF-8; the length goes before each text, in four bytes, little
  endian.
- What is no Unicode text is refused: UTF-8 that is broken, halves of surrogate pairs.

Source:
    Open Inference Protocol (KServe v2), REST: `BYTES`; Triton's extension for binary tensor data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from runtime_adapters.errors import InputError
from runtime_adapters.protocol import Tensor

MAX_TEXT_BYTES: Final = 1024**2
"""Longest text of a request, in UTF-8; far more than what classifiers of texts were trained on."""

LENGTH_BYTES: Final = 4
_TOO_LONG: Final = f"input {{!r}}: text {{}} is over {MAX_TEXT_BYTES} bytes"
_CHARACTER_BYTES: Final = 4
_FIRST_SURROGATE: Final = 0xD800
_LAST_SURROGATE: Final = 0xDFFF
_LAST_CHARACTER: Final = 0x10FFFF


def are_texts(dtype: np.dtype[Any]) -> bool:
    """Tell whether an array's type is that of texts in files."""
    return dtype.kind == "U" and dtype.itemsize > 0


def as_objects(tensor: Tensor) -> Tensor:
    """Return texts as a session takes them; an array of another type as it is."""
    return tensor.astype(np.object_) if tensor.dtype.kind == "U" else tensor


def narrowed(tensor: Tensor) -> Tensor:
    """Return texts in an array that is as wide as the longest, so that equal texts are equal bytes.

    Args:
        tensor: An array of type `<U`; an array of another type is returned as it is.

    Returns:
        The array.
    """
    if tensor.dtype.kind != "U":
        return tensor
    return tensor.astype(f"<U{longest(tensor)}")


def longest(tensor: Tensor) -> int:
    """Return the characters of the longest text, at least 1."""
    return max(1, int(np.char.str_len(tensor).max(initial=0)))


def are_unicode(tensor: Tensor) -> bool:
    """Tell whether each character of an array of type `<U` is one of Unicode, without surrogates.

    Args:
        tensor: The array, in this machine's byte order; its bytes may come from anywhere.
    """
    codes = np.ascontiguousarray(tensor).reshape(-1).view(np.uint32)
    halves = (codes >= _FIRST_SURROGATE) & (codes <= _LAST_SURROGATE)
    return not bool((halves | (codes > _LAST_CHARACTER)).any())


def texts_of(name: str, values: Sequence[str], shape: tuple[int, ...]) -> Tensor:
    """Return the texts of a request as an array of objects.

    Args:
        name: Of the input, for messages.
        values: As many texts as the shape says, in row-major order.
        shape: The shape.

    Returns:
        The array.

    Raises:
        InputError: A text is too long.
    """
    limit = MAX_TEXT_BYTES // _CHARACTER_BYTES  # fewer characters than this need no second look
    for number, value in enumerate(values):
        if len(value) > limit and len(value.encode(errors="replace")) > MAX_TEXT_BYTES:
            raise InputError(_TOO_LONG.format(name, number), remedy="send shorter texts")
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array.reshape(shape)


def flattened(values: Sequence[Any], shape: tuple[int, ...]) -> list[str]:
    """Return texts that are nested as a shape says, or flat, in row-major order.

    Args:
        values: Lists in lists of texts, or texts; all are equally deep.
        shape: The shape.

    Returns:
        The texts.

    Raises:
        ValueError: Too few, too many or ragged.
    """
    level, nested = list(values), bool(values) and isinstance(values[0], list)
    for size in shape[1:] if nested else ():
        if any(len(part) != size for part in level):
            raise ValueError("the lists are ragged")
        level = [item for part in level for item in part]
    if len(level) != math.prod(shape):
        raise ValueError(f"{len(level)} texts have no shape {list(shape)}")
    return level


def texts_from_raw(name: str, raw: memoryview, count: int) -> list[str]:
    """Read the raw bytes of a BYTES tensor.

    Args:
        name: Of the input, for messages.
        raw: The bytes: for each text its length, then its UTF-8.
        count: How many texts there must be.

    Returns:
        The texts.

    Raises:
        InputError: More or fewer texts or bytes, a text that is too long or not UTF-8.
    """
    if count * LENGTH_BYTES > len(raw):
        raise InputError(f"input {name!r} needs {count} texts, but has {len(raw)} raw bytes")
    found: list[str] = []
    place = 0
    for number in range(count):
        start = place + LENGTH_BYTES
        size = int.from_bytes(raw[place:start], "little")
        place = start + size
        if start > len(raw) or place > len(raw):
            raise InputError(f"input {name!r}: text {number} is longer than the raw bytes")
        if size > MAX_TEXT_BYTES:
            raise InputError(_TOO_LONG.format(name, number), remedy="send shorter texts")
        try:
            found.append(str(raw[start:place], "utf-8"))
        except UnicodeDecodeError as exc:
            raise InputError(f"input {name!r}: text {number} is not UTF-8") from exc
    if place != len(raw):
        raise InputError(f"input {name!r}: {len(raw) - place} raw bytes follow its {count} texts")
    return found


def raw_from_texts(values: Sequence[str | bytes]) -> bytes:
    """Return texts as the raw bytes of a BYTES tensor."""
    encoded = (value.encode() if isinstance(value, str) else value for value in values)
    return b"".join(len(text).to_bytes(LENGTH_BYTES, "little") + text for text in encoded)
