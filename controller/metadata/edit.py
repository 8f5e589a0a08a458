"""Changes of trusted metadata that people sign. Pure: documents in, unsigned documents out.

Rules:
- Each change begins a new life and has a greater version: the next one for the root, for others the
  seconds since 1970 if that is more. So what is signed after a backup was restored is newer than
  all that was signed before.
- A new document has no signatures; `signed` adds them, and tells what is missing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from securesystemslib.signer import Key
from tuf.api.metadata import (
    DelegatedRole,
    Delegations,
    Metadata,
    Role,
    Root,
    TargetFile,
    Targets,
)

from controller.metadata.documents import Authored, Document, expiry, without_strays, write
from controller.metadata.errors import MetadataError
from wire.codec import to_json
from wire.metadata import MAX_FILE_BYTES
from wire.trust.roles import (
    DIRECTOR,
    FLEET_FIELD,
    RELEASES,
    RESERVED,
    ROOT,
    TARGETS,
    TOP_LEVEL,
    is_role,
    role_paths,
    target_path,
)

DAY_S: Final = 86_400.0
LIFE_S: Final = 365 * DAY_S
"""Of what people sign: once a year somebody takes the offline keys out."""

WARN_S: Final = 60 * DAY_S


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """Who may sign a role."""

    keys: tuple[Key, ...]
    threshold: int = 1


def new_root(fleet: str, roles: Mapping[str, RoleKeys], now_s: float) -> Metadata[Root]:
    """Return the first root of a fleet, unsigned.

    Args:
        fleet: 32 hexadecimal digits, random.
        roles: The keys of the four top roles.
        now_s: Wall time.
    """
    keys = {key.keyid: key for role in roles.values() for key in role.keys}
    return Metadata(
        Root(
            version=1,
            expires=expiry(now_s, LIFE_S),
            keys=keys,
            roles={
                name: Role([key.keyid for key in roles[name].keys], roles[name].threshold)
                for name in TOP_LEVEL
            },
            consistent_snapshot=True,
            unrecognized_fields={FLEET_FIELD: fleet},
        )
    )


def new_targets(director: RoleKeys, releases: RoleKeys, now_s: float) -> Metadata[Targets]:
    """Return the first targets of a fleet, unsigned: they delegate and list nothing."""
    delegations = Delegations(
        keys={key.keyid: key for key in (*director.keys, *releases.keys)},
        roles={
            DIRECTOR: _delegated(DIRECTOR, director),
            RELEASES: _delegated(RELEASES, releases),
        },
    )
    return Metadata(
        Targets(version=1, expires=expiry(now_s, LIFE_S), targets={}, delegations=delegations)
    )


def new_list(now_s: float) -> Metadata[Targets]:
    """Return an empty list of releases, unsigned."""
    return Metadata(Targets(version=1, expires=expiry(now_s, LIFE_S), targets={}))


def with_keys(
    before: Authored,
    role: str,
    now_s: float,
    *,
    add: Iterable[Key] = (),
    remove: Iterable[str] = (),
    threshold: int | None = None,
) -> Document:
    """Return the document that says who may sign a role, with other keys, unsigned.

    Args:
        before: What holds now.
        role: The role.
        now_s: Wall time.
        add: Keys that may sign it from now on.
        remove: Names of keys that may not any more.
        threshold: How many must; None for as many as now.

    Returns:
        The root for a top role, else the targets.

    Raises:
        MetadataError: There is no such role or key, or too few would be left.
    """
    known = before.keys(role)
    if not known:
        raise MetadataError(
            f"there is no role {role[:64]!r}",
            remedy=f"the roles are: {', '.join(before.roles())}",
        )
    document = _next(before.root if role in TOP_LEVEL else before.targets, now_s)
    signed = document.signed
    for key in add:
        signed.add_key(key, role)
    for keyid in remove:
        if keyid not in known:
            raise MetadataError(
                f"the key {keyid[:16]} does not sign {role}",
                remedy="`fleet key status` shows who does",
            )
        signed.revoke_key(keyid, role)
    found = signed.get_delegated_role(role)
    found.threshold = found.threshold if threshold is None else threshold
    if not found.keyids:
        raise MetadataError(
            f"{role} would have no key",
            remedy=f"give it another one in one step: fleet key rotate {role} --to KEY --at-once",
        )
    if not 1 <= found.threshold <= len(found.keyids):
        raise MetadataError(
            f"{role} would need {found.threshold} signatures and have {len(found.keyids)} keys",
            remedy="add a key first, or give another --threshold",
        )
    return document


def with_model(before: Authored, model: str, keys: RoleKeys, now_s: float) -> Metadata[Targets]:
    """Return the targets with a role for the releases of one model, unsigned.

    From then on only its keys list releases of that model.

    Raises:
        MetadataError: The model cannot have a role, or has one.
    """
    if not is_role(model) or model in RESERVED or before.keys(model):
        raise MetadataError(f"the model {model[:64]!r} cannot get a role, or has one")
    document = _next(before.targets, now_s)
    delegations = document.signed.delegations
    if delegations is None or delegations.roles is None:
        raise MetadataError("the targets delegate nothing")
    # The role of one model comes before the role of all: it decides alone.
    delegations.roles = {
        model: _delegated(model, keys),
        **delegations.roles,
    }
    for key in keys.keys:
        delegations.keys[key.keyid] = key
    return document


def moved(before: Authored, model: str, keys: RoleKeys, now_s: float) -> Authored:
    """Return metadata in which the releases of one model have a role of their own, unsigned.

    Those that are listed already move to its list.

    Raises:
        MetadataError: The model cannot have a role, or has one.
    """
    after = put(before, TARGETS, with_model(before, model, keys, now_s))
    own = new_list(now_s)
    # A device that saw a list of this role before, which was taken away, believes only a newer one.
    own.signed.version = next_version(before.former.get(model, 0), now_s)
    for role, listed in before.lists.items():
        paths = [path for path in listed.signed.targets if path.startswith(target_path(model, ""))]
        if not paths:
            continue
        rest = _next(listed, now_s)
        for path in paths:
            own.signed.targets[path] = rest.signed.targets.pop(path)
        after = put(after, role, rest)
    return put(after, model, own)


def undelegated(before: Authored, model: str, now_s: float) -> Authored:
    """Return metadata in which a model has no role of its own any more, unsigned.

    What its list had is listed no more: it may be what a thief had listed.

    Raises:
        MetadataError: The model has no role.
    """
    document = _next(before.targets, now_s)
    delegations = document.signed.delegations
    if model in RESERVED or delegations is None or model not in (delegations.roles or {}):
        raise MetadataError(
            f"the model {model[:64]!r} has no role of its own",
            remedy="`fleet key status` shows which models have one",
        )
    for keyid in (*delegations.roles[model].keyids,):
        document.signed.revoke_key(keyid, model)
    del delegations.roles[model]
    return put(before, TARGETS, document)


def renewed(before: Authored, role: str, now_s: float) -> Document:
    """Return the document of a role as it is, with a new life, unsigned.

    Raises:
        MetadataError: People sign no such document.
    """
    if role not in {ROOT, TARGETS, *before.lists}:
        names = ", ".join((ROOT, TARGETS, *before.lists))
        raise MetadataError(
            f"nobody signs a file of {role[:64]!r}",
            remedy=f"name one of: {names}; or a draft, as ./FILE",
        )
    return _next(before.document(role), now_s)


def with_release(
    before: Authored, name: str, version: str, *, sha256: str, size_bytes: int, now_s: float
) -> tuple[str, Metadata[Targets]] | None:
    """Return the list of releases with one more, unsigned.

    Args:
        before: What holds now.
        name: Name of the package.
        version: Its version.
        sha256: Its digest.
        size_bytes: Size of its index.
        now_s: Wall time.

    Returns:
        The role that lists it, and its list; None if that lists it already.

    Raises:
        MetadataError: The path is listed with another digest, or the list is full.
    """
    path = target_path(name, version)
    role = before.role_of(path)
    if role is None:
        raise MetadataError(f"no role lists {path}")
    known = before.lists[role].signed.targets.get(path)
    if known is not None and known.hashes == {"sha256": sha256}:
        return None
    if known is not None:
        raise MetadataError(
            f"{name}:{version} is listed already as another package",
            remedy="give the new package a new version",
        )
    document = _next(before.lists[role], now_s)
    document.signed.targets[path] = TargetFile(size_bytes, {"sha256": sha256}, path)
    _check_size(role, document)
    return role, document


def without_release(
    before: Authored, name: str, version: str, now_s: float
) -> tuple[str, Metadata[Targets]] | None:
    """Return the list of releases without one, unsigned; None if nothing lists it."""
    path = target_path(name, version)
    role = before.role_of(path)
    if role is None or path not in before.lists[role].signed.targets:
        return None
    document = _next(before.lists[role], now_s)
    del document.signed.targets[path]
    return role, document


def put(before: Authored, role: str, document: Document) -> Authored:
    """Return metadata with a document in it, whose signatures are not checked.

    Targets that take a role away take its list away.

    Args:
        before: What holds now.
        role: The role of the document.
        document: It.
    """
    data = write(document)
    if role == ROOT:
        kept = before.roots[: document.signed.version - 1]
        return replace(before, roots=(*kept, data), root=document)
    content = {**before.content, role: data}
    if role == TARGETS:
        return without_strays(replace(before, targets=document, content=content))
    return replace(before, lists={**before.lists, role: document}, content=content)


def next_version(version: int, now_s: float, *, is_root: bool = False) -> int:
    """Return the version that follows one.

    Args:
        version: The newest that is known; 0 for none.
        now_s: Wall time.
        is_root: Whether it is the root's, whose versions have no gaps.
    """
    return version + 1 if is_root else max(version + 1, int(now_s))


def _delegated(name: str, keys: RoleKeys) -> DelegatedRole:
    return DelegatedRole(
        name=name,
        keyids=[key.keyid for key in keys.keys],
        threshold=keys.threshold,
        terminating=True,
        paths=[role_paths(name)],
    )


def _next(document: Document, now_s: float) -> Document:
    made = copy.deepcopy(document)
    made.signatures.clear()
    made.signed.version = next_version(made.signed.version, now_s, is_root=made.signed.type == ROOT)
    made.signed.expires = expiry(now_s, LIFE_S)
    return made


def _check_size(role: str, document: Metadata[Targets]) -> None:
    if len(to_json(write(document).decode())) > MAX_FILE_BYTES - 4096:
        raise MetadataError(
            f"the list {role} has {len(document.signed.targets)} releases and is full",
            remedy="give models roles of their own with `fleet key delegate`, or take releases "
            "out with `fleet release revoke`",
        )
