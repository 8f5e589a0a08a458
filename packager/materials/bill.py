"""The bill of materials of a package, in the JSON of CycloneDX 1.6.

Rules:
- Equal builds give equal bytes: no time is told, and the serial number is made from the content.
- Every component has a reference that is made from its name, because the library draws one at
  random where it has none.

Source:
    CycloneDX 1.6, JSON schema. The library knows no model cards; they are put into what it writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseAcknowledgement, LicenseExpression
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from packager.licences import Licence
from packager.materials.card import model_card, variant_card
from packager.materials.values import Described, Given, Tool
from packager.plan.step_names import CALIBRATION, EVALUATION, SOURCE, TUNING, TUNING_DATABASE
from wire.codec import sha256_hex, to_json, to_pretty_json
from wire.package.variant import Variant

SPEC: Final = JsonV1Dot6
PREFIX: Final = "edgefleet:"
"""Before the names of our properties."""

MODEL_REF: Final = "model"
SAMPLES: Final = (CALIBRATION, TUNING, EVALUATION)
_DATA: Final = frozenset({*SAMPLES, TUNING_DATABASE, "measurements"})
"""Roles that are data; what else is given is a file that says how, or the model."""


def bill_bytes(described: Described) -> bytes:
    """Write the bill of materials of a package.

    Args:
        described: The package and its build.

    Returns:
        The document.
    """
    making = described.making
    bom = Bom()
    bom.metadata.lifecycles.add(PredefinedLifecycle(phase=LifecyclePhase.BUILD))
    bom.metadata.tools.components.add(_tool(making.edgefleet, "writer"))
    variants = [_variant(variant, described) for variant in described.manifest.variants]
    model = _model(described, variants)
    bom.metadata.component = model
    given = {one.role: _given(one) for one in making.given}
    tools = {tool.name: _tool(tool, "tool") for tool in (making.edgefleet, *making.tools)}
    bom.components.update(given.values())
    bom.components.update(tools.values())
    bom.register_dependency(model, [*given.values(), *tools.values(), *variants])
    for component in variants:
        makers = making.made_with[component.name]
        sources = [part for role, part in given.items() if role.startswith(SOURCE)]
        bom.register_dependency(component, [*sources, *(tools[name] for name in makers)])
    document = json.loads(SPEC(bom).output_as_string())
    return to_pretty_json(_completed(document, described))


def _completed(document: dict[str, Any], described: Described) -> dict[str, Any]:
    """Put the cards into a document, take the time out, and give it a number of its own."""
    manifest = described.manifest
    roles = {given.role for given in described.making.given}
    datasets = [_reference("given", role) for role in SAMPLES if role in roles]
    metric = str(manifest.metadata.get("metric") or "")
    metadata = document["metadata"]
    del metadata["timestamp"]
    model = metadata["component"]
    model["modelCard"] = model_card(manifest.variants, metric, datasets)
    cards = {variant.name: variant_card(variant) for variant in manifest.variants}
    for component in model["components"]:
        if card := cards[component["name"]]:
            component["modelCard"] = card
    del document["serialNumber"]
    address = f"pkg:generic/{manifest.name}?checksum=sha256:{sha256_hex(to_json(document))}"
    return {**document, "serialNumber": uuid5(NAMESPACE_URL, address).urn}


def _model(described: Described, variants: list[Component]) -> Component:
    manifest = described.manifest
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=manifest.name,
        version=manifest.version,
        bom_ref=MODEL_REF,
        licenses=_licences(described.making.licence),
        components=variants,
        properties=_properties(
            {
                "metric": str(manifest.metadata.get("metric") or ""),
                "machine": described.making.machine,
                "profiles": ", ".join(described.making.profiles),
            }
        ),
    )


def _variant(variant: Variant, described: Described) -> Component:
    prefix = f"{variant.directory}/"
    info = variant.info
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=variant.name,
        version=described.manifest.version,
        bom_ref=_reference("variant", variant.name),
        licenses=_licences(described.making.licence),
        components=[
            Component(
                type=ComponentType.FILE,
                name=path,
                bom_ref=_reference("file", path),
                hashes=_hashes(sha256),
            )
            for path, sha256 in described.digests.items()
            if path.startswith(prefix)
        ],
        properties=_properties(
            {
                "runtime": info.runtime,
                "precision": info.precision,
                "profiles": ", ".join(info.profiles),
                "steps": info.provenance.get("steps", ""),
            }
        ),
    )


def _given(given: Given) -> Component:
    return Component(
        type=ComponentType.DATA if given.role in _DATA else ComponentType.FILE,
        name=given.role,
        bom_ref=_reference("given", given.role),
        hashes=_hashes(given.sha256),
        properties=_properties({"form": given.form, "function": given.function}),
    )


def _tool(tool: Tool, kind: str) -> Component:
    return Component(
        type=ComponentType.LIBRARY
        if tool.purl.startswith("pkg:pypi/")
        else ComponentType.APPLICATION,
        name=tool.name,
        version=tool.version,
        bom_ref=_reference(kind, tool.name),
        purl=PackageURL.from_string(tool.purl),
        scope=ComponentScope.EXCLUDED,  # they are not in the package
        licenses=_licences(tool.licence),
    )


def _licences(licence: Licence) -> list[LicenseExpression | DisjunctiveLicense]:
    declared = LicenseAcknowledgement.DECLARED
    if licence.expression:
        return [LicenseExpression(licence.expression, acknowledgement=declared)]
    return [DisjunctiveLicense(name=name, acknowledgement=declared) for name in licence.names]


def _hashes(sha256: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)]


def _properties(values: dict[str, str]) -> Iterable[Property]:
    return [Property(name=PREFIX + name, value=value) for name, value in values.items() if value]


def _reference(kind: str, name: str) -> str:
    return f"{kind}:{name}"
