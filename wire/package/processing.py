"""A variant's declarations of how numbers go in and out of its model: quantized tensors, answers.

Rules:
- A declaration holds numbers and names only, never code.
- A device refuses a declaration that it does not know, because applying only a part of it would
  give other answers.

Source:
    ONNX operators QuantizeLinear, DequantizeLinear, Softmax, TopK and NonMaxSuppression.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Quantization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the integers of a tensor stand for real numbers: `(integer - zero_point) * scale`."""

    scale: tuple[float, ...]
    """One for all, or one per index along `axis`."""

    zero_point: tuple[int, ...] = (0,)
    """One for all, or one per index along `axis`."""

    axis: int = 1


class Suppression(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which boxes of an output are kept: the best, without those that overlap a better one."""

    scores: str
    """The output with the scores of the boxes: batch, class, box."""

    boxes: Literal["corners", "centre"] = "corners"
    """`y1, x1, y2, x2` (either diagonal), or `x, y, width, height` with the centre first."""

    iou_threshold: float = 0.5
    """A box whose intersection over union with a better one is above this is dropped."""

    score_threshold: float = 0.0
    """Only boxes with a score above this count."""

    max_boxes_per_class: int = 100


class Postprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps that turn an output into an answer, in the order of these fields."""

    quantization: Quantization | None = None
    """Set for an output of integers, which become real numbers."""

    softmax: bool = False
    """Whether scores become probabilities along `axis`."""

    top_k: int = 0
    """How many of the greatest along `axis` are kept, greatest first; 0 keeps all, unsorted."""

    axis: int = -1
    """The axis of the classes."""

    suppression: Suppression | None = None
    """Set for an output of boxes: batch, box, 4."""

    labels: tuple[str, ...] = ()
    """Names of the classes, for the classification extension; empty for numbers alone."""
