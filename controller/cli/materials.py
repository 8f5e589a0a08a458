"""`fleet package sbom` and `provenance`: what a package says of its origin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands
from controller.cli.registries import CaFileOption, ClearTextOption, own_trust, registry_package
from wire.console.output import remark, write, write_exact, write_fields, write_table

if TYPE_CHECKING:
    from packager.materials.reading import Source

REGISTRY: Final = "oci://"

PackageArgument = Annotated[
    str,
    typer.Argument(
        metavar="PACKAGE",
        help="Directory of a package, a file of `fleet package export`, a release as NAME:VERSION "
        "or its digest, or oci://HOST/REPOSITORY:TAG.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the document to this file, as it was signed."
    ),
]
TrustOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Check the signature by this trust root: trust.json. For a file or a registry the "
        "default is the one in the controller's directory.",
    ),
]


def package_sbom(
    context: typer.Context,
    package: PackageArgument,
    output: OutputOption = None,
    trust: TrustOption = None,
    registry_ca_file: CaFileOption = None,
    registry_clear_text: ClearTextOption = False,
    *,
    json: JsonOption = False,
) -> None:
    """Show the bill of materials of a package.

    It names the model with the digest of each file, the samples, and the tools with their versions
    and licences. With --json or --output it is the document itself, in the JSON of CycloneDX.

    Examples:
        fleet package sbom detector-1.0.0
        fleet package sbom detector:1.0.0 --trust my-fleet/trust.json -o bom.cdx.json
    """
    from packager.materials.reading import read_bill, read_document
    from packager.report import materials
    from wire.package.index import BILL_FILE

    way = (registry_ca_file, registry_clear_text)
    with _opened(context, package, trust, way) as source:
        data = read_document(source, BILL_FILE)
        bill = read_bill(source, data)
    if _handed_out(data, output, json=json):
        return
    write_fields(materials.bill_fields(bill))
    write()
    write_table(materials.PART_COLUMNS, materials.part_rows(bill), minor=materials.PART_MINOR)


def package_provenance(
    context: typer.Context,
    package: PackageArgument,
    output: OutputOption = None,
    trust: TrustOption = None,
    registry_ca_file: CaFileOption = None,
    registry_clear_text: ClearTextOption = False,
    *,
    json: JsonOption = False,
) -> None:
    """Show how a package was built.

    It tells what was asked for, what went into the build, and which files came out. With --json or
    --output it is the document itself: a statement of in-toto with the provenance of SLSA.

    Examples:
        fleet package provenance detector-1.0.0
        fleet package provenance detector:1.0.0 --trust my-fleet/trust.json --json
    """
    from packager.materials.reading import read_document, read_provenance
    from packager.report import materials
    from wire.package.index import PROVENANCE_FILE

    way = (registry_ca_file, registry_clear_text)
    with _opened(context, package, trust, way) as source:
        data = read_document(source, PROVENANCE_FILE)
        statement = read_provenance(source, data)
    if _handed_out(data, output, json=json):
        return
    write_fields(materials.provenance_fields(statement))
    write()
    write_table(materials.PARAMETER_COLUMNS, materials.parameter_rows(statement))
    write()
    write_table(materials.INPUT_COLUMNS, materials.input_rows(statement))
    write()
    write_table(materials.SUBJECT_COLUMNS, materials.subject_rows(statement))


COMMANDS: Final[Commands] = {"sbom": package_sbom, "provenance": package_provenance}


@contextmanager
def _opened(
    context: typer.Context, package: str, trust: Path | None, way: tuple[Path | None, bool]
) -> Iterator[Source]:
    """Open a package, wherever it is, for as long as the `with` block lasts.

    Raises:
        FleetError: There is none, or it is not signed as asked for.
    """
    from controller.cli.trusting import load_trust
    from packager.materials.reading import content_source, directory_source
    from packager.package.archive import archive_content

    place = Path(package)
    if package.startswith(REGISTRY):
        root = load_trust(trust or own_trust(context))
        with registry_package(package, root, *way) as content:
            yield content_source(content, root)
    elif place.is_file():
        root = load_trust(trust or own_trust(context))
        with archive_content(place, root) as content:
            yield content_source(content, root)
    elif place.is_dir():
        yield directory_source(place, load_trust(trust) if trust is not None else None)
    else:
        from controller.cli.carried import opened

        with opened(context, package) as content:
            yield content_source(content, load_trust(trust) if trust is not None else None)


def _handed_out(data: bytes, output: Path | None, *, json: bool) -> bool:
    """Give a document out as it is, if that is asked for; tell whether it was."""
    from packager.materials.reading import save_document

    if output is not None:
        save_document(data, output)
        remark(f"wrote {output}")
    elif json:
        write_exact(data.decode().rstrip())
    return output is not None or json
