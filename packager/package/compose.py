"""Makes the variants and the manifest of a package from the results of the steps.

Rules:
- The manifest does not depend on the time or on where files are: equal results give an equal
  manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from packager.judge.further import certain, further_provenance
from packager.judge.gates import Gates
from packager.judge.intervals import ROUNDING, computes_the_same
from packager.judge.ranking import MIB
from packager.judge.verdicts import Verdict, Verdicts
from packager.plan.figures import Comparison, GoldenChoice, ModelFacts, ReferenceResult
from packager.plan.recipes import PREPARE
from packager.plan.step_names import ANCHORS, GOLDEN, REFERENCE
from packager.plan.values import Candidate, Plan, Repair
from packager.run.cache import file_sha256
from packager.run.job import GOLDEN_FOLDER
from packager.run.pipeline import Pipeline
from packager.runtimes.table import RUNTIMES
from packager.samples.declarations import ANCHORS_FILE, Declared
from wire.codec import sha256_hex, to_json
from wire.package.accuracy import Accuracy
from wire.package.golden import Golden, Tolerance
from wire.package.index import asset_directory, asset_uri
from wire.package.manifest import Manifest
from wire.package.performance import Performance
from wire.package.variant import Variant, VariantInfo

VERSION_DIGITS: Final = 12
NO_VERSION: Final = "0"
"""Stands for a version that is still to be computed."""


def measured_variants(candidates: tuple[Candidate, ...], pipeline: Pipeline) -> tuple[Variant, ...]:
    """Return the candidates that were built and measured, without any other figures."""
    return tuple(
        Variant(name=c.name, directory=c.name, info=_costs(c, pipeline))
        for c in {c.name: c for c in candidates}.values()
        if c.measured and pipeline.lost(c.build, c.measure) is None
    )


def tried_variant(candidate: Candidate, pipeline: Pipeline) -> Variant | None:
    """Return a candidate with its costs and its accuracy, without bounds; None if it was lost."""
    if pipeline.lost(*candidate.needed) is not None:
        return None
    accuracy = pipeline.result(candidate.evaluate, Comparison).accuracy
    info = msgspec.structs.replace(_costs(candidate, pipeline), accuracy=accuracy)
    return Variant(name=candidate.name, directory=candidate.name, info=info)


def built_variants(
    plan: Plan, pipeline: Pipeline, metric: str, declared: Declared, gates: Gates
) -> tuple[Variant, ...]:
    """Return the candidates that were built, evaluated and measured, with their figures.

    Each figure of quality has the bounds for a choice among all these candidates.

    Args:
        plan: The plan that was carried out.
        pipeline: Its results.
        metric: The metric of the build.
        declared: The declarations that every variant gets.
        gates: The limits, of which the bounds say whether the samples show that they hold.

    Returns:
        The variants, still without golden samples.
    """
    built = [c for c in plan.candidates if pipeline.lost(*c.needed) is None]
    found = {c.name: pipeline.result(c.evaluate, Comparison) for c in built}
    same = {name for name, comparison in found.items() if computes_the_same(comparison)}
    same |= plan.references
    compared = sum(c.name not in same for c in built)
    variants: list[Variant] = []
    for candidate in built:
        accuracy = certain(
            found[candidate.name],
            gates.further,
            compared=compared,
            least_retention=gates.min_retention,
            most_disagreement=gates.disagreement_limit,
            same=candidate.name in same,
        )
        variants.append(_variant(candidate, pipeline, metric, declared, accuracy))
    return tuple(variants)


def assemble(
    name: str,
    version: str,
    variants: tuple[Variant, ...],
    verdicts: Verdicts,
    *,
    pipeline: Pipeline,
    plan: Plan,
    metric: str,
    others: Mapping[str, dict[str, Tolerance]],
) -> tuple[Manifest, dict[str, Path]]:
    """Compose the package.

    Args:
        name: Name of the package.
        version: Version of the package; empty if it is to be computed from the content.
        variants: All measured variants.
        verdicts: Which of them are kept for which profile.
        pipeline: Holds the files and the golden samples.
        plan: Names the files.
        metric: The metric of the build.
        others: By variant, the tolerances where other kernels of its runtime compute.

    Returns:
        The manifest, and every other file of the package by its path there.
    """
    folder = pipeline.folder(GOLDEN) / GOLDEN_FOLDER
    golden = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    asset = asset_uri(golden)
    files = {f"{asset_directory(asset)}/{file}": folder / file for file in golden}
    kept: list[Variant] = []
    for variant in variants:
        profiles = tuple(p for p, found in verdicts.items() if _is_kept(found, variant.name))
        if not profiles:
            continue
        candidate = next(c for c in plan.candidates if c.name == variant.name)
        info = msgspec.structs.replace(
            variant.info,
            profiles=profiles,
            golden=_golden(candidate, asset, pipeline, others.get(variant.name)),
            files_sha256=variant_digests(candidate, variant.info, pipeline),
        )
        kept.append(msgspec.structs.replace(variant, info=info))
        source = pipeline.folder(candidate.build)
        files |= {f"{variant.directory}/{file}": source / file for file in candidate.files}
        if _has_anchors(variant.info):
            files[f"{variant.directory}/{ANCHORS_FILE}"] = pipeline.folder(ANCHORS)
    manifest = Manifest(
        name=name,
        version=version or NO_VERSION,
        variants=tuple(kept),
        metadata=_metadata(pipeline, plan, {variant.name for variant in kept}, metric),
    )
    return manifest, files


def default_version(
    manifest: Manifest, digests: Mapping[str, str], documents: Mapping[str, bytes]
) -> str:
    """Return a version computed from the content, so two packages of one version are the same.

    Args:
        manifest: With any version.
        digests: The SHA-256 of every other file of the package.
        documents: What the package says of its origin, with that version.

    Returns:
        The version.
    """
    origin = {path: sha256_hex(content) for path, content in documents.items()}
    digest = sha256_hex(to_json([manifest, {**digests, **origin}]))
    return f"0-{digest[:VERSION_DIGITS]}"


def needed_repairs(plan: Plan, pipeline: Pipeline, gates: Gates) -> tuple[Repair, ...]:
    """Return the repairs of the candidates that were built and miss the gate of retention.

    Args:
        plan: The plan that was carried out.
        pipeline: Its results.
        gates: The limits.

    Returns:
        The repairs.
    """
    missed: set[str] = set()
    for candidate in plan.candidates:
        if pipeline.lost(*candidate.needed) is None:
            accuracy = pipeline.result(candidate.evaluate, Comparison).accuracy
            if accuracy.retention < gates.min_retention - ROUNDING:
                missed.add(candidate.name)
    return tuple(repair for repair in plan.repairs if repair.of in missed)


def _variant(
    candidate: Candidate,
    pipeline: Pipeline,
    metric: str,
    declared: Declared,
    accuracy: Accuracy,
) -> Variant:
    info = msgspec.structs.replace(
        _costs(candidate, pipeline),
        accuracy=accuracy,
        provenance=_provenance(candidate, pipeline, metric),
        distributions=pipeline.result(candidate.evaluate, Comparison).distributions
        or msgspec.UNSET,
    )
    info = declared.put_into(info)
    if _has_anchors(info):
        size_bytes = info.size_bytes + pipeline.folder(ANCHORS).stat().st_size
        info = msgspec.structs.replace(info, size_bytes=size_bytes)
    return Variant(
        name=candidate.name,
        directory=candidate.name,
        info=info,
        ort=_ort(candidate.info),
    )


def _costs(candidate: Candidate, pipeline: Pipeline) -> VariantInfo:
    """Return the declaration with the size of the files and the measured figures."""
    performance = pipeline.result(candidate.measure, Performance) if candidate.measured else None
    peak_bytes = performance.peak_memory_bytes if performance else 0
    folder = pipeline.folder(candidate.build)
    return msgspec.structs.replace(
        candidate.info,
        size_bytes=sum((folder / file).stat().st_size for file in candidate.files),
        requirements=msgspec.structs.replace(
            candidate.info.requirements, memory_bytes=-(-peak_bytes // MIB) * MIB
        ),
        performance=performance,
    )


def variant_digests(candidate: Candidate, info: VariantInfo, pipeline: Pipeline) -> dict[str, str]:
    """Return the SHA-256 of each file that belongs to a variant."""
    digests = pipeline.file_digests(candidate.build, candidate.files)
    if _has_anchors(info):
        digests[ANCHORS_FILE] = file_sha256(pipeline.folder(ANCHORS))
    return digests


def _has_anchors(info: VariantInfo) -> bool:
    after = info.postprocessing or {}
    return any(how.suppression and how.suppression.anchors for how in after.values())


def _ort(info: VariantInfo) -> dict[str, Any] | None:
    """Return what ONNX Runtime itself needs to run a variant; None if it cannot run it."""
    return {"model_file": info.model_file} if RUNTIMES.named(info.runtime).reads_packages else None


def _provenance(candidate: Candidate, pipeline: Pipeline, metric: str) -> dict[str, str]:
    tools = pipeline.toolchain.tools
    return {
        "steps": ", ".join(candidate.steps),
        "metric": metric,
        **further_provenance(pipeline.result(REFERENCE, ReferenceResult).further),
        **{f"tool.{tool}": tools[tool] for tool in candidate.tools if tool in tools},
        **{f"sha256.{name}": digest for name, digest in pipeline.source_digests().items()},
    }


def _golden(
    candidate: Candidate,
    asset: str,
    pipeline: Pipeline,
    others: dict[str, Tolerance] | None,
) -> Golden:
    chosen = pipeline.result(GOLDEN, GoldenChoice)
    found = pipeline.result(candidate.evaluate, Comparison)
    return Golden(
        asset=asset,
        samples=len(chosen.samples),
        tolerances=found.tolerances(),
        min_agreement=chosen.min_agreement,
        kernels=found.kernels or msgspec.UNSET,
        other_tolerances=others or msgspec.UNSET,
    )


def _metadata(pipeline: Pipeline, plan: Plan, kept: set[str], metric: str) -> dict[str, Any]:
    """Return the data of the build as a whole, with only those tools that made a file."""
    tools = pipeline.toolchain.tools
    facts = pipeline.result(PREPARE, ModelFacts)
    _, source = RUNTIMES.of_source(facts.kind)
    used = set(source.tools)
    used |= {tool for c in plan.candidates if c.name in kept for tool in c.tools}
    return {
        "built_by": "edgefleet",
        "machine": pipeline.toolchain.machine,
        "metric": metric,
        "sources_sha256": pipeline.source_digests(),
        "tools": {name: tools[name] for name in sorted(used) if name in tools},
        **({"interface": list(facts.interface)} if facts.interface else {}),
    }


def _is_kept(found: dict[str, Verdict], variant: str) -> bool:
    return variant in found and found[variant].kept
