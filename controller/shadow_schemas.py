"""The requests and answers of the HTTP API about shadows."""

from __future__ import annotations

from dataclasses import dataclass, field

from controller.schemas import Number, Request

_SHARE = 0.01


@dataclass(kw_only=True)
class ShadowRequest(Request):
    """Which release runs as a shadow."""

    release: str
    """Digest or `name:version`."""

    selector: str = ""
    """Label expression; empty means every device."""

    share: Number = _SHARE
    """The share of the answered requests that it sees."""


@dataclass(kw_only=True)
class Shadow:
    """The release that runs as the shadow of a model."""

    model: str
    release: str
    digest: str
    selector: str
    share: float
    started_at_s: float
    rollout: str = ""
    """The rollout that started it and stops it; empty for one that was started by hand."""

    devices: int = 0
    """How many devices it was issued to."""

    accepted: int = 0
    """How many of them have accepted it; one may forbid it all the same."""


@dataclass(kw_only=True)
class ShadowFigures:
    """What devices of one profile have told of a shadow."""

    profile: str
    devices: int
    """How many have compared requests."""

    requests: int = 0
    """How many it got."""

    agreements: int = 0
    """How many of them it answered as the release that serves."""

    failures: int = 0
    """How many of them it could not answer."""

    skipped: dict[str, int] = field(default_factory=dict)
    """How many more were chosen and not compared, by the reason."""

    latency_p50_ms: float | None = None
    """In the runtime, of the shadow."""

    latency_p95_ms: float | None = None
    live_latency_p50_ms: float | None = None
    """In the runtime, of the release that serves, for the same requests."""

    live_latency_p95_ms: float | None = None
    difference_p50: float | None = None
    """Of the greatest difference of any number in two answers."""

    difference_max: float | None = None


@dataclass(kw_only=True)
class ShadowReport:
    """A shadow and what devices have told of it since it began."""

    shadow: Shadow
    profiles: list[ShadowFigures]
