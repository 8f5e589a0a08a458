"""Which output of a variant scores classes: what a top answer is taken from. Pure.

Rules:
- A sample of such an output is one row of at least two scores, of a size that is declared: floats,
  or integers for which the package says how they stand for real numbers.
- Of several the first counts that has labels, else the first whose classes the evaluation counted,
  else the first.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from wire.package.distribution import CLASS
from wire.package.processing import Postprocessing
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

FEWEST_CLASSES: Final = 2
MOST_CLASSES: Final = 65_536
"""The greatest of so many is found in some 20 microseconds."""

_FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})
_NOTHING: Final = Postprocessing()


class Classes(msgspec.Struct, frozen=True, kw_only=True):
    """The classes that an output scores."""

    output: str
    number: int
    labels: tuple[str, ...] = ()
    """Their names; empty where the package declares none."""


def classes_of(info: VariantInfo) -> Classes | None:
    """Return which classes a variant tells apart.

    Args:
        info: What it declares.

    Returns:
        The classes; None if no output has a row of scores for each sample.
    """
    declared = info.postprocessing or {}
    counted = {each.tensor for each in info.distributions or () if each.measure == CLASS}
    found = []
    for spec in info.outputs:
        how = declared.get(spec.name, _NOTHING)
        if _are_scores(spec, how):
            size = spec.shape[-1]
            labels = how.labels if len(how.labels) <= size else ()
            found.append(Classes(output=spec.name, number=size, labels=labels))
    return min(found, key=lambda each: (not each.labels, each.output not in counted), default=None)


def _are_scores(spec: TensorSpec, how: Postprocessing) -> bool:
    if spec.datatype not in _FLOATS and (how.quantization is None or spec.datatype == "BYTES"):
        return False
    sizes = spec.shape[1:] if spec.shape[:1] in {(1,), (-1,)} else spec.shape
    return (
        bool(sizes)
        and min(sizes) > 0
        and FEWEST_CLASSES <= sizes[-1] <= MOST_CLASSES
        and math.prod(sizes) == sizes[-1]
        and how.suppression is None
    )
