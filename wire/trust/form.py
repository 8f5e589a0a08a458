"""What trusted metadata of this fleet may look like, beyond what TUF asks. Pure.

Who signs a change reads what it changes. So nothing that counts on a device may lie where no reader
looks: a key under the name of another key, paths of other roles, releases that no list has.

Rules:
- A key has the digest of itself as its name.
- A role vouches for its own paths, and for nothing else. The role of all releases comes last, so
  that the role of one model decides for that model.
- The targets list nothing themselves; lists delegate nothing.
- A release has the path `NAME/VERSION`, in characters that every terminal shows, and a SHA-256.
- Who signs signs no field that he does not know: it would be copied into all that comes after.
- A device asks for the names of keys alone, so that later versions of the fleet may say more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from wire.package.index import is_digest
from wire.profile import NAME_PATTERN
from wire.trust.key_names import key_names
from wire.trust.roles import FLEET_FIELD, RELEASES, role_paths

Signed = Mapping[str, Any]

_DOCUMENT: Final = frozenset({"_type", "spec_version", "version", "expires"})
_ROOT: Final = _DOCUMENT | {"keys", "roles", "consistent_snapshot", FLEET_FIELD}
_TARGETS: Final = _DOCUMENT | {"targets", "delegations"}
_KEY: Final = frozenset({"keytype", "scheme", "keyval"})
_ROLE: Final = frozenset({"keyids", "threshold"})
_DELEGATED: Final = _ROLE | {"name", "terminating", "paths"}
_RELEASE: Final = frozenset({"length", "hashes"})


def misnamed(signed: Signed) -> str | None:
    """Return which key of a root or of targets has a name that is not its own, or None.

    Args:
        signed: The signed part, as a dictionary of the types that TUF gives it.
    """
    return next(_keys(signed), None)


def fault_of(signed: Signed) -> str | None:
    """Return what a root, the targets or a list say that nobody signs here, or None.

    Args:
        signed: The signed part, as a dictionary of the types that TUF gives it.
    """
    delegations = signed.get("delegations") or {}
    paths = signed.get("targets") or {}
    if delegations and paths:
        return "the targets list releases themselves"
    return next(chain(_keys(signed), _roles(delegations), _releases(paths), _unknown(signed)), None)


def _keys(signed: Signed) -> Iterator[str]:
    keys = signed.get("keys") or (signed.get("delegations") or {}).get("keys") or {}
    known: set[str] = set()
    for name, key in keys.items():
        names = key_names(key)
        if name not in names:
            yield f"the key {name[:16]!a} is another key than its name says"
        elif names[0] in known:
            yield f"the key {name[:16]!a} has two names"
        known.update(names[:1])


def _roles(delegations: Signed) -> Iterator[str]:
    roles = delegations.get("roles") or ()
    if "succinct_roles" in delegations:
        yield "the targets delegate to roles without names"
    for role in roles:
        if role.get("paths") != [role_paths(role["name"])] or not role["terminating"]:
            yield f"the role {role['name'][:64]!a} has paths that are not its own"
    if any(role["name"] == RELEASES for role in roles[:-1]):
        yield f"the role {RELEASES} comes before another one"


def _releases(paths: Signed) -> Iterator[str]:
    for path, target in paths.items():
        name, _, version = path.partition("/")
        if not (NAME_PATTERN.fullmatch(name) and NAME_PATTERN.fullmatch(version)):
            yield f"{path[:128]!a} is no release"
        if not is_digest(str(target["hashes"].get("sha256"))):
            yield f"{path[:128]!a} has no SHA-256"


def _unknown(signed: Signed) -> Iterator[str]:
    delegations = signed.get("delegations") or {}
    parts: list[tuple[Signed, frozenset[str]]] = [
        (signed, _ROOT if "roles" in signed else _TARGETS),
        (delegations, frozenset({"keys", "roles"})),
    ]
    for key in (signed.get("keys") or delegations.get("keys") or {}).values():
        parts += [(key, _KEY), (key["keyval"], frozenset({"public"}))]
    parts += [(role, _ROLE) for role in signed.get("roles", {}).values()]
    parts += [(role, _DELEGATED) for role in delegations.get("roles") or ()]
    for release in signed.get("targets", {}).values():
        parts += [(release, _RELEASE), (release["hashes"], frozenset({"sha256"}))]
    for part, known in parts:
        for name in part:
            if name not in known:
                yield f"the field {name[:64]!a} is not known"
