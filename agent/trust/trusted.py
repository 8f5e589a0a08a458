"""What the fleet's metadata says to this device, and whether that is fresh. Pure.

Rules:
- What is said holds as long as the device has it; whether it is fresh decides only about what is
  new. A device that was away goes on with what it has.
- Time is the later one of the clock and the floor: the latest time at which something was signed
  that the device has believed. A clock in the past makes nothing fresh.

Source:
    The Update Framework Specification 1.0.34, section 5.2 (a fixed update start time) and 5.3.10
    (expired metadata is no update).
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.metadata import MetadataVersions
from wire.trust.roles import target_path
from wire.trust.root import Role

NOTHING: Final = "no trusted metadata has come yet"


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """A release as a list has it."""

    sha256: str
    """Of the package's index: the digest of the package."""

    size_bytes: int
    expires_at_s: float
    """When its list expires, seconds since 1970."""


class Trusted(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata says that this device has verified."""

    versions: MetadataVersions
    director: Role
    """Who may sign desired states."""

    issued_at_s: float
    """When the timestamp was signed, seconds since 1970."""

    expires_at_s: float
    """When the first of root, targets, snapshot and timestamp expires."""

    expires_first: str
    """Which of them that is."""

    models: tuple[str, ...] = ()
    """The models whose releases are here."""

    releases: dict[str, Release] = {}
    """By path, `NAME/VERSION`: the releases of these models."""

    def lists(self, name: str, version: str, sha256: str) -> bool:
        """Tell whether a release is listed with that digest."""
        found = self.releases.get(target_path(name, version))
        return found is not None and found.sha256 == sha256


class Clocked(msgspec.Struct, frozen=True, kw_only=True):
    """When something is looked at."""

    now_s: float
    """Wall time of the device, seconds since 1970."""

    floor_s: float = 0.0
    """The latest time at which something believed was signed."""

    grace_s: float = 0.0
    """How long after its end metadata still counts as fresh."""

    @property
    def time_s(self) -> float:
        """The time that counts."""
        return max(self.now_s, self.floor_s)


def not_fresh(trusted: Trusted | None, clock: Clocked) -> str | None:
    """Return why nothing new may be taken because of the metadata's age, or None.

    Args:
        trusted: What the device trusts; None before it has any.
        clock: When.
    """
    if trusted is None:
        return NOTHING
    late_s = clock.time_s - trusted.expires_at_s
    if late_s >= clock.grace_s:
        return (
            f"the trusted metadata ({trusted.expires_first}) expired {_ago(late_s)}: no "
            "controller has shown newer, or somebody keeps it from this device"
        )
    return None


def not_listed(
    trusted: Trusted | None, name: str, version: str, sha256: str, clock: Clocked
) -> str | None:
    """Return why a release may not be taken new because of the lists, or None.

    Args:
        trusted: What the device trusts.
        name: Name of the package.
        version: Its version.
        sha256: Its digest.
        clock: When.
    """
    if trusted is None:
        return NOTHING
    found = trusted.releases.get(target_path(name, version))
    if found is None:
        return f"no trusted list has the release {name}:{version} yet: it waits for that"
    if found.sha256 != sha256:
        return f"the trusted list has another package as {name}:{version}"
    late_s = clock.time_s - found.expires_at_s
    if late_s >= clock.grace_s:
        return f"the list with the release {name}:{version} expired {_ago(late_s)}"
    return None


def not_timely(
    *, expires_at_s: float | None, timestamp: int | None, known: int, clock: Clocked
) -> str | None:
    """Return why a desired state may not be followed because of its age, or None.

    Args:
        expires_at_s: When it expires, seconds since 1970; None if it does not say.
        timestamp: The version of the timestamp that its controller had signed by then; None if it
            does not say.
        known: The version of the timestamp that this device trusts.
        clock: When.
    """
    if timestamp is not None and timestamp > known:
        return "the director knows of newer metadata than this device: it waits for that"
    if expires_at_s is not None and clock.time_s - expires_at_s >= clock.grace_s:
        return f"the desired state expired {_ago(clock.time_s - expires_at_s)}"
    return None


def _ago(late_s: float) -> str:
    hours = int(late_s // 3600)
    if hours >= 48:  # noqa: PLR2004 - two days
        return f"{hours // 24} days ago"
    if hours > 1:
        return f"{hours} hours ago"
    minutes = int(late_s // 60)
    return f"{minutes} minutes ago" if minutes > 1 else "a moment ago"
