"""Decodes bytes to typed values, and encodes values to bytes.

Rules:
- Decoding is strict about types and ignores unknown fields, so an older reader accepts a newer
  writer.
- The decoder refuses data larger than the caller's limit.
- Encoding is canonical: equal values give equal bytes, which is what signatures and digests need.
"""

from __future__ import annotations

import hashlib
import tomllib
from typing import Any, TypeVar

import msgspec

from wire.errors import WireFormatError

T = TypeVar("T")

MAX_JSON_BYTES = 4 * 1024 * 1024
"""Largest JSON document that is decoded unless a caller says otherwise: a manifest of some hundred
variants is about 1 MiB."""

_json_encoder = msgspec.json.Encoder(order="deterministic")
_msgpack_encoder = msgspec.msgpack.Encoder(order="deterministic")


def to_json(value: object) -> bytes:
    """Encode a value as canonical JSON: sorted keys, no spaces, UTF-8."""
    return _json_encoder.encode(value)


def to_pretty_json(value: object) -> bytes:
    """Encode a value as canonical JSON, indented for people, ending with a newline."""
    return msgspec.json.format(to_json(value), indent=2) + b"\n"


def to_msgpack(value: object) -> bytes:
    """Encode a value as canonical MessagePack."""
    return _msgpack_encoder.encode(value)


def from_json(data: bytes, kind: type[T], *, limit_bytes: int = MAX_JSON_BYTES) -> T:
    """Decode JSON into a typed value.

    Args:
        data: The bytes as received.
        kind: The type to decode into.
        limit_bytes: Refuse anything longer.

    Returns:
        The value.

    Raises:
        WireFormatError: Too long, not JSON, or not of that type.
    """
    _check_size(data, kind, limit_bytes)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireFormatError(f"not a valid {_name(kind)}: {exc}") from exc


def from_msgpack(data: bytes, kind: type[T], *, limit_bytes: int = MAX_JSON_BYTES) -> T:
    """Decode MessagePack into a typed value.

    Args:
        data: The bytes as received.
        kind: The type to decode into.
        limit_bytes: Refuse anything longer.

    Returns:
        The value.

    Raises:
        WireFormatError: Too long, not MessagePack, or not of that type.
    """
    _check_size(data, kind, limit_bytes)
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise WireFormatError(f"not a valid {_name(kind)}: {exc}") from exc


def from_toml(data: bytes, kind: type[T], *, limit_bytes: int = MAX_JSON_BYTES) -> T:
    """Decode TOML into a typed value.

    Args:
        data: The bytes of the file.
        kind: The type to decode into.
        limit_bytes: Refuse anything longer.

    Returns:
        The value.

    Raises:
        WireFormatError: Too long, not TOML, or not of that type.
    """
    _check_size(data, kind, limit_bytes)
    try:
        values = tomllib.loads(data.decode())
        _check_numbers(values)
        return msgspec.convert(values, type=kind)
    except RecursionError as exc:
        raise WireFormatError(f"not a valid {_name(kind)}: nested too deeply") from exc
    except (ValueError, msgspec.ValidationError) as exc:
        # The data is not TOML, not text, or has a number of thousands of digits.
        raise WireFormatError(f"not a valid {_name(kind)}: {exc}") from exc


def _check_numbers(value: object) -> None:
    """Refuse a number that no program need read, and that may have no decimal text (TOML 1.0).

    Raises:
        ValueError: One has more than 64 bits.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("a number has more than 64 bits")
    for each in value.values() if isinstance(value, dict) else ():
        _check_numbers(each)
    for each in value if isinstance(value, list) else ():
        _check_numbers(each)


def convert(value: Any, kind: type[T]) -> T:  # noqa: ANN401 - any decoded JSON value
    """Convert decoded JSON values (dicts, lists, scalars) into a typed value.

    Args:
        value: The decoded value.
        kind: The type to convert to.

    Returns:
        The value.

    Raises:
        WireFormatError: It is not of that type.
    """
    try:
        return msgspec.convert(value, type=kind)
    # The second: a text with half a character, which JSON can hold and UTF-8 cannot.
    except (msgspec.ValidationError, UnicodeEncodeError) as exc:
        raise WireFormatError(f"not a valid {_name(kind)}: {exc}") from exc


def to_builtins(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Return a value as dicts, lists and scalars, as JSON would hold it."""
    return msgspec.to_builtins(value, order="deterministic")


def sha256_hex(data: bytes | memoryview) -> str:
    """Return the SHA-256 of bytes as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _check_size(data: bytes, kind: type, limit_bytes: int) -> None:
    if len(data) > limit_bytes:
        raise WireFormatError(
            f"a {_name(kind)} of {len(data)} bytes is over the limit of {limit_bytes}"
        )


def _name(kind: type) -> str:
    return getattr(kind, "__name__", str(kind))
