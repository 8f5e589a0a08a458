"""Chooses the samples that a device must reproduce before it serves, and how closely.

Rules:
- The samples come from the set `gate`, which no quantizer has seen.
- If outputs are class scores, the chosen samples are near a decision boundary: a broken variant
  fails there first. They are not so near that the rounding of another processor decides, so the
  margin of each variant must be greater than its guard.
- For other outputs, the chosen samples are those on which a variant's error is the largest share of
  the allowed error. Such samples have large activations or clipped ranges; most randomly chosen
  samples are easy. The variants choose in turn, so that one with large errors does not choose all.
- Every kept variant passes every golden sample by the same check that a device makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.judge.choice import scored_output
from packager.judge.metrics import scores_classes
from packager.plan.figures import ABSOLUTE_FLOOR, Comparison
from packager.samples.store import blocks, spread
from runtime_adapters.golden import compare
from runtime_adapters.protocol import Tensor, Tensors
from wire.package.golden import Tolerance

SAMPLES: Final = 8
GUARD: Final = 0.1
"""Share of a variant's worst error that its margin must exceed."""

OTHER_GUARD: Final = 0.5
"""The same for the answers of a runtime's other kernels, which round differently on each kind of
processor. A MLPerf Tiny ResNet-8 on tflite-runtime is off by up to 44 steps of 256; between x86-64
and armv7 the same kernels differ by up to 10 steps, and both of two scores may move."""


class VariantAnswers(NamedTuple):
    """The answers of a kept variant."""

    answers: Tensors
    """By output; the rows belong to the first samples of `indices`."""

    indices: Sequence[int]
    """The samples that it got, in order."""

    comparison: Comparison
    """The comparison with the reference: its errors, and its tolerances."""

    guard: float = GUARD


class Chosen(NamedTuple):
    """The golden samples."""

    samples: list[int]
    """Ascending."""

    min_agreement: float
    """1.0 if each variant's top answers equal the reference's on all samples; else 0.0, and only
    the tolerances decide."""


def pick(reference: Tensors, variants: Sequence[VariantAnswers], metric: str) -> Chosen:
    """Choose the golden samples.

    Args:
        reference: The reference's answers to all samples.
        variants: The answers of each kept variant, including the reference's variant.
        metric: The metric of the build.

    Returns:
        Up to 8 samples that every variant passes.

    Raises:
        DataError: There is no sample that every variant answered within its tolerances.
    """
    rows = [
        {index: row for row, index in enumerate(variant.indices[: _count(variant)])}
        for variant in variants
    ]
    total = len(next(iter(reference.values())))
    common = [index for index in range(total) if all(index in known for known in rows)]
    if scores_classes(metric):
        output = scored_output(metric, reference)
        order = _by_margin(reference[output], variants, output, common)
        samples = _first_passing(order, reference, variants, rows, agree=True)
        if len(samples) == SAMPLES or (samples and samples == common):
            return Chosen(samples, 1.0)
    # With many places per sample, or several outputs, variants do not agree everywhere.
    order = _by_error(reference, variants, common)
    samples = _first_passing(order, reference, variants, rows, agree=False)
    if not samples:
        raise DataError("the variants give different answers for every evaluation sample")
    return Chosen(samples, 0.0)


def margins(scores: Tensor) -> NDArray[np.float64]:
    """Return for each sample the smallest gap between its two greatest scores."""
    found = np.empty(len(scores), np.float64)
    for block in blocks(scores):
        top = np.partition(scores[block].astype(np.float64), -2, axis=-1)
        with np.errstate(invalid="ignore"):  # inf - inf where both are infinite
            gaps = top[..., -1] - top[..., -2]
        found[block] = gaps.reshape(len(gaps), -1).min(axis=1)
    return found


def errors(answers: Tensors, reference: Tensors, tolerances: dict[str, Tolerance]) -> Tensor:
    """Return for each sample its greatest error, divided by the error that is allowed there.

    Args:
        answers: By output.
        reference: The reference's answers by output, in the same rows.
        tolerances: By output.

    Returns:
        One ratio per sample; a sample passes up to 1.0.
    """
    worst = np.zeros(len(next(iter(reference.values()))), np.float64)
    for name, tensor in reference.items():
        tolerance = tolerances[name]
        for block in blocks(tensor):
            theirs = tensor[block].astype(np.float64)
            with np.errstate(invalid="ignore", over="ignore"):
                error = np.abs(answers[name][block].astype(np.float64) - theirs)
                ratio = error / (tolerance.absolute + tolerance.relative * np.abs(theirs))
            finite = np.nan_to_num(ratio).reshape(len(theirs), -1)
            worst[block] = np.maximum(worst[block], finite.max(axis=1, initial=0.0))
    return worst


def _count(variant: VariantAnswers) -> int:
    return len(next(iter(variant.answers.values())))


def _by_margin(
    scores: Tensor, variants: Sequence[VariantAnswers], output: str, common: list[int]
) -> Iterator[int]:
    """Order samples: with enough margin, the smallest first; then the others, the largest first."""
    safe = np.zeros(len(scores), np.bool_)
    safe[common] = True
    for variant in variants:
        asked = np.asarray(variant.indices[: _count(variant)])
        guard = variant.guard * variant.comparison.worst_errors[output] + ABSOLUTE_FLOOR
        safe[asked] &= margins(variant.answers[output]) > guard
    gaps = np.nan_to_num(margins(scores))
    yield from sorted((i for i in common if safe[i]), key=lambda i: (gaps[i], i))
    yield from sorted((i for i in common if not safe[i]), key=lambda i: (-gaps[i], i))


def _by_error(
    reference: Tensors, variants: Sequence[VariantAnswers], common: list[int]
) -> Iterator[int]:
    """Order samples: by turns each variant's next largest error; then the rest, evenly spread."""
    turns: list[list[int]] = []
    shared = set(common)
    for variant in variants:
        asked = np.asarray(variant.indices[: _count(variant)])
        theirs = {name: tensor[asked] for name, tensor in reference.items()}
        ratios = errors(variant.answers, theirs, variant.comparison.tolerances())
        order = np.argsort(-ratios, kind="stable")
        turns.append([int(asked[i]) for i in order if ratios[i] > 0 and int(asked[i]) in shared])
    seen: set[int] = set()
    for place in range(max(map(len, turns), default=0)):
        for turn in turns:
            if place < len(turn) and turn[place] not in seen:
                seen.add(turn[place])
                yield turn[place]
    rest = [index for index in common if index not in seen]
    first = [rest[i] for i in spread(len(rest), SAMPLES)]
    yield from first
    yield from (index for index in rest if index not in set(first))


def _first_passing(
    order: Iterator[int],
    reference: Tensors,
    variants: Sequence[VariantAnswers],
    rows: Sequence[dict[int, int]],
    *,
    agree: bool,
) -> list[int]:
    """Return the first samples that every variant passes, checked as on a device, ascending."""
    found: list[int] = []
    for index in order:
        if all(
            _passes(variant, known[index], reference, index, agree=agree)
            for variant, known in zip(variants, rows, strict=True)
        ):
            found.append(index)
        if len(found) == SAMPLES:
            break
    return sorted(found)


def _passes(
    variant: VariantAnswers, row: int, reference: Tensors, index: int, *, agree: bool
) -> bool:
    tolerances = variant.comparison.tolerances()
    for name, tensor in reference.items():
        ratio, same = compare(
            variant.answers[name][row : row + 1], tensor[index : index + 1], tolerances[name]
        )
        if ratio > 1.0 or (agree and not same):
            return False
    return True
