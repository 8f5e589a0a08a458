"""Compressed messages: read whole, within their limit, and told from plain ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.codec import to_msgpack
from wire.delta import zstd
from wire.errors import WireFormatError
from wire.messages import MAX_MESSAGE_BYTES, decode_message
from wire.packed import LEAST_BYTES, is_packed, packed, readable, unpacked
from wire.presence import Hello
from wire.telemetry import SumPoint, TelemetryAck, TelemetryBatch

POINTS = tuple(
    SumPoint(metric="x_total", minute=n, attributes={"variant": "int8"}, value=1.0)
    for n in range(100)
)
BATCH = TelemetryBatch(device="d", boot_id="b", sequence=1, points=POINTS)
PLAIN = to_msgpack(BATCH)


def test_a_batch_is_the_same_compressed_and_plain() -> None:
    data = packed(PLAIN)
    assert is_packed(data)
    assert not is_packed(PLAIN)
    assert 3 * len(data) < len(PLAIN)
    assert decode_message(data, TelemetryBatch, packed=True) == BATCH
    assert decode_message(PLAIN, TelemetryBatch, packed=True) == BATCH
    assert readable() == ("zstd",)


def test_a_short_message_stays_plain() -> None:
    assert packed(PLAIN[: LEAST_BYTES - 1]) == PLAIN[: LEAST_BYTES - 1]


@given(st.binary(max_size=64))
def test_what_does_not_shrink_stays_as_it_is(data: bytes) -> None:
    noise = bytes(range(256)) * 4
    assert packed(data) == data
    assert len(packed(noise[:LEAST_BYTES])) <= LEAST_BYTES


def test_a_bomb_makes_no_more_than_its_limit() -> None:
    bomb = zstd.compress_small(bytes(64 * 1024 * 1024))
    assert len(bomb) < 8192
    with pytest.raises(WireFormatError, match="requires too much memory"):
        decode_message(bomb, TelemetryBatch, packed=True)
    small_window = zstd.compress(bytes(64 * 1024 * 1024))
    with pytest.raises(WireFormatError, match="holds more than 262144 bytes"):
        decode_message(small_window, TelemetryBatch, packed=True)
    assert len(unpacked(zstd.compress_small(bytes(MAX_MESSAGE_BYTES)), MAX_MESSAGE_BYTES))
    with pytest.raises(WireFormatError, match="holds more"):
        unpacked(zstd.compress_small(bytes(MAX_MESSAGE_BYTES + 1)), MAX_MESSAGE_BYTES)


@given(st.data())
def test_a_damaged_frame_is_a_wrong_message(data: st.DataObject) -> None:
    frame = bytearray(packed(PLAIN))
    cut = data.draw(st.integers(4, len(frame) - 1))
    with pytest.raises(WireFormatError):
        decode_message(bytes(frame[:cut]), TelemetryBatch, packed=True)
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_message(bytes(frame), TelemetryBatch, packed=True)
    except WireFormatError:
        return


def test_two_frames_are_no_message() -> None:
    with pytest.raises(WireFormatError, match="something follows"):
        unpacked(packed(PLAIN) * 2, MAX_MESSAGE_BYTES)


def test_only_telemetry_may_come_compressed() -> None:
    with pytest.raises(WireFormatError, match="not a valid Hello"):
        decode_message(packed(PLAIN), Hello, packed=True)


def test_an_acknowledgement_says_what_may_come() -> None:
    old = decode_message(b'{"schema_version":1,"boot_id":"b","sequences":[7]}', TelemetryAck)
    assert not old.reads
    assert not old.report_every_s
    newer = b'{"schema_version":1,"boot_id":"b","sequences":[7],"reads":["zstd"],"later":1}'
    assert decode_message(newer, TelemetryAck).reads == ("zstd",)
