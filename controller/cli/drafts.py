"""A change of trusted metadata: it is signed and sent, or waits in a file for others who sign.

Rules:
- A change is signed here, never at the controller: it has no key for it.
- A change that lacks signatures is written into a file for the next one who signs; nothing is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from controller.cli.errors import ArgumentError
from controller.cli.seen import check_newest, remember
from controller.cli.signing import check_root
from controller.client.fleet import Fleet
from controller.metadata_schemas import MetadataState
from wire.console.output import remark, write
from wire.errors import FleetError
from wire.files import open_file
from wire.trust.roles import ROOT, TARGETS

if TYPE_CHECKING:
    from controller.metadata.documents import Authored, Signatures
    from packager.package.signers import KeySigner


def finish(
    api: Fleet,
    before: Authored,
    after: Authored,
    signers: Sequence[KeySigner],
    draft: Path | None,
) -> MetadataState | None:
    """Sign a change and send it, or write it down for the next one who signs.

    Args:
        api: The controller.
        before: What holds.
        after: What shall hold.
        signers: The keys at hand.
        draft: Where to write a change that lacks signatures.

    Returns:
        What holds now; None if it was written down.

    Raises:
        ArgumentError: Signatures are missing, and nothing says where to write it.
        FleetError: The controller refuses it.
    """
    from controller.metadata.checks import check_keys
    from controller.metadata.drafts import difference
    from controller.metadata.signing import lacking, signed

    check_keys(before, after)
    after = signed(after, signers)
    for line in difference(before, after):
        remark(line)
    missing = lacking(after)
    if not missing:
        return send(api, before, after, draft)
    if draft is None:
        raise ArgumentError(
            f"the change is not signed enough: {told(missing)}",
            remedy="add --key for keys of these roles (`fleet key status` names them), or "
            "--draft FILE to let others sign",
        )
    keep_draft(draft, before, after, is_new=True)
    write(f"wrote {draft}: {told(missing)}")
    remark(f"next: fleet key sign {draft} --key KEY")
    return None


def send(api: Fleet, before: Authored, after: Authored, draft: Path | None = None) -> MetadataState:
    """Send a change that is signed.

    Raises:
        FleetError: The controller refuses it.
    """
    from controller.metadata.drafts import changed_roles
    from controller.metadata.signing import changed_files

    changes = changed_files(before, after)
    state = api.metadata.submit({file.name: file.content for file in changes})
    remember(after, changed_roles(before, after))
    remark(f"signed and sent{'; no draft was needed' if draft else ''}")
    return state


def sign_draft(
    path: Path, signers: Sequence[KeySigner], root: Path | None, *, is_agreed: bool
) -> None:
    """Add signatures to a draft, after showing what it changes.

    Args:
        path: The draft.
        signers: The keys at hand.
        root: A root of the fleet that is known.
        is_agreed: Whether nobody is asked.

    Raises:
        ArgumentError: No key at hand adds anything, or it cannot be written.
        FleetError: It is no draft.
    """
    from controller.metadata.drafts import changed_roles, difference
    from controller.metadata.signing import lacking, signed

    before, after = load_draft(path)
    check_root(before, root)
    # Who signs one file vouches with it for the keys and the lists that the draft goes by.
    check_newest(before, {ROOT, TARGETS, *changed_roles(before, after)})
    for line in difference(before, after):
        remark(line)
    missing = lacking(after)
    if missing and not is_agreed:
        _ask()
    if missing and (made := signed(after, signers)) == after:
        names = ", ".join(signer.public_key.keyid[:16] for signer in signers) or "no key"
        raise ArgumentError(
            f"nothing to sign for {names}: {told(missing)}",
            remedy="add --key with a key of such a role that has not signed yet",
        )
    if missing:
        missing = lacking(made)
        keep_draft(path, before, made, is_new=False)
    write(f"{path}: {told(missing) or 'signed enough'}")
    remark(f"next: fleet key {'sign' if missing else 'submit'} {path}")


def keep_draft(path: Path, before: Authored, after: Authored, *, is_new: bool) -> None:
    """Write a change that lacks signatures to a file.

    Raises:
        ArgumentError: It cannot be written, or is there and must be new.
    """
    from controller.metadata.drafts import write_draft
    from wire.files import PUBLIC, write_atomic, write_new

    content = write_draft(before, after)
    try:
        (write_new if is_new else write_atomic)(path, content, mode=PUBLIC)
    except FileExistsError as exc:
        raise ArgumentError(
            f"{path} exists already", remedy="name another file with --draft"
        ) from exc
    except OSError as exc:
        raise ArgumentError(f"cannot write {path}: {exc.strerror}") from exc


def load_draft(path: Path) -> tuple[Authored, Authored]:
    """Read a draft: what held when it was written, and what shall hold.

    Raises:
        ArgumentError: It cannot be read.
        FleetError: It is no draft.
    """
    from controller.metadata.drafts import MAX_DRAFT_BYTES, read_draft

    try:
        with open_file(path) as file:
            data = file.read(MAX_DRAFT_BYTES + 1)
    except OSError as exc:
        raise ArgumentError(
            f"cannot read {path}: {(exc.strerror or str(exc)).lower()}",
            remedy="name a file that --draft of `fleet key` wrote",
        ) from exc
    try:
        return read_draft(data)
    except FleetError as exc:
        raise ArgumentError(f"{path}: {exc.message}", remedy=exc.remedy) from exc


def _ask() -> None:
    """Ask whether to sign.

    Raises:
        ArgumentError: The answer is no, or nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise ArgumentError(
            "nobody can be asked whether this is right", remedy="read it, and add --yes"
        )
    if not typer.confirm("sign this?", err=True):
        raise ArgumentError("nothing was signed")


def told(missing: Mapping[str, Signatures]) -> str:
    """Return which signatures are missing, for people; empty if none."""
    return "; ".join(
        f"{role} has {found.valid} of {found.needed} signatures" for role, found in missing.items()
    )
