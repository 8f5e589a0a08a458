"""Metadata of the fleet as values: what it says, and whether its signatures hold. Pure.

Rules:
- A set is taken only as a whole that verifies: each file by the keys that the others give to its
  role. So no change can leave a list behind that no device would believe.
- The bytes of a file stay as they were signed.

Source:
    The Update Framework Specification 1.0.34, sections 4 and 5.3 (a root is signed by the keys of
    the root before it and by its own).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar

from securesystemslib.signer import Key
from tuf.api.metadata import Metadata, Root, Snapshot, Targets, Timestamp
from tuf.api.serialization import DeserializationError, SerializationError
from tuf.api.serialization.json import JSONSerializer

from controller.metadata.errors import MetadataError
from controller.metadata.public_keys import twice
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.messages import MetadataFile
from wire.metadata import MAX_FILE_BYTES, MAX_ROOTS, file_name, parse_file_name
from wire.trust.form import fault_of
from wire.trust.roles import (
    DIRECTOR,
    ED25519,
    FLEET_FIELD,
    RELEASES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    is_role,
)

T = TypeVar("T", Root, Snapshot, Targets, Timestamp)

Document: TypeAlias = Metadata[Any]
"""A file of metadata of any type."""

AHEAD_S: Final = 2 * 86_400.0
"""How far a version may lie ahead, which is a time: nobody can take all that come after."""

LONGEST_S: Final = 2 * 366 * 86_400.0
FIND_OUT: Final = "sign nothing of it, and find out who wrote it"
_IMPOSSIBLE: Final = "a file of metadata cannot be: {}"
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
        raise MetadataError(_IMPOSSIBLE.format(fault), remedy=FIND_OUT)
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


def assembled(root: bytes, targets: bytes, lists: Mapping[str, bytes]) -> Authored:
    """Return the metadata that files hold; of their signatures only the root's own are checked.

    Args:
        root: The first root.
        targets: The targets.
        lists: The lists, by role.

    Raises:
        MetadataError: One is malformed, or the root has not signed itself.
    """
    read_root = read(root, Root)
    made = Authored(
        roots=(root,),
        root=read_root,
        targets=read(targets, Targets),
        lists={name: read(data, Targets) for name, data in lists.items()},
        content={TARGETS: targets, **lists},
    )
    _check_root(made)
    if read_root.signed.version != 1 or not made.signatures(ROOT).are_enough:
        raise MetadataError("the first root does not have the version 1, or is not signed")
    return made


def changed(before: Authored, files: Iterable[MetadataFile]) -> Authored:
    """Return metadata with newer files in it; signatures are not checked, see `check`.

    Args:
        before: What holds now, verified.
        files: Roots, targets and lists, in any order; those that hold already change nothing.

    Returns:
        The metadata.

    Raises:
        MetadataError: A file is malformed, or its version does not follow.
    """
    now = before
    parsed = sorted(((*parse_file_name(file.name), file.content.encode()) for file in files),
                    key=lambda item: (item[0] != ROOT, item[1] or 0))  # fmt: skip
    for role, version, data in parsed:
        if role in {SNAPSHOT, TIMESTAMP}:
            continue  # the controller makes them
        if role == ROOT:
            now = _with_root(now, data, version or 0)
        else:
            now = _with_list(now, role, data, version or 0)
    return now


def check(metadata: Authored) -> None:
    """Insist that every file is signed by the keys of its role, and says what can be.

    Raises:
        MetadataError: One is not.
    """
    check_content(metadata)
    for role in (TARGETS, *metadata.lists):
        found = metadata.signatures(role)
        if not found.are_enough:
            raise MetadataError(
                f"{role} has {found.valid} of {found.needed} needed signatures",
                remedy=f"sign it with a key of the role {role}: fleet key sign DRAFT --key KEY",
            )


def check_content(metadata: Authored) -> None:
    """Insist that the files together say what can be, whoever has signed them.

    Raises:
        MetadataError: They do not.
    """
    _check_root(metadata)
    _check_delegations(metadata)
    for role, listed in metadata.lists.items():
        if role == DIRECTOR or role not in metadata.roles():
            raise MetadataError(f"{role[:64]!a} lists no releases")
        if listed.signed.delegations is not None:
            raise MetadataError(f"the list {role} delegates, which devices do not follow")
        for path in listed.signed.targets:
            if metadata.role_of(path) != role:
                raise MetadataError(
                    f"{role} lists {path}, which is for another role to list",
                    remedy="sign the list without it",
                )


def check_keys(before: Authored, after: Authored) -> None:
    """Insist that no role whose keys are new has one key twice.

    What held is not looked at: it must stay readable, so that its keys can be changed.

    Args:
        before: What held.
        after: What shall hold.

    Raises:
        MetadataError: One has.
    """
    for role in after.roles():
        keys = after.keys(role)
        if keys != before.keys(role) and (fault := twice(keys)) is not None:
            raise MetadataError(_IMPOSSIBLE.format(fault), remedy=FIND_OUT)


def check_ends(before: Authored, after: Authored, now_s: float) -> None:
    """Insist that what is new has not ended, ends within two years and is of today.

    Args:
        before: What held.
        after: What shall hold.
        now_s: Wall time.

    Raises:
        MetadataError: A file does not.
    """
    for role in (ROOT, TARGETS, *after.lists):
        document = after.document(role)
        if role in {ROOT, *before.content} and document is before.document(role):
            continue
        rest_s = document.signed.expires.timestamp() - now_s
        # The very next version is right whatever the time: a clock may once have been ahead.
        known = _newest(before, role)
        most = max(now_s + AHEAD_S, known + 1)
        if role != ROOT and document.signed.version > most:
            raise MetadataError(
                f"version {document.signed.version} of {role} lies in the future",
                remedy="versions are seconds since 1970: set the clock of who signs right",
            )
        if not 0 < rest_s <= LONGEST_S:
            raise MetadataError(
                f"{role} would end on {document.signed.expires:%Y-%m-%d}",
                remedy="sign it with an end within the next two years",
            )


def check_follows(before: Authored, version: int) -> None:
    """Insist that a root has the version after the newest one.

    Raises:
        MetadataError: It has another.
    """
    newest = before.root.signed.version
    if version != newest + 1 or version > MAX_ROOTS:
        raise MetadataError(
            f"version {version} of the root does not follow version {newest}", remedy=AGAIN
        )


def check_same_fleet(before: Authored, after: Authored) -> None:
    """Insist that a root is of the fleet of the one before.

    Raises:
        MetadataError: It is not.
    """
    if after.fleet != before.fleet:
        raise MetadataError("the root belongs to another fleet")


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


def _with_root(now: Authored, data: bytes, version: int) -> Authored:
    newest = now.root.signed.version
    if version <= newest:
        if now.roots[version - 1] != data:
            raise MetadataError(f"version {version} of the root is another one", remedy=AGAIN)
        return now
    root = read(data, Root)
    check_follows(now, root.signed.version)
    found = root.signed.get_root_verification_result(
        now.root.signed, root.signed_bytes, root.signatures
    )
    if not found.verified:
        short = found.first if not found.first.verified else found.second
        raise MetadataError(
            f"version {version} of the root has {len(short.signed)} of {short.threshold} needed "
            "signatures",
            remedy="sign its draft with more root keys: fleet key sign DRAFT --key KEY; a new root "
            "needs those of the root before it and its own",
        )
    made = replace(now, root=root, roots=(*now.roots, data))
    check_same_fleet(now, made)
    _check_root(made)
    return made


def _with_list(now: Authored, role: str, data: bytes, version: int) -> Authored:
    if now.content.get(role) == data:
        return now
    metadata = read(data, Targets)
    newest = _newest(now, role)
    if metadata.signed.version != version or version <= newest:
        raise MetadataError(
            f"version {metadata.signed.version} of {role} does not follow version {newest}",
            remedy=AGAIN,
        )
    content = {**now.content, role: data}
    if role == TARGETS:
        return without_strays(replace(now, targets=metadata, content=content))
    return replace(now, lists={**now.lists, role: metadata}, content=content)


def _newest(now: Authored, role: str) -> int:
    """Return the newest version that there was of the targets or of a list; 0 for none."""
    known = int(now.document(role).signed.version) if role in now.content else 0
    return max(known, now.former.get(role, 0))


def _check_root(metadata: Authored) -> None:
    signed = metadata.root.signed
    if not metadata.fleet or not signed.consistent_snapshot:
        raise MetadataError(f"the root has no {FLEET_FIELD}, or no consistent snapshots")
    for role, wanted in signed.roles.items():
        if not 1 <= wanted.threshold <= len(wanted.keyids):
            raise MetadataError(
                f"{role} needs {wanted.threshold} signatures and has {len(wanted.keyids)} keys"
            )


def _check_delegations(metadata: Authored) -> None:
    """Insist that what devices need of the delegations is there.

    Raises:
        MetadataError: It is not.
    """
    delegations = metadata.targets.signed.delegations
    roles = {} if delegations is None else delegations.roles or {}
    for needed in (DIRECTOR, RELEASES):
        if needed not in roles:
            raise MetadataError(f"the targets name no keys of the role {needed}")
    for single in (SNAPSHOT, TIMESTAMP, DIRECTOR):
        if metadata.threshold(single) != 1:
            raise MetadataError(
                f"{single} would need {metadata.threshold(single)} signatures, and the controller "
                "has one key for it",
                remedy=f"let one key sign {single}: --threshold 1",
            )
    for name, role in roles.items():
        if name != DIRECTOR and not is_role(name):
            raise MetadataError(f"{name[:64]!r} is no name of a role")
        if not 1 <= role.threshold <= len(role.keyids):
            raise MetadataError(
                f"{name} needs {role.threshold} signatures and has {len(role.keyids)} keys"
            )
        if name != DIRECTOR and name not in metadata.lists:
            raise MetadataError(f"the list of the role {name} is missing")
    if any(key.keytype != ED25519 for key in metadata.keys(DIRECTOR).values()):
        raise MetadataError(
            "a key of the director is not Ed25519, the only kind that devices check",
            remedy="make one with `fleet key generate FILE`",
        )


def _plain(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:200].lower()
