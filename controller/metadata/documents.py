"""Metadata of the fleet as values: what it says, and how far it is signed. Pure.

Source:
    The Update Framework Specification 1.0.34, section 4.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar

from securesystemslib.signer import Key
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError, SerializationError
from tuf.api.serialization.json import JSONSerializer

from controller.metadata.errors import MetadataError
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.metadata import MAX_FILE_BYTES, MetadataFile, file_name
from wire.trust.form import fault_of
from wire.trust.roles import (
    DIRECTOR,
    FLEET_FIELD,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
)

T = TypeVar("T", Root, Snapshot, Targets, Timestamp)

Document: TypeAlias = Metadata[Any]
"""A file of metadata of any type."""

AHEAD_S: Final = 2 * 86_400.0
"""How far a version may lie ahead, which is a time: nobody can take all that come after."""

LONGEST_S: Final = 2 * 366 * 86_400.0
FIND_OUT: Final = "sign nothing of it, and find out who wrote it"
IMPOSSIBLE: Final = "a file of metadata cannot be: {}"
AGAIN: Final = "somebody was faster: repeat the command, or make the draft again"


@dataclass(frozen=True, slots=True)
class Signatures:
    """How far a file is signed."""

    valid: int
    needed: int

    @property
    def are_enough(self) -> bool:
        """Whether so many keys have signed as must."""
        return self.valid >= self.needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Authored:
    """What people sign: every version of the root, the targets, and the lists of releases."""

    roots: tuple[bytes, ...]
    """From version 1 on."""

    root: Metadata[Root]
    targets: Metadata[Targets]
    lists: Mapping[str, Metadata[Targets]]
    """By role."""

    content: Mapping[str, bytes]
    """By role: the files of the targets and of the lists, as they were signed."""

    former: Mapping[str, int] = field(default_factory=dict, compare=False)
    """By role: the versions of lists that devices may have seen in a snapshot, also of roles that
    are no more. Empty where no snapshot is at hand."""

    @property
    def fleet(self) -> str:
        """Which fleet it is."""
        return str(self.root.signed.unrecognized_fields.get(FLEET_FIELD, ""))

    def role_of(self, path: str) -> str | None:
        """Return the role that lists a path, or None; the first that the targets name."""
        delegations = self.targets.signed.delegations
        if delegations is None:
            return None
        names = (name for name, _ in delegations.get_roles_for_target(path))
        return next((name for name in names if name != DIRECTOR), None)

    def keys(self, role: str) -> dict[str, Key]:
        """Return who may sign a role, by the names of the keys; nobody for no such role."""
        delegator = self._delegator(role)
        try:
            found = delegator.get_delegated_role(role)
        except ValueError:
            return {}
        return {keyid: delegator.get_key(keyid) for keyid in found.keyids}

    def all_keys(self) -> tuple[Key, ...]:
        """Return who may sign anything; a key of several roles more than once."""
        return tuple(key for role in self.roles() for key in self.keys(role).values())

    def threshold(self, role: str) -> int:
        """Return how many of them must."""
        return int(self._delegator(role).get_delegated_role(role).threshold)

    def roles(self) -> tuple[str, ...]:
        """Return all roles that sign files, the top ones first; and the director."""
        delegations = self.targets.signed.delegations
        delegated = () if delegations is None or not delegations.roles else (*delegations.roles,)
        return (ROOT, TARGETS, SNAPSHOT, TIMESTAMP, *delegated)

    def signatures(self, role: str) -> Signatures:
        """Return how far the file of a role is signed."""
        metadata = self.document(role)
        found = self._delegator(role).get_verification_result(
            role, metadata.signed_bytes, metadata.signatures
        )
        return Signatures(len(found.signed), found.threshold)

    def document(self, role: str) -> Document:
        """Return the file of a role that people sign; raises KeyError if there is none."""
        tops: dict[str, Document] = {ROOT: self.root, TARGETS: self.targets}
        return tops[role] if role in tops else self.lists[role]

    def _delegator(self, role: str) -> Root | Targets:
        tops = (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
        return self.root.signed if role in tops else self.targets.signed

    def files(self) -> tuple[MetadataFile, ...]:
        """Return all files, the roots first."""
        roots = ((file_name(ROOT, n), data) for n, data in enumerate(self.roots, 1))
        versions = {TARGETS: self.targets.signed.version} | {
            name: metadata.signed.version for name, metadata in self.lists.items()
        }
        others = ((file_name(role, versions[role]), data) for role, data in self.content.items())
        return tuple(
            MetadataFile(name=name, content=data.decode()) for name, data in (*roots, *others)
        )


def read(data: bytes, kind: type[T]) -> Metadata[T]:
    """Read a file of metadata; its signatures are not checked.

    Args:
        data: The bytes.
        kind: The type that it must have.

    Returns:
        What it says.

    Raises:
        MetadataError: It is malformed, too large, of another type, or says what no fleet says.
    """
    if len(to_json(data.decode(errors="replace"))) > MAX_FILE_BYTES:  # as a message has it
        raise MetadataError(
            f"a file of metadata has over {MAX_FILE_BYTES} bytes, which no message holds",
            remedy="give models roles of their own with `fleet key delegate`, or revoke releases "
            "that no device needs",
        )
    try:
        from_json(data, dict, limit_bytes=len(data))  # which knows no halves of characters
        found: Document = Metadata.from_bytes(data)
        _ = found.signed_bytes  # a number that TUF has no form for is found here alone
    except (
        SerializationError,
        DeserializationError,
        WireFormatError,
        ValueError,
        RecursionError,
    ) as exc:
        raise MetadataError(f"a file of metadata is malformed: {_plain(exc)}") from exc
    if not isinstance(found.signed, kind):
        raise MetadataError(f"a file of metadata is not of the type {kind.type}")
    is_signed_by_people = kind in {Root, Targets}
    if is_signed_by_people and (fault := fault_of(found.signed.to_dict())) is not None:
        raise MetadataError(IMPOSSIBLE.format(fault), remedy=FIND_OUT)
    return found


def is_root(data: bytes) -> bool:
    """Tell whether a file is a root, whoever signed it."""
    try:
        read(data, Root)
    except MetadataError:
        return False
    return True


def write(metadata: Document) -> bytes:
    """Return metadata as a file."""
    data: bytes = metadata.to_bytes(JSONSerializer(compact=True))
    return data


def with_former(now: Authored, snapshot: Metadata[Snapshot]) -> Authored:
    """Return metadata that knows which versions a snapshot names, if it is of today's keys.

    Args:
        now: What people have signed.
        snapshot: The newest; of other keys it says nothing, as devices forget it with them.
    """
    root = now.root.signed
    found = root.get_verification_result(SNAPSHOT, snapshot.signed_bytes, snapshot.signatures)
    named = snapshot.signed.meta.items() if found.verified else ()
    former = {name.removesuffix(".json"): int(meta.version) for name, meta in named}
    return replace(now, former=former)


def without_strays(now: Authored) -> Authored:
    """Return metadata without the lists of roles that are no more."""
    kept = set(now.roles())
    return replace(
        now,
        lists={name: value for name, value in now.lists.items() if name in kept},
        content={name: value for name, value in now.content.items() if name in kept},
    )


def expiry(now_s: float, life_s: float) -> dt.datetime:
    """Return when metadata that is signed now expires, in whole seconds of UTC."""
    return dt.datetime.fromtimestamp(int(now_s + life_s), dt.UTC)


def newest(now: Authored, role: str) -> int:
    """Return the newest version that there was of the targets or of a list; 0 for none."""
    known = int(now.document(role).signed.version) if role in now.content else 0
    return max(known, now.former.get(role, 0))


def _plain(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:200].lower()
