"""What `fleet package export` writes: a package on this disk, or a release of a controller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError, PackageFilesError
from controller.cli.package_files import OUTPUT
from controller.cli.signing import newest_files
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.errors import UnknownDeviceError
from controller.metadata.store import authored_of
from packager.device_profiles import load_profile
from packager.package.archive import Exported, export
from packager.package.content import Content, directory_content, index_of
from wire.codec import sha256_hex, to_json
from wire.metadata import MetadataFiles, parse_file_name
from wire.package.index import FileEntry, is_digest
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.roles import TOP_LEVEL, target_path


def exported(
    context: typer.Context, package: str, to: Path, *, profiles: Sequence[str], device: str
) -> Exported:
    """Write a package into one file.

    Args:
        context: Says where the controller is, if it is asked.
        package: A directory, or a release of the controller.
        to: The file.
        profiles: Names of profiles; only variants that fit one of them. Empty for all.
        device: Whose signed desired state goes with it; empty for none.

    Returns:
        What was written.

    Raises:
        PackageFilesError: There is no such package.
        FleetError: There is no such release or device, or the file cannot be written.
    """
    kinds = [load_profile(name) for name in profiles]
    if (directory := Path(package)).is_dir():
        content = directory_content(directory)
        desired = metadata = None
        if device:
            with connect(context) as api:
                desired = _desired(api, device, content)
                metadata = metadata_for(api, content)
        return export(content, to, profiles=kinds, desired=desired, metadata=metadata)
    _check_name(package)
    with connect(context) as api:
        content = _published(api, package)
        desired = _desired(api, device, content) if device else None
        metadata = metadata_for(api, content) if device else None
        return export(content, to, profiles=kinds, desired=desired, metadata=metadata)


@contextmanager
def opened(context: typer.Context, package: str) -> Iterator[Content]:
    """Open a package, for as long as the `with` block lasts.

    Args:
        context: Says where the controller is, if it is asked.
        package: A directory, or a release of the controller.

    Yields:
        Its content.

    Raises:
        PackageFilesError: There is no such package.
    """
    if (directory := Path(package)).is_dir():
        yield directory_content(directory)
        return
    _check_name(package)
    with connect(context) as api:
        yield _published(api, package)


def _check_name(package: str) -> None:
    if "/" in package or not (":" in package or is_digest(package)):
        raise PackageFilesError(
            f"{package} is neither the directory of a package nor a release", remedy=OUTPUT
        )


def _published(api: Fleet, ref: str) -> Content:
    """Return the content of a release; each file is downloaded when it is needed.

    Raises:
        PackageFilesError: The controller's answers contradict each other.
    """
    release = api.releases.get(ref)
    if not 0 < release.envelope_size_bytes <= MAX_ENVELOPE_BYTES:
        raise PackageFilesError(
            f"the controller does not tell the signed index of {ref}",
            remedy="update the controller",
        )
    envelope = b"".join(api.blob(release.envelope_sha256, release.envelope_size_bytes))
    digests = (sha256_hex(envelope), index_of(envelope).digest)
    if digests != (release.envelope_sha256, release.digest):
        raise PackageFilesError(f"the signed index of {ref} is damaged on the controller")

    def parts(entry: FileEntry) -> Iterator[bytes]:
        return api.blob(entry.sha256, entry.size_bytes)

    return Content(envelope, parts)


def metadata_for(api: Fleet, content: Content) -> bytes | None:
    """Return what a device needs to believe a package, as one file; None for a trust file."""
    index = index_of(content.envelope)
    files = newest_files(api)
    if not files:
        return None
    own = authored_of(files).role_of(target_path(index.name, index.version))
    wanted = {*TOP_LEVEL, own}
    kept = tuple(file for file in files if parse_file_name(file.name)[0] in wanted)
    return to_json(MetadataFiles(files=kept))


def _desired(api: Fleet, device: str, content: Content) -> bytes:
    """Return the signed desired state of a device that names this very package.

    Raises:
        ArgumentError: The device is unknown, or is to run something else.
        FaultError: The controller refuses.
    """
    try:
        signed = api.devices.desired(device)
    except FaultError as exc:
        if exc.fault_code != UnknownDeviceError.code:
            raise
        raise ArgumentError(
            exc.message,
            remedy="`fleet device list` shows the devices; a new one must enrol over a network "
            "once, such as at your desk, before an order reaches it by file (docs/by-hand.md)",
        ) from exc
    index = index_of(content.envelope)
    if index.digest not in {signed.release, *signed.releases}:
        raise ArgumentError(
            f"{index.name}:{index.version} is not what device {device} should run",
            remedy="roll it out to the device first: fleet rollout create "
            f"{index.name}:{index.version} --selector id={device}",
        )
    return signed.envelope.encode()
