"""The least versions of metadata and the least time that this device believes. Pure.

They outlive the metadata itself: where that is lost or damaged, an older set is still refused.

Rules:
- A floor holds as long as the keys of the role stay the same. A thief may sign a version that none
  can exceed; when the fleet changes the stolen key, the floor that he made goes with it. The same
  holds for the time.
- A root has no way back: its versions follow each other.

Source:
    The Update Framework Specification 1.0.34, section 5.3.11 (recovery from fast-forward attacks:
    versions are forgotten when the keys of their role change).
"""

from __future__ import annotations

import msgspec

from wire.metadata import MetadataVersions
from wire.trust.roles import SNAPSHOT, TARGETS, TIMESTAMP


class RoleFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The least version of a role."""

    version: int
    keys: str
    """Digest over the names of the keys that may sign it, and of those above it that vouch for its
    version."""


class Floors(msgspec.Struct, frozen=True, kw_only=True):
    """What a device remembers of all that it has trusted."""

    root: int = 0
    roles: dict[str, RoleFloor] = {}
    """By role: the timestamp, the snapshot, the targets and the lists."""

    time_s: float = 0.0
    """The latest time that it knows to have come: something that it believed was signed then, and
    so long it has run since."""

    time_keys: str = ""
    """Digest over the names of the keys that may sign timestamps, which told that time."""


def versions_of(floors: Floors) -> MetadataVersions:
    """Return the versions that a device has trusted, where it has lost what it trusted."""
    versions = {name: floor.version for name, floor in floors.roles.items()}
    return MetadataVersions(
        root=floors.root,
        timestamp=versions.pop(TIMESTAMP, 0),
        snapshot=versions.pop(SNAPSHOT, 0),
        targets=versions.pop(TARGETS, 0),
        roles=versions,
    )


def below(floors: Floors, root: int, roles: dict[str, RoleFloor]) -> str | None:
    """Return what is older than this device has trusted, or None.

    Args:
        floors: What it remembers.
        root: The version of the root that is offered.
        roles: The versions of the other roles, with their keys.
    """
    if root < floors.root:
        return f"version {root} of the root is older than the trusted {floors.root}"
    for name, offered in roles.items():
        known = floors.roles.get(name)
        if known is not None and known.keys == offered.keys and offered.version < known.version:
            return f"version {offered.version} of {name} is older than the trusted {known.version}"
    return None


def time_floor_s(floors: Floors, time_keys: str) -> float:
    """Return the time before which it cannot be; 0 if other keys sign timestamps by now.

    Args:
        floors: What the device remembers.
        time_keys: The keys that may sign timestamps, as a digest.
    """
    return floors.time_s if floors.time_keys == time_keys else 0.0


def raised(
    floors: Floors, root: int, roles: dict[str, RoleFloor], time_s: float, time_keys: str
) -> Floors:
    """Return floors that refuse all that is older than a set which was believed.

    Args:
        floors: What the device remembers.
        root: The version of the root.
        roles: The versions of the roles, with their keys; none of them is below the floors.
        time_s: When it was signed.
        time_keys: The keys that may sign timestamps, as a digest.
    """
    return Floors(
        root=max(floors.root, root),
        roles={**floors.roles, **roles},
        time_s=max(time_floor_s(floors, time_keys), time_s),
        time_keys=time_keys,
    )
