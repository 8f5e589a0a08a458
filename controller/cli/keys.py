"""`fleet key ...`: keys that sign, and trusted metadata that says what each may sign."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.drafts import finish, load_draft, send, sign_draft, told
from controller.cli.errors import ArgumentError
from controller.cli.key_roles import key_delegate, key_revoke, key_rotate, key_undelegate
from controller.cli.key_view import show_change, show_lists, show_state
from controller.cli.output import write_json
from controller.cli.seen import check_newest
from controller.cli.signing import (
    DraftOption,
    KeysOption,
    RootOption,
    SecretOption,
    Signing,
    check_root,
    current,
    needed,
    needed_files,
    open_keys,
    root_of,
    secret_of,
    warn_of_extra,
)
from wire.clock import SystemClock
from wire.console.output import remark, write, write_fields, write_lines

if TYPE_CHECKING:
    from packager.package.signers import PublicKey

DRAFT_SUFFIX = ".draft"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "generate": key_generate,
        "show": key_show,
        "review": key_review,
        "init": key_init,
        "status": key_status,
        "rotate": key_rotate,
        "revoke": key_revoke,
        "delegate": key_delegate,
        "undelegate": key_undelegate,
        "sign": key_sign,
        "submit": key_submit,
        "export": key_export,
    }
    add_group(app, "key", "Make keys, and say what each may sign.", commands)


def key_generate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write the key to.")],
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="ed25519, or ecdsa on the curve P-256.")
    ] = "ed25519",
    secret_file: SecretOption = None,
) -> None:
    """Make a signing key, and print its name and public half.

    With --passphrase-file, or of the kind ecdsa, the file is PEM; else it has 32 secret bytes.

    Examples:
        fleet key generate release.key
        fleet key generate root-4.key --passphrase-file root-4.txt
    """  # noqa: DOC501 - is the help text
    from packager.package.keys import generate_key
    from packager.package.signers import KINDS, generate_pem
    from wire.trust.root import encode_key

    if kind not in KINDS:
        raise ArgumentError(f"--kind: {kind!r} is none", remedy=f"use one of: {', '.join(KINDS)}")
    if kind == "ed25519" and secret_file is None:
        key = generate_key(file)
        write_fields((("key id", key.keyid), ("public key", encode_key(key.public_key))))
        return
    passphrase = secret_of(secret_file)("passphrase") if secret_file is not None else ""
    public = generate_pem(file, kind, passphrase)
    write_fields(_fields(public))
    warn_of_extra([public])


def key_show(
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="A key: as for --key of `fleet key sign`.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the public half as PEM."),
    ] = None,
    secret_file: SecretOption = None,
) -> None:
    """Print the name and the public half of a key.

    Examples:
        fleet key show release.key
        fleet key show 'hsm:2?label=fleet' -o root-2.pem
    """  # noqa: DOC501 - is the help text
    from packager.package.signers import open_public, public_pem
    from wire.files import write_named

    public = open_public(key, secret_of(secret_file))
    if output is not None:
        try:
            write_named(output, public_pem(public))
        except OSError as exc:
            raise ArgumentError(f"cannot write {output}: {exc.strerror}") from exc
        remark(f"wrote {output}")
    write_fields(_fields(public))


def key_init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The controller's directory.")],
    offline_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where release.key lies and the new keys go; DIR-offline by default.",
        ),
    ] = None,
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Make another root, with all keys but the director's new: most keys of the root "
            "are stolen or lost. Each device then needs the new root.json.",
        ),
    ] = False,
) -> None:
    """Make the first trusted metadata of a fleet that has none, or with --anew another.

    `fleet init` does this for a new fleet; an earlier version did not. Start the controller again
    afterwards, publish each release again, and give root.json to the devices (docs/trust.md).

    Examples:
        fleet key init my-fleet
        fleet key init my-fleet --anew --offline-keys my-fleet-offline-2
    """  # noqa: DOC501 - is the help text
    from controller.app.existing_trust import add_metadata, begin_anew

    if not anew:
        root = add_metadata(directory, offline_keys)
    elif offline_keys is None:
        raise ArgumentError(
            "--anew needs a place for the new keys", remedy="add --offline-keys DIR, a new folder"
        )
    else:
        root, aside = begin_anew(directory, offline_keys)
        remark(f"what was believed until now lies in {aside}")
        remark(f"the new keys lie in {offline_keys}: take them away from here (docs/security.md)")
    write(f"made {root}, which devices get as `trust` in agent.toml")
    remark("start the controller again, then publish each release again")


def key_status(
    context: typer.Context,
    releases: Annotated[
        bool, typer.Option("--releases", help="Show what each list has, published or not.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show who may sign what, and until when it counts.

    Examples:
        fleet key status
        fleet key status --releases
    """
    with connect(context) as api:
        if releases:
            show_lists(current(api), as_json=as_json)
            return
        found = api.metadata.state()
    if as_json:
        write_json(found)
        return
    show_state(found)


def key_sign(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="A draft to add signatures to (FILE.draft, or a path with a slash), or a role to "
            "sign for another year.",
        ),
    ],
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Sign a draft without asking whether it is right.")
    ] = False,
) -> None:
    """Sign a draft, or the file of a role as it is for another year.

    A draft is signed without a controller: carry it to where the key is. The command shows what it
    changes, and asks. `fleet key submit` sends it when it is signed enough.

    Examples:
        fleet key sign root-4.draft --key /media/stick/root-2.key
        fleet key sign targets --key my-fleet-offline/targets.key
    """  # noqa: DOC501 - is the help text
    from controller.metadata.edit import put, renewed
    from controller.metadata.signing import with_stale

    signing = Signing(keys, secret_file, draft, root)
    is_draft = "/" in what or what.endswith(DRAFT_SUFFIX)  # a role may have dots in its name
    if is_draft and draft is not None:
        raise ArgumentError(
            f"{what} is a draft already", remedy="leave --draft out: it is signed where it lies"
        )
    signers = open_keys(context, signing)
    if is_draft:
        sign_draft(Path(what), signers, root_of(context, signing), is_agreed=yes)
        return
    now_s = SystemClock().now_s()
    with connect(context) as api:
        before = needed(api, root_of(context, signing))
        after = with_stale(put(before, what, renewed(before, what, now_s)), now_s)
        show_change(finish(api, before, after, signers, draft))


def key_review(
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="A draft.")],
) -> None:
    """Show what a draft changes, and which signatures it lacks.

    Examples:
        fleet key review root-4.draft
    """
    from controller.metadata.drafts import difference
    from controller.metadata.signing import lacking

    before, after = load_draft(draft)
    write_lines(difference(before, after))
    missing = lacking(after)
    write(told(missing) if missing else f"signed enough: fleet key submit {draft}")


def key_submit(
    context: typer.Context,
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="A draft that is signed.")],
) -> None:
    """Send a signed draft to the controller.

    Examples:
        fleet key submit root-4.draft
    """  # noqa: DOC501 - is the help text
    from controller.metadata.signing import lacking

    before, after = load_draft(draft)
    if missing := lacking(after):
        raise ArgumentError(
            f"{draft} is not signed enough: {told(missing)}",
            remedy=f"fleet key sign {draft} --key KEY",
        )
    with connect(context) as api:
        show_state(send(api, before, after))


def key_export(
    context: typer.Context,
    to: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    root: RootOption = None,
) -> None:
    """Write the newest metadata to a file, for a device without a network.

    Examples:
        fleet key export /media/stick/metadata.json
    """  # noqa: DOC501 - is the help text
    from controller.metadata.store import authored_of
    from wire.codec import to_json
    from wire.files import write_named
    from wire.metadata import MetadataFiles

    with connect(context) as api:
        files = needed_files(api)
    # `fleet package --trust` believes this file.
    shown = authored_of(files)
    check_root(shown, root_of(context, Signing(root=root)))
    check_newest(shown)
    try:
        write_named(to, to_json(MetadataFiles(files=files)))
    except OSError as exc:
        raise ArgumentError(f"cannot write {to}: {exc.strerror}") from exc
    write(f"wrote {to}; on the device: fleet-agent trust {to}")


def _fields(public: PublicKey) -> tuple[tuple[str, str], ...]:
    """Return the name and the public half of a key, for people."""
    text = str(public.keyval["public"])
    if public.keytype == "ed25519":
        text = base64.b64encode(bytes.fromhex(text)).decode()
    else:  # PEM without its frame: one line
        text = "".join(line for line in text.splitlines() if not line.startswith("-"))
    return (("key id", public.keyid), ("kind", public.scheme), ("public key", text))
