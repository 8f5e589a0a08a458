"""The requests and answers of the HTTP API about releases and the blobs that they are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.domain.states import ReleaseState
from controller.schemas import Request


@dataclass(kw_only=True)
class BlobRef:
    """A stored blob."""

    sha256: str
    size_bytes: int


@dataclass(kw_only=True)
class ReleaseRequest(Request):
    """Publish a package whose blobs have been uploaded."""

    envelope_sha256: str


@dataclass(kw_only=True)
class VariantSummary:
    """A variant of a release, for listings."""

    name: str
    runtime: str
    precision: str
    size_bytes: int
    profiles: list[str]
    accuracy: float | None
    retention: float | None
    latency_p50_ms: float | None
    peak_memory_bytes: int | None


@dataclass(kw_only=True)
class RunningDevice:
    """A device that runs a release."""

    device: str
    online: bool
    rollout: str | None
    """A rollout that brought the release to it."""

    previous: str | None
    """What a rollback of that rollout brings it to, as `name:version`; None if there is nothing."""


@dataclass(kw_only=True)
class KeptDelta:
    """A delta to a file of a release, which the controller keeps."""

    base: str
    """Digest of the file that it begins from; that of no bytes for a file that is compressed."""

    base_release: str | None
    """A release that has this file, as `name:version`."""

    size_bytes: int
    full_bytes: int
    """Size of the file that it leads to."""


@dataclass(kw_only=True)
class Release:
    """A published package."""

    name: str
    version: str
    digest: str
    size_bytes: int
    state: ReleaseState
    published_at_s: float
    variants: list[VariantSummary] = field(default_factory=list)
    running: list[RunningDevice] = field(default_factory=list)
    """The devices that run it; empty in a list of releases."""

    deltas: list[KeptDelta] = field(default_factory=list)
    """The deltas that the controller keeps to its files; empty in a list of releases."""

    envelope_sha256: str = ""
    """The blob that holds its signed index."""

    envelope_size_bytes: int = 0
