"""The provenance of a package: a Statement of in-toto with SLSA's predicate, as JSON. Pure.

Rules:
- The subjects are all other files of the package, so who trusts the statement knows each of them.
- Equal builds give equal bytes: no time of a run is told, and the invocation is named by what went
  into it and came out.
- Nothing is told of where the build ran but the kind of its processor.

Source:
    in-toto attestation framework, spec/v1/statement.md and resource_descriptor.md. SLSA v1.0,
    provenance: https://slsa.dev/provenance/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from packager.materials.values import Described, Making
from wire.codec import from_json, sha256_hex, to_json, to_pretty_json
from wire.errors import WireFormatError

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:edgefleet:build:v1"
BUILDER: Final = "urn:edgefleet:fleet-build:v1"
"""Whoever runs `fleet build` where they like: it says what ran, and vouches for nothing else."""


class Resource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A `ResourceDescriptor`."""

    name: str = ""
    uri: str = ""
    digest: dict[str, str] = {}
    annotations: dict[str, Any] = {}


class BuildDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What went into a build."""

    build_type: str
    external_parameters: dict[str, Any] = {}
    internal_parameters: dict[str, Any] = {}
    resolved_dependencies: tuple[Resource, ...] = ()


class Builder(msgspec.Struct, frozen=True, kw_only=True):
    """What carried it out."""

    id: str
    version: dict[str, str] = {}


class Metadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Which run of it that was."""

    invocation_id: str = ""


class RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Who carried it out, and when."""

    builder: Builder
    metadata: Metadata = Metadata()


class Provenance(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """SLSA's predicate."""

    build_definition: BuildDefinition
    run_details: RunDetails


class Statement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is said of some files."""

    type: str = msgspec.field(name="_type", default=STATEMENT_TYPE)
    subject: tuple[Resource, ...]
    predicate_type: str = PREDICATE_TYPE
    predicate: Provenance

    @property
    def subjects(self) -> dict[str, str]:
        """The SHA-256 of each subject, by its name."""
        return {one.name: one.digest.get("sha256", "") for one in self.subject}


def statement_bytes(described: Described, more: Mapping[str, str]) -> bytes:
    """Write the provenance of a package.

    Args:
        described: The package and its build.
        more: The SHA-256 of the files that the description does not have, by path.

    Returns:
        The document.
    """
    making = described.making
    digests = {**described.digests, **more}
    subject = tuple(_file(path, digests[path]) for path in sorted(digests))
    definition = BuildDefinition(
        build_type=BUILD_TYPE,
        external_parameters=making.parameters,
        internal_parameters={"codeSha256": making.code_sha256, "machine": making.machine},
        resolved_dependencies=_dependencies(making),
    )
    builder = Builder(id=BUILDER, version={making.edgefleet.name: making.edgefleet.version})
    invocation = sha256_hex(to_json([definition, builder, subject]))
    details = RunDetails(builder=builder, metadata=Metadata(invocation_id=f"sha256:{invocation}"))
    predicate = Provenance(build_definition=definition, run_details=details)
    return to_pretty_json(Statement(subject=subject, predicate=predicate))


def statement_from_bytes(data: bytes) -> Statement:
    """Read the provenance of a package.

    Args:
        data: The document.

    Returns:
        The statement.

    Raises:
        WireFormatError: It is none, or of another kind.
    """
    statement = from_json(data, Statement)
    if (statement.type, statement.predicate_type) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise WireFormatError(
            f"the provenance is of another kind: {statement.type[:80]!r} with "
            f"{statement.predicate_type[:80]!r}"
        )
    return statement


def _dependencies(making: Making) -> tuple[Resource, ...]:
    given = (
        Resource(name=one.role, digest={"sha256": one.sha256}, annotations={"form": one.form})
        for one in making.given
    )
    profiles = (
        _file(f"profile/{name}", sha256) for name, sha256 in sorted(making.profiles.items())
    )
    tools = (Resource(name=tool.name, uri=tool.purl) for tool in making.tools)
    return (*given, *profiles, *tools)


def _file(name: str, sha256: str) -> Resource:
    return Resource(name=name, digest={"sha256": sha256})
