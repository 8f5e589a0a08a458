"""What trusted metadata of this fleet may look like, beyond what TUF asks. Pure.

Who signs a change reads what it changes. So nothing that counts on a device may lie where no reader
looks: a key under the name of another key, paths of other roles, releases that no list has.

Rules:
- A key has the digest of itself as its name.
- A role vouches for its own paths, and for nothing else. The role of all releases comes last, so
  that the role of one model decides for that model.
- The targets list nothing themselves; lists delegate nothing.
- A release has the path `NAME/VERSION`, in characters that every terminal shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wire.profile import NAME_PATTERN
from wire.trust.key_names import key_name
from wire.trust.roles import RELEASES, role_paths

Signed = Mapping[str, Any]


def fault_of(signed: Signed) -> str | None:
    """Return what a root, the targets or a list of releases say that cannot be, or None.

    Args:
        signed: The signed part, as a dictionary of the types that TUF gives it.
    """
    return next(_faults(signed), None)


def _faults(signed: Signed) -> Iterator[str]:
    delegations = signed.get("delegations") or {}
    for name, key in (signed.get("keys") or delegations.get("keys") or {}).items():
        if key_name(key["keytype"], key["scheme"], key["keyval"]) != name:
            yield f"the key {name[:16]!a} is another key than its name says"
    roles = delegations.get("roles") or ()
    if "succinct_roles" in delegations:
        yield "the targets delegate to roles without names"
    for role in roles:
        if role.get("paths") != [role_paths(role["name"])] or not role["terminating"]:
            yield f"the role {role['name'][:64]!a} has paths that are not its own"
    if any(role["name"] == RELEASES for role in roles[:-1]):
        yield f"the role {RELEASES} comes before another one"
    paths = signed.get("targets") or {}
    if delegations and paths:
        yield "the targets list releases themselves"
    for path in paths:
        name, _, version = path.partition("/")
        if not (NAME_PATTERN.fullmatch(name) and NAME_PATTERN.fullmatch(version)):
            yield f"{path[:128]!a} is no release"
