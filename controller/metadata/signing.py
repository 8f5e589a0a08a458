"""Puts signatures under metadata that lacks some, and tells how many are missing."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from securesystemslib.signer import Key, Signer
from tuf.api.metadata import Root

from controller.metadata.documents import Authored, Signatures, read
from controller.metadata.edit import put, renewed
from wire.metadata import MetadataFile
from wire.trust.roles import ROOT, TARGETS


def with_stale(after: Authored, now_s: float) -> Authored:
    """Return metadata in which what lost its signatures by a change of keys is ready to be signed.

    Args:
        after: Changed metadata.
        now_s: Wall time.
    """
    for role in (TARGETS, *after.lists):
        if after.document(role).signatures and not after.signatures(role).are_enough:
            after = put(after, role, renewed(after, role, now_s))
    return after


def signed(metadata: Authored, signers: Iterable[Signer]) -> Authored:
    """Return metadata in which what lacks signatures has those of the keys that may sign it.

    Args:
        metadata: What shall hold.
        signers: The keys at hand.
    """
    all_signers = list(signers)
    for role in lacking(metadata):
        allowed = _allowed(metadata, role)
        document = copy.deepcopy(metadata.document(role))
        for signer in all_signers:
            if signer.public_key.keyid in allowed:
                document.sign(signer, append=True)
        metadata = put(metadata, role, document)
    return metadata


def lacking(metadata: Authored) -> dict[str, Signatures]:
    """Return how far the files are signed that are not signed enough, by role.

    A new root needs the keys of the root before it, and its own.
    """
    found: dict[str, Signatures] = {}
    root = metadata.root
    for before in metadata.roots[-2:]:
        result = read(before, Root).signed.get_verification_result(
            ROOT, root.signed_bytes, root.signatures
        )
        if not result.verified:
            found[ROOT] = Signatures(len(result.signed), result.threshold)
            break
    for role in (TARGETS, *metadata.lists):
        if not (signatures := metadata.signatures(role)).are_enough:
            found[role] = signatures
    return found


def changed_files(before: Authored, after: Authored) -> tuple[MetadataFile, ...]:
    """Return the files that differ, as the controller takes them."""
    known = set(before.files())
    return tuple(file for file in after.files() if file not in known)


def _allowed(metadata: Authored, role: str) -> dict[str, Key]:
    allowed = metadata.keys(role)
    if role == ROOT:
        for data in metadata.roots[-2:]:
            older = read(data, Root).signed
            allowed |= {keyid: older.get_key(keyid) for keyid in older.roles[ROOT].keyids}
    return allowed
