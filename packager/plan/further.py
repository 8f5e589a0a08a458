"""Further metrics of a build: other outputs than the main metric's, each with a gate of its own.

This module is light, because the plan and the request hold these values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

LABELS: Final = ("label", "labels", "y", "target", "targets")
"""Names of the array of the main metric's labels, of which there is one at most; docs/building.md
has them."""


class FurtherMetric(msgspec.Struct, frozen=True, kw_only=True):
    """A metric of one output beside the main metric."""

    output: str
    metric: str
    """With its options, the output among them, as `Wanted.text` writes it."""

    labels: str = ""
    """The array of the samples that holds its labels; empty to compare with the reference's
    answers. One of the names in `LABELS` stands for the labels of the main metric."""

    min_retention: float | None = None
    """Least share of the reference's metric; None for that of the main metric."""


def labels_option(further: Iterable[FurtherMetric]) -> dict[str, Any]:
    """Return the option of the step that reads the samples: arrays of labels with their own names.

    Args:
        further: The further metrics.

    Returns:
        The option `labels`, without those of the main metric; nothing where there are none, so that
        a build without further metrics finds its earlier results.
    """
    names = sorted({one.labels for one in further if one.labels} - set(LABELS))
    return {"labels": names} if names else {}


def further_option(further: Iterable[FurtherMetric]) -> dict[str, Any]:
    """Return the option of the step that settles the metrics.

    Args:
        further: The further metrics.

    Returns:
        The option `further`, without the gates: another gate needs no other answers. Nothing where
        there are none.
    """
    asked = [{"output": f.output, "metric": f.metric, "labels": f.labels} for f in further]
    return {"further": asked} if asked else {}
