"""A variant's declarations of how numbers go in and out of its model: raw samples and answers.

Rules:
- A declaration holds numbers and names only, never code.
- A device refuses a declaration that it does not know, because applying only a part of it would
  give other answers.
- A field that was added after version 1 is unset where it is not used, so that manifests without it
  keep their bytes, and devices that do not know it take them.

Source:
    ONNX operators QuantizeLinear, DequantizeLinear, Softmax, TopK and NonMaxSuppression.
    Boxes from anchors: Liu et al., SSD: Single Shot MultiBox Detector, 2016, section 2.2.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from wire.package.tensors import Datatype


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
    """The output with the scores of the boxes: batch, class, box. Where it is the output of the
    boxes itself, each box has its four numbers, then its objectness if it has one, then its
    scores."""

    boxes: Literal["corners", "centre"] = "corners"
    """`y1, x1, y2, x2` (either diagonal), or `x, y, width, height` with the centre first."""

    layout: Literal["classes_first", "classes_last"] | msgspec.UnsetType = msgspec.UNSET
    """Axes of the output of the scores: batch, class, box, or batch, box, class. Unset for the
    first."""

    objectness: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether the fifth number of a box is how likely it holds anything: a factor of its scores."""

    activation: Literal["softmax", "sigmoid"] | msgspec.UnsetType = msgspec.UNSET
    """What turns the scores into probabilities; an objectness then gets a sigmoid. Unset where the
    model does it."""

    background: Literal["first", "last"] | msgspec.UnsetType = msgspec.UNSET
    """Which class stands for no object: no box of it is kept. Classes keep the model's numbers."""

    anchors: str | msgspec.UnsetType = msgspec.UNSET
    """File in the variant's directory, `.npy`, with the centre and the size of an anchor for each
    box (box, 4). The model's boxes are then offsets from them; `boxes` says what they become."""

    variances: tuple[float, float] | msgspec.UnsetType = msgspec.UNSET
    """Factors of the offsets of centre and size from an anchor; unset for 0.1 and 0.2."""

    class_agnostic: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a box counts with its best class alone, and hides boxes of all classes."""

    iou_threshold: float = 0.5
    """A box whose intersection over union with a better one is above this is dropped."""

    score_threshold: float = 0.0
    """Only boxes with a score above this count."""

    max_boxes_per_class: int = 100
    """Of all classes together where they are suppressed together."""


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
    """Set for an output of boxes: batch, box, 4; or of boxes with their scores."""

    labels: tuple[str, ...] = ()
    """Names of the classes, for the classification extension; empty for numbers alone."""


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps that turn a raw sample into the tensor that an input accepts.

    Images are resized first. Each value then becomes `(raw * scale - mean) / std`, with the
    channel's `mean` and `std`, in float32. The axes are moved from `source_layout` to `layout`, and
    the result is quantised.
    """

    source_datatype: Datatype
    """Type of the raw sample, such as UINT8 for pixels."""

    source_layout: str = ""
    """Letters of the raw axes, `N` first and `C` for channels, such as `NHWC`; empty if kept."""

    layout: str = ""
    """The same letters in the order of the input's axes, such as `NCHW`; `C` may be added if raw
    samples are grey."""

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    """One value per channel, or one for all; empty for 0."""

    std: tuple[float, ...] = ()
    """One value per channel, or one for all; empty for 1."""

    resize: Literal["bilinear", "nearest"] | msgspec.UnsetType = msgspec.UNSET
    """How raw images of any height and width (`H` and `W`) are brought to the size of the input,
    with pixel centres at (index + 0.5), without smoothing. Unset where they have that size."""

    quantization: Quantization | msgspec.UnsetType = msgspec.UNSET
    """Set for an input of integers that stand for real numbers."""
