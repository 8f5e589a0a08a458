"""`fleet package push` and `pull`, and releases that are published from a registry.

Rules:
- The library for HTTP is an extra; it is imported by the commands that speak to a registry.
- No option holds a secret: credentials are where `docker login` puts them.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from controller.cli.arguments import JsonOption
from controller.cli.errors import ArgumentError
from controller.cli.output import write_plain_json
from controller.client.target import ConnectionOptions
from wire.console.output import remark, write, write_fields

if TYPE_CHECKING:
    from packager.package.content import Content
    from packager.registry.reference import Reference
    from packager.registry.transfer import Way
    from wire.trust.root import Trust

TRUST_FILE = "trust.json"

CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--registry-ca-file",
        metavar="FILE",
        help="Authority of the registry's certificate, beside those of the system.",
    ),
]
ClearTextOption = Annotated[
    bool,
    typer.Option(
        "--registry-clear-text",
        help="Speak to the registry without TLS: who is on the way can read the credentials.",
    ),
]
OciArgument = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE", help="oci://HOST/REPOSITORY:TAG, perhaps with @sha256:DIGEST."
    ),
]


def package_push(
    context: typer.Context,
    package: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE",
            help="Directory of a package, or a release as NAME:VERSION or its digest.",
        ),
    ],
    reference: OciArgument,
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Let the tag name this package instead of another.")
    ] = False,
    registry_ca_file: CaFileOption = None,
    registry_clear_text: ClearTextOption = False,
    json: JsonOption = False,
) -> None:
    """Bring a signed package to an OCI registry.

    Files that the repository has are not sent again. Without a tag, the version of the package is
    the tag. Credentials are those of `docker login`.

    Examples:
        fleet package push detector-1.0.0 oci://registry.example/team/detector:1.0.0
        fleet package push detector:1.0.0 oci://registry.example/team/detector
    """
    _check_client()
    from controller.cli.carried import opened
    from packager.registry.reference import parse_reference
    from packager.registry.transfer import push

    place = parse_reference(reference)
    way = _way(place, registry_ca_file, clear_text=registry_clear_text)
    with opened(context, package) as content:
        done = push(content, place, way, force=force)
    if json:
        write_plain_json(done._asdict() | {"reference": str(done.reference)})
        return
    remark(f"sent {done.sent} of {done.files} files")
    write_fields((("package", done.release), ("reference", str(done.reference))))


def package_pull(
    reference: OciArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to make.")
    ],
    trust: Annotated[
        Path, typer.Option(metavar="FILE", help="Trust root of the fleet: trust.json.")
    ],
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
    registry_ca_file: CaFileOption = None,
    registry_clear_text: ClearTextOption = False,
) -> None:
    """Make the directory of a package from an OCI registry.

    It checks the signature before anything else, and every digest. With `@sha256:DIGEST` only that
    very package will do.

    Examples:
        fleet package pull oci://registry.example/detector:1.0.0 -o DIR --trust FILE
    """
    _check_client()
    from controller.cli.trusting import load_trust
    from packager.registry.reference import parse_reference
    from packager.registry.transfer import pull

    place = parse_reference(reference)
    way = _way(place, registry_ca_file, clear_text=registry_clear_text)
    index = pull(place, output, load_trust(trust), way, force=force)
    write(f"{index.name}:{index.version} {index.digest} verified")


@contextmanager
def fetched(
    context: typer.Context,
    reference: str,
    trust: Path | None,
    ca_file: Path | None,
    *,
    clear_text: bool,
) -> Iterator[Path]:
    """Pull a package for as long as the `with` block lasts.

    Args:
        context: Says where the controller's directory is, if it is on this machine.
        reference: Which package.
        trust: Trust root; None for that in the controller's directory.
        ca_file: Authority of the registry's certificate, beside those of the system.
        clear_text: Whether to speak to the registry without TLS.

    Yields:
        The directory of the package; it is gone afterwards.

    Raises:
        FleetError: It cannot be had, or is not signed for this fleet.
    """
    _check_client()
    from controller.cli.trusting import load_trust
    from packager.registry.reference import parse_reference
    from packager.registry.transfer import pull

    place = parse_reference(reference)
    root = load_trust(trust or own_trust(context))
    way = _way(place, ca_file, clear_text=clear_text)
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory:
        output = Path(directory) / "package"
        pull(place, output, root, way)
        yield output


@contextmanager
def registry_package(
    reference: str, trust: Trust, ca_file: Path | None, clear_text: bool
) -> Iterator[Content]:
    """Open a package in a registry, for as long as the `with` block lasts.

    Args:
        reference: Which package.
        trust: Whose signature counts.
        ca_file: Authority of the registry's certificate, beside those of the system.
        clear_text: Whether to speak to the registry without TLS.

    Yields:
        Its content.

    Raises:
        FleetError: It cannot be had, or is not signed for this fleet.
    """
    _check_client()
    from packager.registry.reference import parse_reference
    from packager.registry.transfer import registry_content

    place = parse_reference(reference)
    way = _way(place, ca_file, clear_text=clear_text)
    with registry_content(place, trust, way) as content:
        yield content


def own_trust(context: typer.Context) -> Path:
    """Return the trust root in the controller's directory on this machine.

    Args:
        context: Says where that is.

    Returns:
        Its file.

    Raises:
        ArgumentError: Nothing says where the directory is.
    """
    options = context.obj if isinstance(context.obj, ConnectionOptions) else ConnectionOptions()
    named = os.environ.get("FLEET_HOME", "")
    home = options.home or (Path(named) if named and options.url is None else None)
    if home is None:
        raise ArgumentError(
            "nothing says whose signature counts", remedy="add --trust FILE: the fleet's trust.json"
        )
    return home / TRUST_FILE


def _check_client() -> None:
    """Refuse to begin without the extra.

    Raises:
        ArgumentError: It is not installed.
    """
    if importlib.util.find_spec("urllib3") is None:
        raise ArgumentError(
            "what speaks to registries is not installed", remedy="pip install 'edgefleet[oci]'"
        )


def _way(place: Reference, ca_file: Path | None, *, clear_text: bool) -> Way:
    from packager.registry.credentials import login_file
    from packager.registry.transfer import Way
    from wire.hosts import is_loopback

    host = urlsplit(f"//{place.host}").hostname or ""
    if clear_text and not is_loopback(host):
        remark(
            "warning: CLEAR TEXT: everybody on the way can read the credentials for "
            f"{place.host} and the package"
        )
    return Way(login_file(os.environ, Path.home()), ca_file, clear_text)
