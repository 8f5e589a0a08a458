"""What commands share that change trusted metadata: keys at hand, drafts, and sending it.

Rules:
- A change is signed here, never at the controller: it has no key for it.
- A change that lacks signatures is written into a file for the next one who signs; nothing is sent.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.arguments import ConnectionOptions
from controller.cli.client import ApiClient
from controller.cli.errors import ArgumentError, FaultError
from controller.schemas import MetadataState, MetadataSubmission
from wire.console.output import remark, write
from wire.errors import FleetError
from wire.files import open_file

if TYPE_CHECKING:
    from controller.metadata.documents import Authored, Signatures
    from packager.package.signers import KeySigner
    from wire.messages import MetadataFile

MAX_SECRET_BYTES = 4096

KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="KEY",
        envvar="FLEET_KEY",
        help="A key to sign with: a file, hsm:NUMBER?label=TOKEN, awskms:, gcpkms:, azurekms: or "
        "hv:; may be given more than once. The default is all keys that `fleet init` made beside "
        "the controller's directory, while they are there.",
    ),
]
SecretOption = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        envvar="FLEET_PASSPHRASE_FILE",
        help="The passphrase or PIN of the keys, on one line. The default is to ask for it.",
    ),
]
DraftOption = Annotated[
    Path | None,
    typer.Option(
        "--draft",
        metavar="FILE",
        help="Where signatures are missing: write the change to this file, for the next one who "
        "signs.",
    ),
]


def current(api: ApiClient) -> Authored | None:
    """Return what people have signed of the fleet's metadata; None for a fleet without it.

    Raises:
        FleetError: The controller does not answer, or its metadata cannot be believed.
    """
    from controller.metadata.store import authored_of

    files = newest_files(api)
    return authored_of(files) if files else None


def newest_files(api: ApiClient) -> tuple[MetadataFile, ...]:
    """Return all files of the fleet's metadata; none for a fleet without it.

    Raises:
        FaultError: The controller refuses.
    """
    from wire.messages import MetadataFile

    try:
        found = api.get("/v1/metadata/files", MetadataSubmission)
    except FaultError as exc:
        if exc.status == 404:  # noqa: PLR2004 - HTTP; also a controller of an earlier version
            return ()
        raise
    return tuple(MetadataFile(name=name, content=text) for name, text in found.files.items())


def needed(api: ApiClient) -> Authored:
    """Return what people have signed of the fleet's metadata.

    Raises:
        ArgumentError: The fleet has none.
    """
    if (found := current(api)) is None:
        raise ArgumentError(
            "this fleet has no trusted metadata",
            remedy="make it with `fleet key init DIR`, DIR being the controller's directory",
        )
    return found


def open_keys(
    context: typer.Context, keys: Sequence[str] | None, secret_file: Path | None
) -> list[KeySigner]:
    """Open the keys to sign with.

    Args:
        context: Says where the controller's directory is.
        keys: As given; none for those beside the controller's directory.
        secret_file: Has their passphrase or PIN.

    Returns:
        What signs; empty if none is at hand.

    Raises:
        KeyFileError: One cannot be used.
    """
    from packager.package.signers import open_signer

    secret = secret_of(secret_file)
    return [open_signer(key, secret) for key in keys or _beside(context)]


def secret_of(secret_file: Path | None) -> Callable[[str], str]:
    """Return what gives the passphrase or PIN of keys.

    Args:
        secret_file: A file with it; None to ask for it.
    """

    def secret(what: str) -> str:
        if secret_file is not None:
            return _secret(secret_file)
        if not sys.stdin.isatty():
            raise ArgumentError(f"the {what} is needed", remedy="add --passphrase-file FILE")
        return getpass.getpass(f"{what}: ")

    return secret


def finish(
    api: ApiClient,
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
    from controller.metadata.drafts import difference
    from controller.metadata.signing import lacking, signed

    after = signed(after, signers)
    for line in difference(before, after):
        remark(line)
    missing = lacking(after)
    if not missing:
        return send(api, before, after, draft)
    if draft is None:
        raise ArgumentError(
            f"the change is not signed enough: {_told(missing)}",
            remedy="add --key for keys of these roles (`fleet key status` names them), or "
            "--draft FILE to let others sign",
        )
    keep_draft(draft, before, after, is_new=True)
    write(f"wrote {draft}: {_told(missing)}")
    remark(f"next: fleet key sign {draft} --key KEY")
    return None


def send(
    api: ApiClient, before: Authored, after: Authored, draft: Path | None = None
) -> MetadataState:
    """Send a change that is signed.

    Raises:
        FleetError: The controller refuses it.
    """
    from controller.metadata.signing import changed_files

    changes = changed_files(before, after)
    body = MetadataSubmission(files={file.name: file.content for file in changes})
    state = api.send("POST", "/v1/metadata", MetadataState, body)
    remark(f"signed and sent{'; no draft was needed' if draft else ''}")
    return state


def sign_draft(path: Path, signers: Sequence[KeySigner]) -> None:
    """Add signatures to a draft.

    Args:
        path: The draft.
        signers: The keys at hand.

    Raises:
        ArgumentError: No key at hand adds anything, or it cannot be written.
        FleetError: It is no draft.
    """
    from controller.metadata.drafts import difference
    from controller.metadata.signing import lacking, signed

    before, after = load_draft(path)
    for line in difference(before, after):
        remark(line)
    missing = lacking(after)
    if missing and (made := signed(after, signers)) == after:
        names = ", ".join(signer.public_key.keyid[:16] for signer in signers) or "no key"
        raise ArgumentError(
            f"nothing to sign for {names}: {_told(missing)}",
            remedy="add --key with a key of such a role that has not signed yet",
        )
    if missing:
        missing = lacking(made)
        keep_draft(path, before, made, is_new=False)
    write(f"{path}: {_told(missing) or 'signed enough'}")
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


def _told(missing: Mapping[str, Signatures]) -> str:
    return "; ".join(
        f"{role} has {found.valid} of {found.needed} signatures" for role, found in missing.items()
    )


def home_of(context: typer.Context) -> Path | None:
    """Return the controller's directory that the command line or FLEET_HOME names, or None."""
    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    if options.home is not None or options.url is not None:
        return options.home
    return Path(os.environ["FLEET_HOME"]) if os.environ.get("FLEET_HOME") else None


def _beside(context: typer.Context) -> list[str]:
    from controller.app.home import (
        RELEASE_KEY_FILE,
        ROOT_KEY_FILES,
        TARGETS_KEY_FILE,
        offline_directory,
    )

    home = home_of(context)
    if home is None:
        return []
    names = (*ROOT_KEY_FILES, TARGETS_KEY_FILE, RELEASE_KEY_FILE)
    paths = [offline_directory(home) / name for name in names]
    return [str(path) for path in paths if path.exists()]


def _secret(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read(MAX_SECRET_BYTES).decode(errors="replace").rstrip("\r\n")
    except OSError as exc:
        raise ArgumentError(f"cannot read {path}: {exc.strerror}") from exc
