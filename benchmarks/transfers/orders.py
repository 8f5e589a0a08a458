"""What a device of the benchmark is told to do, and what it says when it is done.

Rules:
- Times are of the machine's monotonic clock, which all its processes share.
- A transfer ends within its limit; what is then missing is a figure too.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from agent.install.fetch.part import Blob
from wire.broker_address import BrokerAddress


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One transfer by one device."""

    device: str
    blob: str
    """By its name among `Setup.blobs`."""

    limit_s: float
    how: Literal["package", "http", "multicast", "raw"] = "package"
    """`package` is ours, by the agent's fetcher over messages; `http` the same over HTTP;
    `multicast` with casts before messages; `raw` reads a TCP connection into a file."""

    url: str = ""
    """Of the blob, for `http`."""

    raw_port: int = 0
    die_at_bytes: int | None = None
    """After so many useful bytes the device's process kills itself."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a transfer went."""

    device: str
    ended_s: float = 0.0
    """When the last useful byte was in its file, or when the limit was reached."""

    useful_bytes: int = 0
    """Of chunks that were new to this device."""

    asked_bytes: int = 0
    """What it asked for, each time counted."""

    cast_bytes: int = 0
    """What of them came by a cast."""

    fault: str = ""
    """Why it is not complete."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one driving program."""

    devices: dict[str, BrokerAddress]
    """By name, each with the way to the broker."""

    blobs: dict[str, Blob]
    trust: str = ""
    """Path of the keys that sign where casts are; empty without casts."""

    folder: str
    """Where their files go; the same again continues what was there."""
