"""Releases, and what a device reports of installing one."""

from __future__ import annotations

from typing import Literal

import msgspec

from wire.messages import Message


class ReleaseRef(msgspec.Struct, frozen=True, kw_only=True):
    """A release: the package and where its signed index is."""

    name: str
    version: str
    digest: str
    """SHA-256 of the package index: the name of the package."""

    envelope_sha256: str
    """SHA-256 of the envelope around the index, which is fetched like any blob."""

    envelope_size_bytes: int


InstallPhase = Literal[
    "idle",
    "preflight",
    "fetching",
    "verifying",
    "staging",
    "probing",
    "switching",
    "confirming",
    "reverting",
]
InstallOutcome = Literal["running", "succeeded", "failed"]


class InstallReport(Message, frozen=True, kw_only=True):
    """A device's progress with a desired state. The last report for a revision is its outcome."""

    device: str
    boot_id: str | msgspec.UnsetType = msgspec.UNSET
    """The start of the agent, as in its hello; unset by agents that do not count their reports."""

    sequence: int | msgspec.UnsetType = msgspec.UNSET
    """Grows with each report of one start."""

    revision: int
    digest: str | None
    """The package that was to be installed."""

    phase: InstallPhase
    outcome: InstallOutcome
    active: str | None
    """The package that serves now."""

    variant: str | None = None
    error_code: str = ""
    detail: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    at_s: float = 0.0
    rate_bytes_per_s: float | msgspec.UnsetType = msgspec.UNSET
    """How fast the package comes: an exponentially weighted mean of some 10 s
    (`agent.install.progress.Rate` says which, and its source). What the device had already does not
    count. Unset while it is unknown or nothing is fetched, and by older agents."""

    model: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the model that the report is about; unset by agents that have one model."""

    bytes_by_source: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """How many of the bytes of the package came which way, so far: `local`, `delta`, `http`, `mqtt`
    or `file` (`wire.progress`). A reader takes any name. Unset before anything came, and by older
    agents."""


class Refusal(Message, frozen=True, kw_only=True):
    """A device does not accept a desired state that it received, and says why."""

    device: str
    sha256: str
    """SHA-256 of the desired state as it was received, signatures included."""

    error_code: str
    detail: str = ""
    at_s: float = 0.0
