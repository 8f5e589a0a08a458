"""From what the steps found to the variants, the manifest and the report of a build.

Rules:
- Nothing here depends on time or on where files lie: equal findings, equal manifest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from packager.cache import file_sha256
from packager.figures import Comparison, GoldenResult
from packager.gates import MIB, Verdict, Verdicts
from packager.pipeline import Pipeline
from packager.plan import CLASS_METRICS, Candidate, Plan
from packager.step import GOLDEN_FOLDER
from wire.codec import sha256_hex, to_json
from wire.manifest import (
    Accuracy,
    Golden,
    Manifest,
    Performance,
    Requirements,
    Variant,
    VariantInfo,
)
from wire.package import asset_directory, asset_uri

GOLDEN_STEP: Final = "golden"
VERSION_DIGITS: Final = 12


class CandidateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a candidate, in the package or not."""

    name: str
    runtime: str
    precision: str
    size_bytes: int | None = None
    accuracy: Accuracy | None = None
    performance: Performance | None = None
    lost: str = ""
    """Why it could not be built, evaluated or measured; empty when it could."""

    profiles: dict[str, Verdict] = {}
    """Profile to what was decided, for those that it was planned for."""

    @property
    def kept(self) -> bool:
        """Whether it is in the package."""
        return any(verdict.kept for verdict in self.profiles.values())


def built_variants(plan: Plan, pipeline: Pipeline, metric: str) -> tuple[Variant, ...]:
    """Return the candidates that were built, evaluated and measured, with their figures.

    Args:
        plan: The plan that was carried out.
        pipeline: What came of it.
        metric: The metric of the build.

    Returns:
        The variants; without golden samples yet.
    """
    return tuple(
        _variant(candidate, pipeline, metric)
        for candidate in plan.candidates
        if _loss(candidate, pipeline) is None
    )


def assemble(
    name: str,
    version: str,
    variants: tuple[Variant, ...],
    verdicts: Verdicts,
    *,
    pipeline: Pipeline,
    plan: Plan,
    metric: str,
) -> tuple[Manifest, dict[str, Path]]:
    """Put the package together.

    Args:
        name: Of the package.
        version: Of the package; empty for one that follows from the content.
        variants: All measured variants.
        verdicts: Which of them are kept for which profile.
        pipeline: Holds the files, and the golden samples of the kept ones.
        plan: Names the files.
        metric: The metric of the build.

    Returns:
        The manifest, and every other file of the package by its path there.
    """
    folder = pipeline.folder(GOLDEN_STEP) / GOLDEN_FOLDER
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
            golden=_golden(candidate, asset, pipeline, metric),
        )
        kept.append(msgspec.structs.replace(variant, info=info))
        source = pipeline.folder(candidate.build)
        files |= {f"{variant.directory}/{file}": source / file for file in candidate.files}
    manifest = Manifest(
        name=name,
        version=version or "0",
        variants=tuple(kept),
        metadata=_metadata(pipeline, metric),
    )
    if not version:
        manifest = msgspec.structs.replace(manifest, version=default_version(manifest, files))
    return manifest, files


def candidate_reports(
    plan: Plan, variants: tuple[Variant, ...], verdicts: Verdicts, pipeline: Pipeline
) -> tuple[CandidateReport, ...]:
    """Return what became of every candidate, in the order of the plan."""
    known = {variant.name: variant.info for variant in variants}
    reports: list[CandidateReport] = []
    for candidate in plan.candidates:
        info = known.get(candidate.name)
        reports.append(
            CandidateReport(
                name=candidate.name,
                runtime=candidate.info.runtime,
                precision=candidate.info.precision,
                size_bytes=info.size_bytes if info else None,
                accuracy=info.accuracy if info else None,
                performance=info.performance if info else None,
                lost=_loss(candidate, pipeline) or "",
                profiles={
                    profile: found[candidate.name]
                    for profile, found in verdicts.items()
                    if candidate.name in found
                },
            )
        )
    return tuple(reports)


def default_version(manifest: Manifest, files: dict[str, Path]) -> str:
    """Return a version that follows from the content: two packages of one version are the same.

    Args:
        manifest: With any version.
        files: Every other file of the package.

    Returns:
        The version.
    """
    digests = {path: file_sha256(source) for path, source in files.items()}
    digest = sha256_hex(to_json([manifest, digests]))
    return f"0-{digest[:VERSION_DIGITS]}"


def _variant(candidate: Candidate, pipeline: Pipeline, metric: str) -> Variant:
    comparison = pipeline.result(candidate.evaluate, Comparison)
    performance = pipeline.result(candidate.measure, Performance)
    folder = pipeline.folder(candidate.build)
    info = msgspec.structs.replace(
        candidate.info,
        size_bytes=sum((folder / file).stat().st_size for file in candidate.files),
        requirements=Requirements(
            architectures=candidate.info.requirements.architectures,
            isa_features=candidate.info.requirements.isa_features,
            memory_bytes=-(-performance.peak_memory_bytes // MIB) * MIB,
        ),
        accuracy=comparison.accuracy,
        performance=performance,
        provenance=_provenance(candidate, pipeline, metric),
    )
    return Variant(
        name=candidate.name, directory=candidate.name, info=info, ort=_ort(candidate.info)
    )


def _ort(info: VariantInfo) -> dict[str, Any] | None:
    """Return what ONNX Runtime itself needs to run a variant; None where it cannot."""
    return {"model_file": info.model_file} if info.runtime == "onnxruntime" else None


def _provenance(candidate: Candidate, pipeline: Pipeline, metric: str) -> dict[str, str]:
    tools = pipeline.toolchain.tools
    return {
        "steps": ", ".join(candidate.steps),
        "metric": metric,
        **{f"tool.{tool}": tools[tool] for tool in candidate.tools if tool in tools},
        **{f"sha256.{name}": digest for name, digest in pipeline.source_digests().items()},
    }


def _golden(candidate: Candidate, asset: str, pipeline: Pipeline, metric: str) -> Golden:
    return Golden(
        asset=asset,
        samples=len(pipeline.result(GOLDEN_STEP, GoldenResult).samples),
        tolerances=pipeline.result(candidate.evaluate, Comparison).tolerances(),
        min_agreement=1.0 if metric in CLASS_METRICS else 0.0,
    )


def _metadata(pipeline: Pipeline, metric: str) -> dict[str, Any]:
    return {
        "built_by": "edgefleet",
        "machine": pipeline.toolchain.machine,
        "metric": metric,
        "sources_sha256": pipeline.source_digests(),
        "tools": pipeline.toolchain.tools,
    }


def _loss(candidate: Candidate, pipeline: Pipeline) -> str | None:
    return pipeline.lost(candidate.build, candidate.evaluate, candidate.measure)


def _is_kept(found: dict[str, Verdict], variant: str) -> bool:
    return variant in found and found[variant].kept
