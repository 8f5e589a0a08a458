"""`fleet key ...`: who may sign what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Annotated

import typer

from controller.cli.connecting import connect
from controller.cli.drafts import finish
from controller.cli.errors import ArgumentError
from controller.cli.key_view import show_change
from controller.cli.signing import (
    DraftOption,
    KeysOption,
    RootOption,
    SecretOption,
    Signing,
    needed,
    open_keys,
    open_private,
    root_of,
    secret_of,
    warn_of_extra,
)
from wire.clock import SystemClock
from wire.console.output import remark

RoleArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROLE",
        help="root, targets, snapshot, timestamp, director, releases, or a model that has a role "
        "of its own.",
    ),
]
NewKeysOption = Annotated[
    list[str],
    typer.Option(
        "--to",
        metavar="KEY",
        help="The new key: as for --key, or a file with its public half; may be given more than "
        "once.",
    ),
]
ThresholdOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="How many keys must sign; as many as now by default."),
]


def key_rotate(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    role: RoleArgument,
    to: NewKeysOption,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once", help="Take all other keys from the role: one of them is stolen or lost."
        ),
    ] = False,
    threshold: ThresholdOption = None,
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
) -> None:
    """Give a role a new key.

    The others stay until `fleet key revoke` takes them, so that what they have signed goes on to
    count. What only they have signed is signed again, if a new key is at hand.

    Examples:
        fleet key rotate director --to my-fleet/keys/director-2.key
        fleet key rotate root --to root-4.pem --key root-1.key --draft root-4.draft
        fleet key rotate timestamp --to my-fleet/keys/timestamp-2.key --at-once
    """

    def removed(held: Collection[str], added: Collection[str]) -> list[str]:
        return [keyid for keyid in held if at_once and keyid not in added]

    _change(context, role, to, removed, threshold, Signing(keys, secret_file, draft, root))


def key_revoke(
    context: typer.Context,
    role: RoleArgument,
    keyid: Annotated[
        str,
        typer.Argument(metavar="KEYID", help="Name of the key, or the first digits of it."),
    ],
    threshold: ThresholdOption = None,
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
) -> None:
    """Take a key from a role: what it signs counts no more.

    Examples:
        fleet key revoke director 6f0c81d2
    """

    def removed(held: Collection[str], _added: Collection[str]) -> list[str]:
        found = [name for name in held if keyid and name.startswith(keyid)]
        if len(found) != 1:
            raise ArgumentError(
                f"{len(found)} keys of {role} begin with {keyid!r}",
                remedy="`fleet key status` shows their names",
            )
        return found

    _change(context, role, (), removed, threshold, Signing(keys, secret_file, draft, root))


def key_delegate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model's packages.")],
    to: NewKeysOption,
    threshold: ThresholdOption = None,
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
) -> None:
    """Give the releases of one model a role of their own: only its keys list them from then on.

    Those that are listed already move to the new list.

    Examples:
        fleet key delegate detector --to detector-team.pem --draft detector.draft
    """
    from controller.metadata.edit import RoleKeys, moved
    from packager.package.signers import open_public

    signing = Signing(keys, secret_file, draft, root)
    added = tuple(open_public(key, secret_of(secret_file)) for key in to)
    signers = [*open_keys(context, signing), *open_private(to, secret_file)]
    with connect(context) as api:
        before = needed(api, root_of(context, signing))
        warn_of_extra(added, before.all_keys())
        after = moved(before, model, RoleKeys(added, threshold or 1), SystemClock().now_s())
        show_change(finish(api, before, after, signers, draft))


def key_undelegate(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model's packages.")],
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
) -> None:
    """Take the role of a model away: the role `releases` lists its releases from then on.

    What the role had listed is listed no more, because a thief may have listed it. Publish again
    what is yours.

    Examples:
        fleet key undelegate detector --key targets.key
    """
    from controller.metadata.edit import undelegated

    signing = Signing(keys, secret_file, draft, root)
    signers = open_keys(context, signing)
    with connect(context) as api:
        before = needed(api, root_of(context, signing))
        after = undelegated(before, model, SystemClock().now_s())
        show_change(finish(api, before, after, signers, draft))
    remark(f"devices that serve {model} go on: fleet model remove {model} takes it from them")


def _change(
    context: typer.Context,
    role: str,
    to: Sequence[str],
    removed: Callable[[Collection[str], Collection[str]], list[str]],
    threshold: int | None,
    signing: Signing,
) -> None:
    """Change who may sign a role, and sign that.

    Args:
        context: Says where the controller is.
        role: The role.
        to: The new keys, as given.
        removed: Returns the names of the keys to take from it, of those that it has and the new.
        threshold: How many must sign; None for as many as now.
        signing: How that is signed.
    """
    from controller.metadata.edit import put, with_keys
    from controller.metadata.signing import with_stale
    from packager.package.signers import open_public
    from wire.trust.roles import ROOT, TARGETS, TOP_LEVEL

    added = [open_public(key, secret_of(signing.secret_file)) for key in to]
    signers = [*open_keys(context, signing), *open_private(to, signing.secret_file)]
    now_s = SystemClock().now_s()
    with connect(context) as api:
        before = needed(api, root_of(context, signing))
        warn_of_extra(added, before.all_keys())
        taken = removed(before.keys(role), {key.keyid for key in added})
        document = with_keys(before, role, now_s, add=added, remove=taken, threshold=threshold)
        after = put(before, ROOT if role in TOP_LEVEL else TARGETS, document)
        show_change(finish(api, before, with_stale(after, now_s), signers, signing.draft))
