"""Decoding is strict, bounded, and tolerant of what is new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import codec
from wire.desired import DesiredState
from wire.errors import FleetError, WireFormatError
from wire.messages import decode_message
from wire.presence import Hello, Presence
from wire.profile import DeviceProfile, profile_from_toml
from wire.telemetry import TelemetryAck

PRESENCE = Presence(device="a", online=True, boot_id="b")
PROFILE = """
name = "pi"
architecture = "aarch64"
memory_bytes = 1000
storage_bytes = 1000
"""


def test_equal_values_give_equal_bytes() -> None:
    assert codec.to_json({"b": 1, "a": 2}) == codec.to_json({"a": 2, "b": 1}) == b'{"a":2,"b":1}'


def test_messages_round_trip() -> None:
    assert decode_message(codec.to_json(PRESENCE), Presence) == PRESENCE
    ack = TelemetryAck(boot_id="b", sequences=(1, 2))
    assert decode_message(codec.to_msgpack(ack), TelemetryAck, packed=True) == ack


def test_an_unknown_field_is_accepted() -> None:
    data = b'{"schema_version":1,"device":"a","online":true,"boot_id":"b","new":[1]}'
    assert decode_message(data, Presence) == PRESENCE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"device":1,"online":true,"boot_id":"b"}',
        b'{"device":"a","online":"yes","boot_id":"b"}',
        b'{"schema_version":2,"device":"a","online":true,"boot_id":"b"}',
        b"[" * 100_000,
    ],
    ids=["empty", "cut", "kind", "utf8", "type", "bool", "version", "deep"],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(WireFormatError):
        decode_message(data, Presence)


@given(st.binary(max_size=300))
def test_noise_never_raises_anything_but_our_error(data: bytes) -> None:
    for kind in (Hello, DesiredState, Presence):
        for packed in (False, True):
            try:
                decode_message(data, kind, packed=packed)
            except WireFormatError:
                continue


def test_size_is_bounded() -> None:
    with pytest.raises(WireFormatError, match="over the limit of 10"):
        codec.from_json(b'"01234567890"', str, limit_bytes=10)


def test_a_profile_is_read() -> None:
    profile = profile_from_toml(PROFILE.encode())
    assert (profile.name, profile.threads, profile.thermal.severe_c) == ("pi", 1, 85.0)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("memory_byte = 5", "unknown field"),
        ("threads = 2", "threads"),
        ("cpu_count = 0", "cpu_count"),
        ("[thermal]\nnominal_c = 90.0", "nominal_c"),
        ('power_source = "sun"', "power_source"),
        ("x = ", "Invalid value"),
    ],
)
def test_an_impossible_profile_names_its_fault(change: str, fault: str) -> None:
    with pytest.raises(WireFormatError, match=fault):
        profile_from_toml((PROFILE + change).encode())


def test_a_profile_file_of_the_first_release_is_read() -> None:
    old = profile_from_toml((PROFILE + 'objective = "latency"').encode())
    assert old == profile_from_toml(PROFILE.encode())
    assert b"objective" not in codec.to_json(old)


def test_a_profile_of_a_newer_release_is_read_from_a_message() -> None:
    newer = codec.to_builtins(profile_from_toml(PROFILE.encode())) | {"antennas": 2}
    assert codec.convert(newer, DeviceProfile).name == "pi"


def test_a_profiles_name_is_plain() -> None:
    with pytest.raises(WireFormatError, match="plain name"):
        profile_from_toml(PROFILE.replace('"pi"', '"../pi"').encode())


def test_a_missing_key_is_named() -> None:
    with pytest.raises(WireFormatError, match="memory_bytes"):
        codec.from_toml(b'name="a"\narchitecture="aarch64"', DeviceProfile)


@pytest.mark.parametrize(
    "value",
    [
        b"9" * 5000,
        b"0x" + b"f" * 4000,
        b"[{b=[9223372036854775808]}]",
        b"[" * 100_000,
        b"\xff",
        b"{",
    ],
)
def test_whatever_is_no_toml_is_refused_as_such(value: bytes) -> None:
    with pytest.raises(WireFormatError, match="not a valid dict"):
        codec.from_toml(b"a = " + value, dict)


def test_errors_say_fault_and_remedy() -> None:
    error = FleetError("the disk is full", remedy="free 3 MB")
    assert str(error) == "the disk is full; free 3 MB"
    assert str(FleetError("the disk is full")) == "the disk is full"


def test_half_a_character_is_our_error() -> None:
    with pytest.raises(WireFormatError, match="not a valid DeviceProfile"):
        codec.convert({"\ud800": 1}, DeviceProfile)
