"""Puts signatures under changed metadata, and tells which are missing."""

from __future__ import annotations

import copy
from collections.abc import Iterable

from securesystemslib.signer import Signer
from tuf.api.metadata import Root

from controller.metadata.documents import Authored, Document, Signatures
from controller.metadata.edit import put, renewed
from wire.messages import MetadataFile
from wire.trust.roles import ROOT, TARGETS


def changed_roles(before: Authored, after: Authored) -> list[str]:
    """Return the roles whose files differ, the root first."""
    roles = [ROOT] if after.roots != before.roots else []
    return roles + [
        role for role, data in after.content.items() if before.content.get(role) != data
    ]


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


def signed(before: Authored, after: Authored, signers: Iterable[Signer]) -> Authored:
    """Return changed metadata with the signatures of those keys that may sign each file.

    Args:
        before: What holds now; its root keys must sign a new root, too.
        after: What shall hold.
        signers: The keys at hand.
    """
    all_signers = list(signers)
    for role in changed_roles(before, after):
        allowed = {*after.keys(role), *(before.keys(ROOT) if role == ROOT else ())}
        document: Document = copy.deepcopy(after.document(role))
        for signer in all_signers:
            if signer.public_key.keyid in allowed:
                document.sign(signer, append=True)
        after = put(after, role, document)
    return after


def missing(before: Authored, after: Authored) -> dict[str, Signatures]:
    """Return how far those changed files are signed that are not signed enough, by role.

    Args:
        before: What holds now.
        after: What shall hold.
    """
    found: dict[str, Signatures] = {}
    for role in changed_roles(before, after):
        if role == ROOT:
            root: Root = after.root.signed
            result = root.get_root_verification_result(
                before.root.signed, after.root.signed_bytes, after.root.signatures
            )
            parts = (result.first, result.second)
            short = [part for part in parts if not part.verified]
            if short:
                found[role] = Signatures(len(short[0].signed), short[0].threshold)
        elif not (signatures := after.signatures(role)).are_enough:
            found[role] = signatures
    return found


def changed_files(before: Authored, after: Authored) -> tuple[MetadataFile, ...]:
    """Return the files of the roles that differ, as the controller takes them."""
    known = set(before.files())
    return tuple(file for file in after.files() if file not in known)
