"""Bounds of telemetry that make no sense are refused, each by its name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from controller.telemetry_settings import LogConfig, TelemetryConfig, faults


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clock_tolerance_s", 59.0),
        ("clock_tolerance_s", math.nan),
        ("clock_tolerance_s", math.inf),
        ("label_values", 0),
        ("device_label_values", 0),
        ("device_series", 0),
    ],
)
def test_a_bound_that_makes_no_sense_is_named(name: str, value: float) -> None:
    assert list(faults(TelemetryConfig())) == []
    (fault,) = faults(msgspec.structs.replace(TelemetryConfig(), **{name: value}))
    assert fault.startswith(f"telemetry.{name} ")


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"servers": ()}, "servers is not 1 to 16"),
        ({"servers": ("http://nats",)}, "servers has an address that is not nats://"),
        ({"servers": ("nats://[",)}, "servers has an address that is not nats://"),
        ({"servers": ("tls://me:not-to-be-seen@nats",)}, "servers has an address that is not"),
        ({"servers": ("tls://nats:4222/x",)}, "servers has an address with more than"),
        ({"servers": ("nats://nats",)}, "servers has no TLS for nats"),
        (
            {"servers": ("nats://nats",), "clear_text": True, "user": "a", "password_file": "b"},
            "servers has no TLS for nats",
        ),
        ({"stream": "a.b"}, "stream is not"),
        ({"replicas": 6}, "replicas is not"),
        ({"keep_bytes": 1}, "keep_bytes is below"),
        ({"user": "a"}, "user and telemetry.log.password_file must be set together"),
    ],
)
def test_a_log_that_cannot_be_is_named_without_a_secret(more: dict[str, Any], fault: str) -> None:
    settings: dict[str, Any] = {"servers": ("tls://nats",)} | more
    (told,) = faults(TelemetryConfig(log=LogConfig(**settings)))
    assert told.startswith(f"telemetry.log.{fault}")
    assert "not-to-be-seen" not in told


def test_logs_that_can_be() -> None:
    for settings in (
        LogConfig(servers=("nats://127.0.0.1:4222", "nats://localhost")),
        LogConfig(servers=("tls://nats-1:4222",), user="a", password_file="b"),
        LogConfig(servers=("nats://nats",), clear_text=True),
    ):
        assert list(faults(TelemetryConfig(log=settings))) == []
