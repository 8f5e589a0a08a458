"""Uploads a package and lists it as a release, for every command that publishes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from controller.cli.connecting import connect
from controller.cli.drafts import finish
from controller.cli.listing import listing
from controller.cli.package_files import PackageFile, package_files
from controller.cli.signing import Signing
from controller.client.fleet import Fleet
from controller.release_schemas import Release
from wire.console.output import remark


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
    return published(context, package, Signing(keys)).digest


def published(context: typer.Context, package: Path, signing: Signing) -> Release:
    """Upload a package to the controller, and list it as a release of its model.

    Args:
        context: Says where the controller is.
        package: The directory.
        signing: What the list is signed with.

    Raises:
        PackageFilesError: No signed package, or a file differs from the index.
        Exit: The list waits for other keys; nothing was published.
    """
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


def _upload(api: Fleet, files: list[PackageFile]) -> int:
    sent = 0
    for file in files:
        if not api.has_blob(file.sha256):
            api.put_blob(file.sha256, file.path)
            sent += 1
    return sent
