"""Changes of trusted metadata that wait for signatures, as files that people carry to each other.

Rules:
- A draft holds what held before and what shall hold, so whoever signs sees the difference without a
  controller.
- What held before is verified from the first root on; of what shall hold only the form is.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import msgspec
from tuf.api.metadata import Root, Targets

from controller.metadata.checks import check_content, check_follows, check_keys, check_same_fleet
from controller.metadata.documents import Authored, read
from controller.metadata.edit import put
from controller.metadata.errors import MetadataError
from controller.metadata.signing import changed_files
from controller.metadata.store import authored_of
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.metadata import MetadataFile, parse_file_name
from wire.trust.roles import ROOT

MAX_DRAFT_BYTES = 64 * 1024 * 1024
SHOWN_DIGITS = 16
FIRST_TIME = 1_000_000_000
"""A smaller version counts from one."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A change that waits for signatures."""

    draft_version: int = 1
    before: tuple[MetadataFile, ...]
    changes: tuple[MetadataFile, ...]


def write_draft(before: Authored, after: Authored) -> bytes:
    """Return a change as a file.

    Args:
        before: What holds.
        after: What shall hold.
    """
    return to_json(Draft(before=before.files(), changes=changed_files(before, after)))


def read_draft(data: bytes) -> tuple[Authored, Authored]:
    """Read a file of `write_draft`.

    Args:
        data: Its bytes.

    Returns:
        What held when it was written, and what shall hold.

    Raises:
        MetadataError: It is no such file.
    """
    try:
        draft = from_json(data, Draft, limit_bytes=MAX_DRAFT_BYTES)
    except WireFormatError as exc:
        raise MetadataError(
            "this is no draft", remedy="give a file that --draft of `fleet key` wrote"
        ) from exc
    before = after = authored_of(draft.before)
    for file in draft.changes:
        role, _ = parse_file_name(file.name)
        content = file.content.encode()
        if role == ROOT:
            root = read(content, Root)
            check_follows(before, root.signed.version)
            after = replace(after, roots=(*before.roots, content), root=root)
        else:
            after = put(after, role, read(content, Targets))
    # What the controller would refuse is not signed either: a device may not look at it so closely.
    check_same_fleet(before, after)
    check_content(after)
    check_keys(before, after)
    return before, after


def difference(before: Authored, after: Authored) -> list[str]:
    """Return what a change does, a line for each part of it, for those who sign.

    Nothing is left out: what is not shown could be what a thief has added.

    Args:
        before: What holds.
        after: What shall hold.
    """
    lines = [_versions(role, before, after) for role in changed_roles(before, after)]
    for role in dict.fromkeys((*before.roles(), *after.roles())):
        lines += _keys(role, before, after)
    for role in dict.fromkeys((*before.lists, *after.lists)):
        lines += _releases(role, before, after)
    return lines


def changed_roles(before: Authored, after: Authored) -> list[str]:
    """Return the roles whose files a change replaces."""
    names = (parse_file_name(file.name)[0] for file in changed_files(before, after))
    return list(dict.fromkeys(names))


def _versions(role: str, before: Authored, after: Authored) -> str:
    new = after.document(role).signed
    is_known = role == ROOT or role in before.content
    old = version_text(role, before.document(role).signed.version) if is_known else "none"
    shown = version_text(role, new.version)
    return f"{role}: version {old} -> {shown}, expires {new.expires:%Y-%m-%d}"


def version_text(role: str, version: int) -> str:
    """Return a version, and when it was signed if it is a time.

    Args:
        role: Whose.
        version: It.
    """
    if role == ROOT or version < FIRST_TIME:
        return str(version)
    return f"{version} of {dt.datetime.fromtimestamp(version, dt.UTC):%Y-%m-%d %H:%M} UTC"


def _keys(role: str, before: Authored, after: Authored) -> list[str]:
    old = before.keys(role) if role in before.roles() else {}
    new = after.keys(role) if role in after.roles() else {}
    lines = [
        f"{role}: adds key {keyid[:SHOWN_DIGITS]} ({key.scheme})"
        for keyid, key in new.items()
        if keyid not in old
    ]
    lines += [f"{role}: takes key {keyid[:SHOWN_DIGITS]}" for keyid in old if keyid not in new]
    if not new:
        return [*lines, f"{role}: is no role any more"]
    needed = before.threshold(role) if old else 0
    if needed != after.threshold(role):
        lines.append(f"{role}: {after.threshold(role)} of {len(new)} keys must sign")
    return lines


def _releases(role: str, before: Authored, after: Authored) -> list[str]:
    old, new = _listed(role, before), _listed(role, after)
    moved = {
        path: digest
        for name in before.lists
        if name != role
        for path, digest in _listed(name, before).items()
    }
    lines = []
    for path, digest in new.items():
        if old.get(path) == digest:
            continue
        if path not in old and moved.get(path) == digest:
            lines.append(f"{role}: lists {path}, as before")
        else:
            lines.append(f"{role}: lists {path}, sha256 {digest[:SHOWN_DIGITS]}")
    return lines + [f"{role}: lists {path} no more" for path in old if path not in new]


def _listed(role: str, metadata: Authored) -> dict[str, str]:
    """Return the digests of the releases that a role lists, by path."""
    if role not in metadata.lists:
        return {}
    targets = metadata.lists[role].signed.targets
    return {path: target.hashes.get("sha256", "") for path, target in targets.items()}
