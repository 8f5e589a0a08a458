"""What commands share that change trusted metadata: keys at hand, drafts, and sending it.

Rules:
- A change is signed here, never at the controller: it has no key for it.
- A change that lacks signatures is written into a file for the next one who signs; nothing is sent.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
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
MAX_ROOT_BYTES = 256 * 1024

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
RootOption = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="FILE",
        envvar="FLEET_ROOT",
        help="A root of the fleet that you trust; the default is root.json beside the key or in "
        "the controller's directory.",
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


def needed(api: ApiClient, root: Path | None) -> Authored:
    """Return what people have signed of the fleet's metadata, beginning with a root that is known.

    Args:
        api: The controller: it may show whatever it wants.
        root: A root of this fleet, of any version; see `root_of`.

    Raises:
        ArgumentError: The fleet has none, or what is shown is not of that root.
    """
    if (found := current(api)) is None:
        raise ArgumentError(
            "this fleet has no trusted metadata",
            remedy="make it with `fleet key init DIR`, DIR being the controller's directory",
        )
    check_root(found, root)
    return found


def check_root(metadata: Authored, root: Path | None) -> None:
    """Insist that metadata follows a root that is known: else its keys could be anybody's.

    Raises:
        ArgumentError: It does not, or no root is known.
    """
    if root is None:
        raise ArgumentError(
            "nothing says which fleet this is: what a controller shows may be a thief's",
            remedy="add --root FILE: the root.json that `fleet init` made",
        )
    try:
        with open_file(root) as file:
            known = file.read(MAX_ROOT_BYTES)
    except OSError as exc:
        raise ArgumentError(
            f"cannot read {root}: {(exc.strerror or str(exc)).lower()}",
            remedy="name the root.json that `fleet init` made with --root FILE",
        ) from exc
    if known not in metadata.roots:
        raise ArgumentError(
            f"the metadata does not follow {root}: it is another fleet's, or somebody changed it",
            remedy="sign nothing; compare with the root.json of a device",
        )


def root_of(context: typer.Context, root: Path | None, keys: Sequence[str] | None) -> Path | None:
    """Return the root that is known: as given, else beside a key, else of the directory.

    Args:
        context: Says where the controller's directory is.
        root: As given.
        keys: The keys, as given.
    """
    from controller.app.home import ROOT_FILE, offline_directory

    if root is not None:
        return root
    places = [Path(key.removeprefix("file:")).parent for key in keys or ()]
    home = home_of(context)
    if home is not None:
        places += [offline_directory(home), home]
    return next((place / ROOT_FILE for place in places if (place / ROOT_FILE).exists()), None)


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


def open_private(keys: Sequence[str], secret_file: Path | None) -> list[KeySigner]:
    """Open those of some new keys whose private half is here: they sign what is theirs at once.

    Args:
        keys: As given: keys, or files with public halves.
        secret_file: Has their passphrase or PIN.
    """
    from packager.errors import KeyFileError
    from packager.package.signers import open_signer

    found: list[KeySigner] = []
    for key in keys:
        with contextlib.suppress(KeyFileError):
            found.append(open_signer(key, secret_of(secret_file)))
    return found


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
    from controller.metadata.drafts import difference
    from controller.metadata.signing import lacking, signed

    before, after = load_draft(path)
    check_root(before, root)
    for line in difference(before, after):
        remark(line)
    missing = lacking(after)
    if missing and not is_agreed:
        _ask()
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
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(MAX_SECRET_BYTES).decode(errors="replace").rstrip("\r\n")
    except OSError as exc:
        raise ArgumentError(f"cannot read {path}: {exc.strerror}") from exc
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ArgumentError(f"{path} can be read by others", remedy=f"run: chmod 600 {path}")
    if not text:
        raise ArgumentError(f"{path} is empty", remedy="write the passphrase or PIN into it")
    return text
