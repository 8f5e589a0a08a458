"""Shows the documents of a package's origin as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from packager.materials.reading import Bill
from packager.materials.statement import Resource, Statement
from wire.codec import to_json

PART_COLUMNS: Final = ("COMPONENT", "TYPE", "VERSION", "LICENCE", "SHA256")
PART_MINOR: Final = ("TYPE", "LICENCE")
PARAMETER_COLUMNS: Final = ("ASKED FOR", "VALUE")
INPUT_COLUMNS: Final = ("INPUT", "IDENTIFIED BY")
SUBJECT_COLUMNS: Final = ("FILE", "SHA256")


def bill_fields(bill: Bill) -> tuple[tuple[str, object], ...]:
    """Return what a bill of materials is of."""
    model = bill.metadata.component
    return (
        ("package", f"{model.name}:{model.version}"),
        ("licence", _licences(model.licenses) or "not told"),
        ("format", f"{bill.bom_format} {bill.spec_version}"),
        ("serial number", bill.serial_number),
    )


def part_rows(bill: Bill) -> list[tuple[object, ...]]:
    """Return one row for each component, the model's first."""
    return [
        (
            part.name,
            part.type,
            part.version or None,
            _licences(part.licenses) or None,
            part.sha256 or None,
        )
        for part in bill.parts
    ]


def provenance_fields(statement: Statement) -> tuple[tuple[str, object], ...]:
    """Return what ran."""
    definition = statement.predicate.build_definition
    details = statement.predicate.run_details
    versions = [f"{name} {version}" for name, version in sorted(details.builder.version.items())]
    return (
        ("builder", details.builder.id),
        ("version", versions),
        ("build type", definition.build_type),
        ("machine", definition.internal_parameters.get("machine")),
        ("invocation", details.metadata.invocation_id),
    )


def parameter_rows(statement: Statement) -> list[tuple[object, ...]]:
    """Return one row for each thing that was asked for; what has no value is left out."""
    values = flat(statement.predicate.build_definition.external_parameters)
    return [(name, text) for name, text in sorted(values.items())]


def input_rows(statement: Statement) -> list[tuple[object, ...]]:
    """Return one row for each file, profile and tool that went into the build."""
    dependencies = statement.predicate.build_definition.resolved_dependencies
    return [(one.name, _identity(one)) for one in dependencies]


def subject_rows(statement: Statement) -> list[tuple[object, ...]]:
    """Return one row for each file that the build made."""
    return sorted(statement.subjects.items())


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values by their names joined with dots, without empty ones."""
    found: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif value not in (None, "", []):
            found[f"{prefix}{name}"] = value if isinstance(value, str) else to_json(value).decode()
    return found


def _identity(resource: Resource) -> str:
    digests = [f"{name}:{value}" for name, value in sorted(resource.digest.items())]
    return resource.uri or ", ".join(digests)


def _licences(licences: tuple[Any, ...]) -> str:
    return ", ".join(licence.text for licence in licences)
