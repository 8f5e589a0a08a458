"""What commands share that change trusted metadata: the keys at hand, and which fleet it is.

Rules:
- What a controller shows is believed only if it follows a root that is known here, and is not older
  than what it showed before.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from controller.cli.errors import ArgumentError
from controller.cli.seen import check_newest
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.client.target import ConnectionOptions
from wire.console.output import remark
from wire.files import open_file

if TYPE_CHECKING:
    from controller.metadata.documents import Authored
    from packager.package.signers import KeySigner, PublicKey
    from wire.metadata import MetadataFile

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


class Signing(NamedTuple):
    """How a change is signed, as the options of a command say it."""

    keys: Sequence[str] | None = None
    secret_file: Path | None = None
    draft: Path | None = None
    root: Path | None = None


def current(api: Fleet) -> Authored | None:
    """Return what people have signed of the fleet's metadata; None for a fleet without it.

    Raises:
        FleetError: The controller does not answer, or its metadata cannot be believed.
    """
    from controller.metadata.store import authored_of

    files = newest_files(api)
    return authored_of(files) if files else None


def newest_files(api: Fleet) -> tuple[MetadataFile, ...]:
    """Return all files of the fleet's metadata; none for a fleet without it.

    Raises:
        FaultError: The controller refuses.
    """
    from wire.metadata import MetadataFile

    try:
        found = api.metadata.files()
    except FaultError as exc:
        if exc.status == 404:  # noqa: PLR2004 - HTTP; also a controller of an earlier version
            return ()
        raise
    return tuple(MetadataFile(name=name, content=text) for name, text in found.items())


def needed(api: Fleet, root: Path | None) -> Authored:
    """Return what people have signed of the fleet's metadata, beginning with a root that is known.

    Args:
        api: The controller: it may show whatever it wants.
        root: A root of this fleet, of any version; see `root_of`.

    Raises:
        ArgumentError: The fleet has none, or what is shown is not of that root, or old.
    """
    from controller.metadata.store import authored_of

    found = authored_of(needed_files(api))
    check_root(found, root)
    check_newest(found)
    return found


def needed_files(api: Fleet) -> tuple[MetadataFile, ...]:
    """Return all files of the fleet's metadata.

    Raises:
        ArgumentError: The fleet has none.
        FaultError: The controller refuses.
    """
    if not (files := newest_files(api)):
        raise ArgumentError(
            "this fleet has no trusted metadata",
            remedy="make it with `fleet key init DIR`, DIR being the controller's directory",
        )
    return files


def check_root(metadata: Authored, root: Path | None) -> None:
    """Insist that metadata follows a root that is known: else its keys could be anybody's.

    Raises:
        ArgumentError: It does not, or no root is known.
    """
    from controller.metadata.documents import is_root

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
    if not is_root(known):
        raise ArgumentError(
            f"{root} is no root of trusted metadata",
            remedy="name the root.json that `fleet init` made with --root FILE",
        )
    if known not in metadata.roots:
        raise ArgumentError(
            f"the metadata does not follow {root}: it is another fleet's, or somebody changed it",
            remedy="sign nothing; compare with the root.json of a device",
        )


def root_of(context: typer.Context, signing: Signing) -> Path | None:
    """Return the root that is known: as given, else beside a key, else of the directory.

    Args:
        context: Says where the controller's directory is.
        signing: The root and the keys, as given.
    """
    from controller.app.home import ROOT_FILE, offline_directory

    if signing.root is not None:
        return signing.root
    places = [Path(key.removeprefix("file:")).parent for key in signing.keys or ()]
    home = home_of(context)
    if home is not None:
        places += [offline_directory(home), home]
    return next((place / ROOT_FILE for place in places if (place / ROOT_FILE).exists()), None)


def open_keys(context: typer.Context, signing: Signing) -> list[KeySigner]:
    """Open the keys to sign with.

    Args:
        context: Says where the controller's directory is.
        signing: The keys as given; none for those beside the controller's directory.

    Returns:
        What signs; empty if none is at hand.

    Raises:
        KeyFileError: One cannot be used.
    """
    from packager.package.signers import open_signer

    secret = secret_of(signing.secret_file)
    return [open_signer(key, secret) for key in signing.keys or _beside(context)]


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


def warn_of_extra(added: Iterable[PublicKey], known: Iterable[PublicKey] = ()) -> None:
    """Say that devices need an extra to check new keys, unless they need it for others already.

    Args:
        added: The new keys.
        known: The keys that the fleet has.
    """
    from wire.trust.roles import ED25519

    def need_it(keys: Iterable[PublicKey]) -> bool:
        return any(key.keytype != ED25519 for key in keys)

    if need_it(added) and not need_it(known):
        remark(
            "warning: a device checks such a key only with the extra `ecdsa`: install "
            "'edgefleet[ecdsa]' on all devices before it signs (docs/trust.md)"
        )


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
