"""The versions of each fleet's metadata that this user has seen, so that nobody shows older ones.

A controller that was stolen, or a draft, may show metadata that was signed rightly and is old, such
as a list from before a revocation. Whoever adds a release to it signs the rest of it again.

Rules:
- What is remembered is no secret. Where it is lost, nothing is known; where it cannot be written,
  the command goes on and says so.
- Fleets are told apart by their first root.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from controller.cli.errors import ArgumentError
from wire.codec import from_json, sha256_hex, to_json
from wire.console.output import remark
from wire.errors import WireFormatError
from wire.files import read_regular, write_atomic
from wire.trust.roles import ROOT, TARGETS

if TYPE_CHECKING:
    from controller.metadata.documents import Authored

MAX_SEEN_BYTES = 1024 * 1024


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The newest versions, by role."""

    versions: dict[str, int] = {}


def check_newest(metadata: Authored, roles: Iterable[str] | None = None) -> None:
    """Refuse metadata that is older than what was seen, and remember what is newer.

    Args:
        metadata: What a controller or a draft shows, of a root that is known.
        roles: Whose files count; None for all.

    Raises:
        ArgumentError: A file of it is older.
    """
    path = _path(metadata)
    known = {} if path is None else _read(path).versions
    shown = _versions(metadata, roles)
    older = [role for role, version in shown.items() if version < known.get(role, 0)]
    if older:
        raise ArgumentError(
            f"older metadata than was seen here before: {', '.join(older)}; it may list again what "
            "was revoked since then",
            remedy="make a draft anew; a controller may be a thief's, or was restored from a "
            f"backup: in that case alone remove {path}, and repeat",
        )
    remember(metadata, roles)


def remember(metadata: Authored, roles: Iterable[str] | None = None) -> None:
    """Note which versions were seen.

    Args:
        metadata: What is newest.
        roles: Whose files count; None for all.
    """
    path = _path(metadata)
    if path is None:
        return
    known, shown = _read(path).versions, _versions(metadata, roles)
    newest = known | {role: max(version, known.get(role, 0)) for role, version in shown.items()}
    if newest != known:
        _write(path, newest)


def _versions(metadata: Authored, roles: Iterable[str] | None) -> dict[str, int]:
    there = (ROOT, TARGETS, *metadata.lists)
    wanted = there if roles is None else tuple(role for role in roles if role in there)
    return {role: int(metadata.document(role).signed.version) for role in wanted}


def _path(metadata: Authored) -> Path | None:
    """Return where the versions of a fleet are; None for a user without a home."""
    try:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return None
    return state / "edgefleet" / f"metadata-{sha256_hex(metadata.roots[0])[:16]}.json"


def _read(path: Path) -> Seen:
    try:
        return from_json(read_regular(path, MAX_SEEN_BYTES), Seen)
    except (OSError, WireFormatError):
        return Seen()


def _write(path: Path, versions: dict[str, int]) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, to_json(Seen(versions=versions)))
    except OSError as exc:
        why = (exc.strerror or str(exc)).lower()
        remark(f"warning: cannot note in {path} which metadata was seen: {why}")
