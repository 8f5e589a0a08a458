"""Metrics of class scores along the last axis: top1, top5 and agreement with the reference."""

from __future__ import annotations

from typing import Final

import numpy as np

from packager.judge.sums import Options, Sums, first, in_blocks
from runtime_adapters.protocol import Tensor

TOP5: Final = 5


def top1(answers: Tensor, reference: Tensor, labels: Tensor | None, _options: Options) -> Sums:
    """Return whether the label has the greatest score; of many places, the share."""
    return _top(1, answers, reference, labels)


def top5(answers: Tensor, reference: Tensor, labels: Tensor | None, _options: Options) -> Sums:
    """Return whether the label is among the five greatest scores; of many places, the share."""
    return _top(TOP5, answers, reference, labels)


def agreement(
    answers: Tensor, reference: Tensor, _labels: Tensor | None, _options: Options
) -> Sums:
    """Return whether the top answer is the reference's; of many places, the share."""

    def score(ours: Tensor, theirs: Tensor, _known: Tensor | None) -> Tensor:
        return _share(ours.argmax(axis=-1) == theirs.argmax(axis=-1))

    return Sums(in_blocks(score, answers, reference, None), first)


def _top(count: int, answers: Tensor, reference: Tensor, labels: Tensor | None) -> Sums:
    def score(ours: Tensor, _theirs: Tensor, known: Tensor | None) -> Tensor:
        wanted = np.asarray(known)[..., None]
        own = np.take_along_axis(ours, wanted, axis=-1)
        places = np.arange(ours.shape[-1])
        # The rank of a stable sort: a greater score, or an equal and earlier one, comes before.
        before = (ours > own) | ((ours == own) & (places < wanted))
        return _share(before.sum(axis=-1) < count)

    return Sums(in_blocks(score, answers, reference, labels), first)


def _share(right: Tensor) -> Tensor:
    found: Tensor = right.reshape(len(right), -1).mean(axis=1)
    return found
