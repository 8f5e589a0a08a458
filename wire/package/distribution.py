"""How the inputs and answers of the evaluation are distributed: the reference of drift.

Rules:
- It holds counts of samples by bin, never samples.
- A device leaves out a measure that it does not know: the model answers without it.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

MAX_DISTRIBUTIONS: Final = 16
"""Of a variant. With `MAX_BINS` bins each they take a few KiB of the manifest."""

MAX_BINS: Final = 33
CLASS: Final = "class"
MARGIN: Final = "margin"
MEAN: Final = "mean"
SPREAD: Final = "spread"


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How many samples of the evaluation fell into each bin, by one measure of one tensor."""

    of: Literal["input", "output"]
    tensor: str
    measure: str
    """`class`: the index of the greatest score. `margin`: the greatest score less the second.
    `mean` and `spread`: the mean and the standard deviation of the elements."""

    classes: tuple[int, ...] = ()
    """For `class`: the class of each bin; one more bin is for all others."""

    edges: tuple[float, ...] = ()
    """For the other measures, rising: bin i has what is above edge i - 1 and at most edge i; one
    more bin is for what is above the last."""

    counts: tuple[int, ...]
    """Samples by bin: one more than there are classes or edges."""
