"""Tells from what a device trusts that the controller was restored, or has another root.

Rules:
- It is the word of one device, which may lie: it is told, with the device's name, and changes
  nothing.
- How much is told does not depend on the device: it may make up as many names of lists as it likes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from controller.metadata.documents import AHEAD_S, Authored
from wire.metadata import MetadataVersions
from wire.trust.roles import ROOT, TARGETS, is_role

UNKNOWN: Final = "unknown"
ANOTHER: Final = "another"


class Behind(NamedTuple):
    """One thing that the controller lacks."""

    role: str
    """The role of it; `UNKNOWN` for a list that this controller does not know, `ANOTHER` for all of
    it."""

    text: str


def behind(
    authored: Authored, former: Collection[str], versions: MetadataVersions, now_s: float
) -> list[Behind]:
    """Return what a device trusts that is newer than what the controller has.

    Args:
        authored: What the controller has.
        former: The lists that its snapshot still names.
        versions: What the device trusts.
        now_s: Wall time.

    Returns:
        Each once, with what to do.
    """
    if versions.fleet not in {msgspec.UNSET, authored.fleet}:
        text = (
            "it has another root than this controller, of another fleet or of before this one "
            "began anew, and follows no metadata from here: copy root.json to it, and start its "
            "agent again"
        )
        return [Behind(ANOTHER, text)]
    found: list[Behind] = []
    newest = authored.root.signed.version
    if versions.root > newest:
        text = (
            f"it trusts version {versions.root} of the root, and this controller has {newest}: the "
            "controller was restored from before a change of keys, and the device believes nothing "
            "of it. Restore a newer backup; do not sign another root"
        )
        found.append(Behind(ROOT, text))
    known = {*authored.roles(), *former}
    unknown = min(
        (name for name in versions.roles if name not in known and is_role(name)), default=""
    )
    if unknown:
        text = (
            f"it trusts the list {unknown}, which this controller does not know: was the "
            "controller restored? The device believes no snapshot without it; other keys of the "
            "snapshot end that: fleet key rotate snapshot --to NEW --at-once"
        )
        found.append(Behind(UNKNOWN, text))
    trusted = {**versions.roles, TARGETS: versions.targets}
    for role in (TARGETS, *authored.lists):
        # A version is a time: one of the future is a device's error, or its lie.
        if authored.document(role).signed.version < trusted.get(role, 0) <= now_s + AHEAD_S:
            text = (
                f"it trusts a newer list {role} than this controller has, and believes no older "
                f"one: was the controller restored? Sign it again: fleet key sign {role} --key KEY"
            )
            found.append(Behind(role, text))
    return found
