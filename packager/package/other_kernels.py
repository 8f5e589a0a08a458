"""Tries the variants of a package with the other kernels that a device may have of their runtimes.

Rules:
- What passes the gates of quality with other kernels gets tolerances for them, and its answers take
  part in the choice of the golden samples.
- What does not pass gets none, so a device with such kernels is held to the tolerances of the
  kernels that the build computed with. The build says so.
"""

from __future__ import annotations

import msgspec

from packager.judge.gates import Gates, vouched
from packager.plan.figures import Comparison
from packager.plan.steps import other_kernels_steps
from packager.plan.values import Candidate, Plan
from packager.run.pipeline import Pipeline
from packager.runtimes.table import RUNTIMES
from wire.package.golden import Tolerance
from wire.package.variant import Variant


class OtherKernels(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    tolerances: dict[str, dict[str, Tolerance]]
    """By variant and output; a variant that did not pass is missing."""

    notes: tuple[str, ...]
    """One line for each that did not pass."""


def try_other_kernels(
    kept: tuple[Candidate, ...],
    variants: tuple[Variant, ...],
    *,
    plan: Plan,
    pipeline: Pipeline,
    gates: Gates,
) -> OtherKernels:
    """Evaluate the variants of a package once more, where their runtimes have other kernels.

    Args:
        kept: Those that go into the package.
        variants: All variants, with their figures.
        plan: The plan, which holds the steps of their evaluation.
        pipeline: Runs the steps.
        gates: The limits.

    Returns:
        The tolerances of those that pass the gates of quality.
    """
    planned = (*plan.steps, *(step for repair in plan.repairs for step in repair.steps))
    steps = {step.name: step for step in other_kernels_steps(kept, planned, RUNTIMES)}
    pipeline.run(steps.values())
    by_name = {variant.name: variant for variant in variants}
    tolerances: dict[str, dict[str, Tolerance]] = {}
    notes: list[str] = []
    for candidate in kept:
        if candidate.evaluate_others not in steps:
            continue
        reason = pipeline.lost(candidate.evaluate_others) or ""
        if not reason:
            found = pipeline.result(candidate.evaluate_others, Comparison)
            reason = vouched(by_name[candidate.name], found.accuracy, gates)
            if not reason:
                tolerances[candidate.name] = found.tolerances()
                continue
        other = RUNTIMES.named(candidate.info.runtime).other_kernels
        how = ", ".join(f"{name} {value}" for name, value in other.items())
        notes.append(
            f"{candidate.name}: with {how} {reason}; a device whose kernels differ may refuse it"
        )
    return OtherKernels(tolerances=tolerances, notes=tuple(notes))
