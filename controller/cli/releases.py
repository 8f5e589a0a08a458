"""`fleet release ...`: publish packages, look at them, revoke them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.ending import EXIT_NO
from controller.cli.errors import ArgumentError
from controller.cli.listing import unlist, unlisting
from controller.cli.lists import time_heading
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.cli.publishing import published
from controller.cli.registries import CaFileOption, ClearTextOption, fetched
from controller.cli.release_view import show_release, show_running, way_back
from controller.cli.signing import DraftOption, KeysOption, RootOption, SecretOption, Signing
from controller.client.errors import AnswerError, FaultError
from wire.console.output import write, write_lines, write_table
from wire.console.sizes import bytes_text
from wire.console.text import local_time

ReleaseArgument = Annotated[
    str,
    typer.Argument(
        metavar="RELEASE",
        help="The release as NAME:VERSION or its digest.",
        autocompletion=completion.releases,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "publish": release_publish,
        "list": release_list,
        "show": release_show,
        "revoke": release_revoke,
    }
    add_group(app, "release", "Publish packages.", commands)


def release_publish(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: typer.Context,
    package: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE",
            help="Directory of the package, or oci://HOST/REPOSITORY:TAG in a registry.",
        ),
    ],
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
    trust: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="For a package in a registry: the trust root of the fleet. The default is "
            "trust.json in the controller's directory.",
        ),
    ] = None,
    registry_ca_file: CaFileOption = None,
    registry_clear_text: ClearTextOption = False,
) -> None:
    """Upload a package to the controller, and list it as a release of its model.

    Devices take only what is listed, so a key that may list releases of the model must sign.
    Files that the controller has are not sent again. A package in a registry is pulled and verified
    first, into a temporary directory.

    Examples:
        fleet release publish detector-1.0.0 --key release.key
        fleet release publish oci://registry.example/team/detector:1.0.0
    """
    signing = Signing(keys, secret_file, draft, root)
    if package.lower().startswith("oci:"):
        with fetched(
            context, package, trust, registry_ca_file, clear_text=registry_clear_text
        ) as directory:
            _publish(context, directory, signing, as_json=as_json)
    else:
        _publish(context, Path(package), signing, as_json=as_json)


def _publish(context: typer.Context, package: Path, signing: Signing, *, as_json: bool) -> None:
    release = published(context, package, signing)
    if as_json:
        write_json(release)
        return
    write(f"published {release.name}:{release.version} {release.digest}")


def release_list(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Only those of this model.", metavar="MODEL")] = "",
    state: Annotated[
        str, typer.Option(help="Only published or revoked ones.", metavar="STATE")
    ] = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="KEY", help="By published, name or size.")
    ] = "",
    reverse: ReverseOption = False,
    limit: CountOption = None,
    cursor: CursorOption = "",
    as_json: JsonOption = False,
) -> None:
    """List releases, the newest first.

    Examples:
        fleet release list
        fleet release list --model detector --sort size
    """
    with connect(context) as api:
        listing = api.releases.list(model=model, state=state, sort=sort, reverse=reverse)
        releases = take(listing, limit, cursor)
    if as_json:
        write_json(releases)
        return
    published = time_heading("PUBLISHED", (r.published_at_s for r in releases))
    write_table(
        ("RELEASE", "STATE", "SIZE", published, "DIGEST"),
        [
            (
                f"{r.name}:{r.version}", r.state, bytes_text(r.size_bytes),
                local_time(r.published_at_s), r.digest,
            )
            for r in releases
        ],
        minor=(published,),
    )  # fmt: skip


def release_show(
    context: typer.Context, release: ReleaseArgument, as_json: JsonOption = False
) -> None:
    """Show a release, its variants, the devices that run it and the deltas to it.

    Examples:
        fleet release show detector:1.0.0
    """
    with connect(context) as api:
        found = api.releases.get(release)
    if as_json:
        write_json(found)
        return
    show_release(found)


def release_revoke(
    context: typer.Context,
    release: ReleaseArgument,
    keys: KeysOption = None,
    secret_file: SecretOption = None,
    draft: DraftOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forbid further rollouts of a release, and say which devices run it.

    They go on running it. The answer has the commands that bring them back to what they had before.
    With a key that may list releases of the model it is taken out of the list, too: then not even
    the thief of the controller's keys can order it.

    Examples:
        fleet release revoke detector:1.0.0
    """  # noqa: DOC501 - is the help text
    signing = Signing(keys, secret_file, draft, root)
    with connect(context) as api:
        try:
            known = api.releases.get(release)
        except FaultError as exc:
            # Somebody may have listed what was never published.
            off = unlisting(context, api, release, signing)
            if exc.status != 404 or off.change is None:  # noqa: PLR2004 - HTTP
                raise
            done = unlist(api, release, off, draft)
            write(
                f"{release} was not published; it is {'' if done else 'still '}"
                f"{'on no list now' if done else 'listed'}"
            )
            raise typer.Exit(0 if done else EXIT_NO) from None
        name = f"{known.name}:{known.version}"
        if release not in {name, known.digest}:
            raise AnswerError(
                f"nothing was revoked: asked for {release}, the controller answers for {name}",
                remedy="it may be a thief's: see docs/security.md, when a secret was stolen",
            )
        off = unlisting(context, api, release, signing)
        # A key that is named and cannot sign is a mistake: a release is not revoked by halves.
        if keys and off.missing:
            raise ArgumentError(
                f"nothing was revoked: no key at hand takes {name} off its list",
                remedy=f"repeat this with --key and {off.missing}",
            )
        found = api.releases.revoke(release)
        done = unlist(api, name, off, draft)
    if as_json:
        write_json(found)
        return
    write(f"{found.name}:{found.version} {found.state}")
    if found.running:
        write()
        show_running(found.running)
        write()
        write_lines(way_back(found.running))
    if keys and not done:
        raise typer.Exit(EXIT_NO)
