"""Splits points and events into batches that a broker and a spool accept. Pure.

Rules:
- A batch is at most `MAX_BATCH_BYTES` as MessagePack and never empty.
- An event that is too large, too deep, or holds values that MessagePack, JSON or another system
  cannot hold loses its data, but keeps its reason: what one stage accepts, the next can always
  write and show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from wire.codec import from_msgpack, to_json, to_msgpack
from wire.errors import WireFormatError
from wire.telemetry import Event, Point

MAX_BATCH_BYTES = 128 * 1024
MAX_ITEM_BYTES = 64 * 1024
"""More than any point of a recorder needs: a full histogram is 24 KiB."""

MAX_EVENT_BYTES = 16 * 1024
MAX_DATA_DEPTH = 32
"""Objects and lists inside one another. The inputs of a decision need five; the API's writer of
JSON fails at 255."""

MAX_INTEGER = 2**63 - 1
"""The greatest whole number in the data of an event: what gets events from the controller has 64
bits with a sign, such as OTLP. MessagePack has greater ones."""

MAX_KIND = 64
MAX_REASON = 1000
_ENVELOPE_BYTES = 1024
"""More than the rest of a batch needs: identifiers, numbers, lengths."""

_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)

Item = Point | Event


def cut(items: Iterable[Item]) -> tuple[list[list[Item]], int]:
    """Split items into as few groups as their order allows.

    Args:
        items: In the order in which they are sent.

    Returns:
        Groups that each fit into a batch, and how many items fit into none.
    """
    groups: list[list[Item]] = []
    room = 0
    refused = 0
    for item in items:
        size = _size_bytes(item)
        if size is None or size > MAX_ITEM_BYTES:
            refused += 1
            continue
        if size > room:
            groups.append([])
            room = MAX_BATCH_BYTES - _ENVELOPE_BYTES
        groups[-1].append(item)
        room -= size
    return groups, refused


def shorten(event: Event) -> Event:
    """Return an event that can be sent: one line of reason, data that any reader decodes.

    Args:
        event: As recorded on a device, or as decoded from its message.

    Returns:
        The event; data that cannot be kept is replaced by `omitted`, which says why.
    """
    short = msgspec.structs.replace(
        event,
        at_s=event.at_s if math.isfinite(event.at_s) else 0.0,
        kind=_line(event.kind)[:MAX_KIND],
        reason=_line(event.reason)[:MAX_REASON],
    )
    try:
        body = to_msgpack(short)
        if len(body) > MAX_EVENT_BYTES:
            return _without_data(short, f"{len(body)} bytes")
        data = from_msgpack(body, Event).data
        if not _fits_depth(data, MAX_DATA_DEPTH):
            return _without_data(short, f"nested deeper than {MAX_DATA_DEPTH}")
        if not _fits_integers(data):
            return _without_data(short, f"a whole number over {MAX_INTEGER}")
        to_json(data)
    except (*_UNENCODABLE, WireFormatError) as exc:
        return _without_data(short, _line(str(exc))[:MAX_REASON])
    return short


def _without_data(event: Event, why: str) -> Event:
    return msgspec.structs.replace(event, data={"omitted": why})


def _fits_depth(value: object, depth: int) -> bool:
    """Tell whether decoded data nests at most so deep; it calls itself at most that often."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(inner, Iterable) or isinstance(inner, str | bytes):
        return True
    return depth > 0 and all(_fits_depth(item, depth - 1) for item in inner)


def _fits_integers(value: object) -> bool:
    """Tell whether no whole number is too large; the data nests at most `MAX_DATA_DEPTH` deep."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(inner, Iterable) or isinstance(inner, str | bytes):
        return not isinstance(value, int) or value <= MAX_INTEGER
    return all(map(_fits_integers, inner))


def _size_bytes(item: Item) -> int | None:
    try:
        return len(to_msgpack(item))
    except _UNENCODABLE:
        return None


def _line(text: str) -> str:
    """Return a text as one line of valid Unicode without control characters."""
    whole = text.encode(errors="replace").decode()
    return " ".join("".join(c if c.isprintable() else " " for c in whole).split())
