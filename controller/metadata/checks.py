"""What metadata must say so that it is signed, sent and taken. Pure.

Rules:
- A set is taken only as a whole that verifies: each file by the keys that the others give to its
  role. So no change can leave a list behind that no device would believe.
- What held is not looked at again where it could not be changed any more.
"""

from __future__ import annotations

from controller.metadata.documents import (
    AGAIN,
    AHEAD_S,
    FIND_OUT,
    IMPOSSIBLE,
    LONGEST_S,
    Authored,
    newest,
)
from controller.metadata.errors import MetadataError
from controller.metadata.public_keys import twice
from wire.metadata import MAX_ROOTS
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
    check_root(metadata)
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
            raise MetadataError(IMPOSSIBLE.format(fault), remedy=FIND_OUT)


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
        known = newest(before, role)
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
    known = before.root.signed.version
    if version != known + 1 or version > MAX_ROOTS:
        raise MetadataError(
            f"version {version} of the root does not follow version {known}", remedy=AGAIN
        )


def check_same_fleet(before: Authored, after: Authored) -> None:
    """Insist that a root is of the fleet of the one before.

    Raises:
        MetadataError: It is not.
    """
    if after.fleet != before.fleet:
        raise MetadataError("the root belongs to another fleet")


def check_root(metadata: Authored) -> None:
    """Insist that the newest root says what devices follow, and that its thresholds can be met.

    Raises:
        MetadataError: It does not.
    """
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
