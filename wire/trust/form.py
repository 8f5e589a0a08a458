"""What trusted metadata of this fleet may look like, beyond what TUF asks. Pure.

Who signs a change reads what it changes. So nothing that counts on a device may lie where no reader
looks: a key under the name of another key, paths of other roles, releases that no list has.

Rules:
- A key has the digest of itself as its name.
- A role vouches for its own paths, and for nothing else. The role of all releases comes last, so
  that the role of one model decides for that model.
- The targets list nothing themselves; lists delegate nothing.
- A release has the path `NAME/VERSION`, in characters that every terminal shows, and a SHA-256.
- Who signs signs no field that he does not know: it would be copied into all that comes after. And
  each field has its type.
- A device asks for the names of keys alone, so that later versions of the fleet may say more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from wire.package.index import is_digest
from wire.profile import NAME_PATTERN
from wire.trust.key_names import key_names
from wire.trust.roles import FLEET_FIELD, RELEASES, role_paths

Signed = Mapping[str, Any]

MAX_VERSION: Final = 10**11 - 1
"""A version may be seconds since 1970, which people read as a date."""


class _Form(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a file that people sign: python-tuf leaves most types to whoever reads them."""


class _Value(_Form, frozen=True, kw_only=True):
    public: str


class _Key(_Form, frozen=True, kw_only=True):
    keytype: str
    scheme: str
    keyval: _Value


class _Role(_Form, frozen=True, kw_only=True):
    keyids: list[str]
    threshold: int


class _Delegated(_Role, frozen=True, kw_only=True):
    name: str
    terminating: bool
    paths: list[str] | None = None
    path_hash_prefixes: list[str] | None = None


class _Delegations(_Form, frozen=True, kw_only=True):
    keys: dict[str, _Key]
    roles: list[_Delegated] = []


class _Digests(_Form, frozen=True, kw_only=True):
    sha256: str


class _Release(_Form, frozen=True, kw_only=True):
    length: int
    hashes: _Digests


class _Document(_Form, frozen=True, kw_only=True):
    kind: str = msgspec.field(name="_type", default="")
    spec_version: str = ""
    version: Annotated[int, msgspec.Meta(ge=1, le=MAX_VERSION)] = 1
    expires: str = ""


class _Root(_Document, frozen=True, kw_only=True):
    keys: dict[str, _Key]
    roles: dict[str, _Role]
    consistent_snapshot: bool = True
    fleet: str = msgspec.field(name=FLEET_FIELD, default="")


class _Targets(_Document, frozen=True, kw_only=True):
    targets: dict[str, _Release] = {}
    delegations: _Delegations | None = None


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
    try:
        if "roles" in signed:
            root = msgspec.convert(signed, _Root)
            return next(chain(_keys(signed), _signers(root.roles, root.keys)), None)
        targets = msgspec.convert(signed, _Targets)
    except msgspec.ValidationError as exc:
        return ascii(str(exc)[:200])[1:-1]  # it repeats what was written
    delegations = targets.delegations
    if delegations is not None and targets.targets:
        return "the targets list releases themselves"
    faults = [_keys(signed), _releases(targets.targets)]
    if delegations is not None:
        roles = {role.name: role for role in delegations.roles}
        faults += [_signers(roles, delegations.keys), _roles(delegations.roles)]
    return next(chain(*faults), None)


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


def _signers(roles: Mapping[str, _Role], keys: Mapping[str, _Key]) -> Iterator[str]:
    for name, role in roles.items():
        for keyid in role.keyids:
            if keyid not in keys:
                yield f"the role {name[:64]!a} has a key that is not there: {keyid[:16]!a}"


def _roles(roles: Sequence[_Delegated]) -> Iterator[str]:
    for role in roles:
        if role.paths != [role_paths(role.name)] or not role.terminating:
            yield f"the role {role.name[:64]!a} has paths that are not its own"
    if any(role.name == RELEASES for role in roles[:-1]):
        yield f"the role {RELEASES} comes before another one"


def _releases(paths: Mapping[str, _Release]) -> Iterator[str]:
    for path, release in paths.items():
        name, _, version = path.partition("/")
        if not (NAME_PATTERN.fullmatch(name) and NAME_PATTERN.fullmatch(version)):
            yield f"{path[:128]!a} is no release"
        if not is_digest(release.hashes.sha256):
            yield f"{path[:128]!a} has no SHA-256"
