"""Finds the figures of the field that are of the files of a build."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from packager.judge.field import with_field
from packager.package.compose import variant_digests
from packager.plan.values import Plan
from packager.run.pipeline import Pipeline
from wire.measuring import ProfileFigures, files_digest
from wire.package.variant import Variant


def put_field(
    variants: tuple[Variant, ...],
    known: Sequence[ProfileFigures],
    plan: Plan,
    pipeline: Pipeline,
) -> tuple[Variant, ...]:
    """Give variants the figures that devices measured of the same files.

    Args:
        variants: What was built and evaluated.
        known: What devices measured.
        plan: Names the files.
        pipeline: Holds them.

    Returns:
        The variants.
    """
    if not known:
        return variants
    candidates = {candidate.name: candidate for candidate in plan.candidates}
    digests = {}
    for variant in variants:
        files = variant_digests(candidates[variant.name], variant.info, pipeline)
        info = msgspec.structs.replace(variant.info, files_sha256=files)
        digests[variant.name] = files_digest(info)
    return with_field(variants, digests, known)
