"""`fleet release ...`: publish packages, look at them, revoke them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.drafts import finish
from controller.cli.errors import ArgumentError, PackageFilesError
from controller.cli.listing import listing, unlist, unlisting
from controller.cli.output import write_json
from controller.cli.paging import CountOption, CursorOption, ReverseOption, take
from controller.cli.registries import CaFileOption, ClearTextOption, fetched
from controller.cli.signing import DraftOption, KeysOption, RootOption, SecretOption, Signing
from controller.cli.watch import EXIT_NO
from controller.client.errors import AnswerError, FaultError
from controller.client.fleet import Fleet
from controller.schemas import Release, RunningDevice
from wire.console.output import remark, write, write_fields, write_lines, write_table
from wire.console.sizes import bytes_text
from wire.console.text import local_time

HASH_STEP_BYTES = 1024 * 1024
MAX_NAMED = 15
"""Devices that one selector names: it has at most 1024 characters."""

ReleaseArgument = Annotated[
    str,
    typer.Argument(
        metavar="RELEASE",
        help="The release as NAME:VERSION or its digest.",
        autocompletion=completion.releases,
    ),
]

OUTPUT = "name the output directory of `fleet build`"


class PackageFile(NamedTuple):
    """A file to be uploaded."""

    sha256: str
    path: Path


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


def publish_package(
    context: typer.Context, package: Path, keys: Sequence[str] | None = None
) -> str:
    """Upload a package to the controller, and list it.

    Args:
        context: Says where the controller is.
        package: The directory.
        keys: To sign the list with; None for those beside the controller's directory.

    Returns:
        The digest of the release.

    Raises:
        PackageFilesError: No signed package, or a file differs from the index.
    """
    return _published(context, package, Signing(keys)).digest


def _published(context: typer.Context, package: Path, signing: Signing) -> Release:
    files = package_files(package)
    with connect(context) as api:
        listed = listing(context, api, package, signing)
        sent = _upload(api, files)
        if listed is not None and finish(api, *listed, signing.draft) is None:
            remark(f"when it is submitted, publish it: fleet release publish {package}")
            raise typer.Exit(0)
        release = api.releases.publish(files[-1].sha256)
    remark(f"sent {sent} of {len(files)} files")
    return release


def _publish(context: typer.Context, package: Path, signing: Signing, *, as_json: bool) -> None:
    release = _published(context, package, signing)
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
    write_table(
        ("RELEASE", "STATE", "SIZE", "PUBLISHED", "DIGEST"),
        [
            (
                f"{r.name}:{r.version}", r.state, bytes_text(r.size_bytes),
                local_time(r.published_at_s), r.digest,
            )
            for r in releases
        ],
        minor=("PUBLISHED",),
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
        _show_running(found.running)
        write()
        write_lines(way_back(found.running))
    if keys and not done:
        raise typer.Exit(EXIT_NO)


def way_back(running: list[RunningDevice]) -> list[str]:
    """Return what brings devices off a release: sentences and commands.

    Args:
        running: The devices, with the rollouts that brought it.

    Returns:
        The lines; a command is indented.
    """
    back = sorted({d.rollout for d in running if d.rollout and d.previous})
    stay = [d for d in running if d.previous is None]
    lines = []
    if back:
        lines.append("To bring them back to what they had before:")
        lines += [f"  fleet rollout rollback {rollout}" for rollout in back]
    if stay:
        names = [d.device for d in stay]
        lines.append(f"To bring {len(stay)} without a published release before to another one:")
        lines += [
            "  fleet rollout create NAME:VERSION --selector "
            f"'id in ({','.join(names[start : start + MAX_NAMED])})'"
            for start in range(0, len(names), MAX_NAMED)
        ]
    return lines


def package_files(directory: Path) -> list[PackageFile]:
    """Return what a package consists of, each file checked against the index.

    The signature is not checked here: the controller and every device do that.

    Args:
        directory: Of the package.

    Returns:
        Its files, each content once, the envelope last.

    Raises:
        PackageFilesError: No package, or a file differs from the index.
    """
    from wire.files import open_file
    from wire.package.index import ENVELOPE_FILE
    from wire.trust.envelope import MAX_ENVELOPE_BYTES

    envelope_path = directory / ENVELOPE_FILE
    try:
        with open_file(envelope_path) as stream:
            envelope = stream.read(MAX_ENVELOPE_BYTES + 1)
    except OSError as exc:
        fault, remedy = _why_no_package(directory, exc)
        raise PackageFilesError(fault, remedy=remedy) from exc
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise PackageFilesError(
            f"{envelope_path} is larger than any envelope", remedy="build the package again"
        )
    files = {
        entry: PackageFile(sha256=entry, path=directory / path)
        for entry, path in _indexed(envelope, envelope_path)
    }
    for file in files.values():
        _check(file)
    digest = hashlib.sha256(envelope).hexdigest()
    files.pop(digest, None)
    return [*files.values(), PackageFile(sha256=digest, path=envelope_path)]


def _why_no_package(directory: Path, fault: OSError) -> tuple[str, str]:
    """Return why a package's signed index cannot be read, and the remedy."""
    from wire.package.index import ENVELOPE_FILE
    from wire.package.manifest import MANIFEST_FILE

    if not directory.exists():
        return f"{directory} does not exist", OUTPUT
    if isinstance(fault, FileNotFoundError) and (directory / MANIFEST_FILE).is_file():
        remedy = f"sign it with: fleet package sign {directory} --key FILE"
        return f"{directory} is not signed", remedy
    reason = (fault.strerror or str(fault)).lower()
    return f"{directory} is not a package: {ENVELOPE_FILE}: {reason}", OUTPUT


def _indexed(envelope: bytes, path: Path) -> list[tuple[str, str]]:
    """Return digest and path of every file that the index lists.

    Raises:
        PackageFilesError: Not an envelope around an index.
    """
    from wire.errors import SignatureError, WireFormatError
    from wire.package.index import PAYLOAD_TYPE, index_from_bytes
    from wire.trust.envelope import read_unverified

    try:
        index = index_from_bytes(read_unverified(envelope, payload_type=PAYLOAD_TYPE).payload)
    except (WireFormatError, SignatureError) as exc:
        raise PackageFilesError(
            f"{path} is not a signed package index: {exc}", remedy="build the package again"
        ) from exc
    return [(entry.sha256, entry.path) for entry in index.files]


def _check(file: PackageFile) -> None:
    from wire.files import open_file

    digest = hashlib.sha256()
    try:
        with open_file(file.path) as content:
            while piece := content.read(HASH_STEP_BYTES):
                digest.update(piece)
    except OSError as exc:
        raise PackageFilesError(
            f"cannot read {file.path}: {(exc.strerror or str(exc)).lower()}",
            remedy="build the package again",
        ) from exc
    if digest.hexdigest() != file.sha256:
        raise PackageFilesError(
            f"{file.path} differs from the signed index", remedy="build the package again"
        )


def _upload(api: Fleet, files: list[PackageFile]) -> int:
    sent = 0
    for file in files:
        if not api.has_blob(file.sha256):
            api.put_blob(file.sha256, file.path)
            sent += 1
    return sent


def show_release(release: Release) -> None:
    """Write a release for people.

    Args:
        release: It, with its devices and deltas.
    """
    write_fields(
        [
            ("release", f"{release.name}:{release.version}"),
            ("digest", release.digest),
            ("state", release.state),
            ("size", bytes_text(release.size_bytes)),
            ("published", local_time(release.published_at_s)),
        ]
    )
    write()
    write_table(
        (
            "VARIANT", "RUNTIME", "PRECISION", "SIZE", "ACCURACY", "RETENTION", "P50 MS", "MEMORY",
            "PROFILES",
        ),
        [
            (
                v.name, v.runtime, v.precision, bytes_text(v.size_bytes), v.accuracy, v.retention,
                v.latency_p50_ms,
                None if v.peak_memory_bytes is None else bytes_text(v.peak_memory_bytes),
                v.profiles,
            )
            for v in release.variants
        ],
        minor=("MEMORY", "SIZE", "ACCURACY", "PRECISION"),
    )  # fmt: skip
    if release.running:
        write()
        _show_running(release.running)
    if release.deltas:
        write()
        write_table(
            ("DELTA FROM", "SIZE", "OF", "SHARE"),
            [
                (
                    d.base_release, bytes_text(d.size_bytes), bytes_text(d.full_bytes),
                    f"{100 * d.size_bytes / d.full_bytes:.1f} %",
                )
                for d in release.deltas
            ],
        )  # fmt: skip


def _show_running(running: list[RunningDevice]) -> None:
    write_table(
        ("RUNS ON", "ONLINE", "ROLLOUT", "BEFORE"),
        [(d.device, d.online, d.rollout, d.previous) for d in running],
    )
