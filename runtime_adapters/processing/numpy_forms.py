"""Pre- and post-processing of tensors in NumPy: the form that every device can run.

Rules:
- Each function defines its result; a compiled form of the same name gives the same result.
- Real numbers are computed in float32, whatever type they have.
- No function raises because of a value: infinity and NaN follow the rules of arithmetic.

Source:
    ONNX operator specification (opset 21): Resize, QuantizeLinear, DequantizeLinear, Softmax,
    Sigmoid, TopK, NonMaxSuppression.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.protocol import Tensor

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]

FEW_CHANNELS: Final = 4
BLOCK_BOXES: Final = 128
_QUIET: Final[Any] = {"over": "ignore", "invalid": "ignore", "divide": "ignore"}


def bilinear_taps(source: int, target: int) -> tuple[Indices, Indices, Floats]:
    """Return between which two source indices each target index lies, and how far from the first.

    Args:
        source: Size of an axis, at least 1.
        target: Its size afterwards.

    Returns:
        Lower index, upper index and weight of the upper one, one each per target index.
    """
    centres = (np.arange(target) + 0.5) * (source / target) - 0.5
    below = np.floor(centres)
    weight = (centres - below).astype(np.float32)
    lower = below.astype(np.int64)
    return lower.clip(0, source - 1), (lower + 1).clip(0, source - 1), weight


def resize_bilinear(images: Tensor, height: int, width: int) -> Floats:
    """Resize images, each pixel between its four neighbours.

    Args:
        images: Shape (N, H, W, C), numbers; H and W at least 1.
        height: Rows afterwards.
        width: Columns afterwards.

    Returns:
        Shape (N, height, width, C); an image of one colour keeps it exactly.

    Source:
        ONNX Resize, mode `linear`, `half_pixel`, no antialiasing.
    """
    top, bottom, down = bilinear_taps(images.shape[1], height)
    left, right, across = bilinear_taps(images.shape[2], width)
    rows = _between(images[:, top], images[:, bottom], down[:, None, None])
    return _between(rows.take(left, axis=2), rows.take(right, axis=2), across[:, None])


def resize_nearest(images: Tensor, height: int, width: int) -> Tensor:
    """Resize images, each pixel a copy of the one whose centre is nearest.

    Args:
        images: Shape (N, H, W, C); H and W at least 1.
        height: Rows afterwards.
        width: Columns afterwards.

    Returns:
        Shape (N, height, width, C), of the same type; halfway between two pixels the later counts.

    Source:
        ONNX Resize, mode `nearest`, `half_pixel`, `round_prefer_ceil`.
    """
    rows, columns = (
        (2 * np.arange(target) + 1) * source // (2 * target)
        for source, target in ((images.shape[1], height), (images.shape[2], width))
    )
    return images[:, rows[:, None], columns]


def normalise(
    values: Tensor, scale: float, mean: Floats, std: Floats, *, channels_first: bool
) -> Floats:
    """Compute `(value * scale - mean) / std`, and put the channels first where that is wanted.

    Args:
        values: Shape (N, P, C), numbers.
        scale: One factor for all.
        mean: Shape (C,).
        std: Shape (C,).
        channels_first: Whether the result has shape (N, C, P) instead.

    Returns:
        New and C-contiguous.
    """
    if channels_first:  # NumPy reads across memory faster than it writes across it
        values, mean, std = values.transpose(0, 2, 1), mean[:, None], std[:, None]
    out: Floats = np.empty(values.shape, np.float32)
    with np.errstate(**_QUIET):
        out[...] = values
        out *= np.float32(scale)
        if channels_first or len(mean) > FEW_CHANNELS:
            out -= mean
            out /= std
            return out
        for channel in range(len(mean)):  # an inner loop of three steps would cost more
            out[..., channel] -= mean[channel]
            out[..., channel] /= std[channel]
    return out


def quantize(
    values: Tensor, scale: Floats, zero_point: NDArray[np.int32], dtype: np.dtype[Any]
) -> Tensor:
    """Compute `round(value / scale) + zero_point`, half to even, within the range of the type.

    Args:
        values: Numbers; NaN counts as 0.
        scale: Broadcastable to them.
        zero_point: Broadcastable to them.
        dtype: An integer type of 8 or 16 bits.

    Returns:
        The same shape.

    Source:
        ONNX QuantizeLinear.
    """
    bounds = np.iinfo(dtype)
    with np.errstate(**_QUIET):
        real = values.astype(np.float32)
        real /= scale
        np.rint(real, out=real)
        real[np.isnan(real)] = 0.0
        real += zero_point.astype(np.float32)
    return real.clip(bounds.min, bounds.max).astype(dtype)


def dequantize(values: Tensor, scale: Floats, zero_point: NDArray[np.int32]) -> Floats:
    """Compute `(value - zero_point) * scale`.

    Args:
        values: Integers of at most 32 bits.
        scale: Broadcastable to them.
        zero_point: Broadcastable to them; 0 for integers of 32 bits.

    Returns:
        The same shape.

    Source:
        ONNX DequantizeLinear.
    """
    real = (values.astype(np.int32) - zero_point).astype(np.float32)
    with np.errstate(**_QUIET):
        real *= scale
    return real


def softmax(scores: Tensor, axis: int) -> Floats:
    """Compute probabilities from scores, without overflow.

    Args:
        scores: Numbers.
        axis: The axis along which they add up to 1.

    Returns:
        The same shape.

    Source:
        ONNX Softmax.
    """
    real: Floats = scores.astype(np.float32)
    if real.size:
        with np.errstate(under="ignore", **_QUIET):
            real -= real.max(axis=axis, keepdims=True)
            np.exp(real, out=real)
            real /= real.sum(axis=axis, keepdims=True)
    return real


def sigmoid(scores: Tensor) -> Floats:
    """Compute a probability from each score by itself, without overflow.

    Args:
        scores: Numbers.

    Returns:
        The same shape.

    Source:
        ONNX Sigmoid.
    """
    real: Floats = -scores.astype(np.float32)
    with np.errstate(under="ignore", **_QUIET):
        np.exp(real, out=real)
        real += np.float32(1)
        np.reciprocal(real, out=real)
    return real


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Indices]:
    """Return the greatest of each row, greatest first.

    Args:
        scores: Shape (rows, classes); NaN counts as minus infinity.
        k: How many; at most as many as there are.

    Returns:
        Values and indices, shape (rows, k); of equal ones the lower index comes first.

    Source:
        ONNX TopK, `largest` and `sorted`.
    """
    k = max(k, 0)
    indices: Indices = np.empty((len(scores), k), np.int64)
    for number, row in enumerate(scores if k else ()):
        keys = row
        if row.dtype.kind == "f":
            keys = np.where(np.isnan(row), row.dtype.type(-np.inf), row)
        least = np.partition(keys, len(keys) - k)[len(keys) - k]
        greater = np.flatnonzero(keys > least)
        chosen = np.concatenate([greater, np.flatnonzero(keys == least)[: k - len(greater)]])
        # Reversed before and after a stable sort: values fall, and it works for unsigned ones too.
        order = np.argsort(keys[chosen[::-1]], kind="stable")[::-1]
        indices[number] = chosen[::-1][order]
    return np.take_along_axis(scores, indices, axis=1), indices


def corners(boxes: Floats, *, centre: bool) -> Floats:
    """Return boxes as two corners and an area.

    Args:
        boxes: Shape (boxes, 4): any two opposite corners, or centre, width and height.
        centre: Whether they are centre, width and height.

    Returns:
        Shape (5, boxes): the lower corner, the upper corner, the area.
    """
    with np.errstate(**_QUIET):
        if centre:
            half = boxes[:, 2:] / np.float32(2)
            low, high = boxes[:, :2] - half, boxes[:, :2] + half
        else:
            low = np.minimum(boxes[:, :2], boxes[:, 2:])
            high = np.maximum(boxes[:, :2], boxes[:, 2:])
        sides = high - low
        area = sides[:, 0] * sides[:, 1]
    return np.ascontiguousarray(np.concatenate([low.T, high.T, area[None]]))


def from_anchors(
    offsets: Tensor, anchors: Floats, variances: tuple[float, float], *, centre: bool
) -> Floats:
    """Return boxes that a model gives as offsets from anchors.

    The centre is `anchor centre + offset * variance * anchor size`, the size is
    `anchor size * exp(offset * variance)`.

    Args:
        offsets: Shape (batch, boxes, 4): of the centre, then of the size.
        anchors: Shape (boxes, 4): centre and size, with the axes in the same order.
        variances: Of the centre and of the size.
        centre: Whether boxes are wanted as centre and size, rather than as two corners.

    Returns:
        The same shape as the offsets.

    Source:
        Liu et al., SSD: Single Shot MultiBox Detector, 2016, section 2.2; the variances are those
        of its implementation.
    """
    of_centre, of_size = np.float32(variances[0]), np.float32(variances[1])
    real: Floats = offsets.astype(np.float32)
    middle, size = real[..., :2], real[..., 2:]
    with np.errstate(under="ignore", **_QUIET):
        middle *= of_centre * anchors[:, 2:]
        middle += anchors[:, :2]
        size *= of_size
        np.exp(size, out=size)
        size *= anchors[:, 2:]
        if not centre:
            middle -= size / np.float32(2)
            size += middle
    return real


def candidates(scores: Floats, score_threshold: float) -> Indices:
    """Return the boxes of one class above a threshold, best first, then lower index first.

    Args:
        scores: Shape (boxes,).
        score_threshold: NaN is not above it.
    """
    above = np.flatnonzero(scores > np.float32(score_threshold))
    order: Indices = above[np.argsort(-scores[above], kind="stable")]
    return order


def kept(shape: Floats, order: Indices, iou_threshold: float, most: int) -> Indices:
    """Return which boxes of one class are kept.

    Args:
        shape: All boxes, as `corners` returns them.
        order: The boxes to look at, best first.
        iou_threshold: A box that overlaps a kept one by more is dropped.
        most: How many are kept at most.

    Returns:
        The kept boxes, in that order. A box with NaN in it, or without an area, overlaps none.
    """
    found: list[int] = []
    for start in range(0, len(order), BLOCK_BOXES):  # the first blocks are often enough
        block = order[start : start + BLOCK_BOXES]
        hidden = _overlap(shape, np.array(found, np.int64), block, iou_threshold)
        is_free = np.logical_not(hidden.any(axis=0, keepdims=True))[0]
        hides = _overlap(shape, block, block, iou_threshold)
        for place, box in enumerate(block.tolist()):
            if len(found) == most:
                return np.array(found, np.int64)
            if is_free[place]:
                found.append(box)
                is_free &= ~hides[place]
    return np.array(found, np.int64)


def nms(
    boxes: Tensor,
    scores: Tensor,
    *,
    iou_threshold: float,
    score_threshold: float,
    max_per_class: int,
    centre: bool = False,
) -> Indices:
    """Keep the best boxes of each class, and none that overlaps a better one.

    Args:
        boxes: Shape (batch, boxes, 4).
        scores: Shape (batch, classes, boxes).
        iou_threshold: Greatest intersection over union with a better box.
        score_threshold: Boxes at or below it are left out.
        max_per_class: Most boxes of a class; none where it is 0.
        centre: Whether boxes are centre, width and height, rather than two corners.

    Returns:
        Shape (kept, 3): batch, class and box; by batch, then class, then falling score.

    Source:
        ONNX NonMaxSuppression.
    """
    return suppress(boxes, scores, kept, iou_threshold, score_threshold, max_per_class, centre)


def suppress(
    boxes: Tensor,
    scores: Tensor,
    keep: Any,  # noqa: ANN401 - `kept`, or its compiled form
    iou_threshold: float,
    score_threshold: float,
    max_per_class: int,
    centre: bool,
) -> Indices:
    """Do what `nms` does, with the given form of its inner loop."""
    found: list[Indices] = [np.empty((0, 3), np.int64)]
    for batch, rows in enumerate(scores.astype(np.float32, copy=False)):
        shape = corners(boxes[batch].astype(np.float32, copy=False), centre=centre)
        for number, row in enumerate(rows):
            order = candidates(row, score_threshold)
            if len(order) and max_per_class > 0:
                chosen = keep(shape, order, iou_threshold, max_per_class)
                place = np.full_like(chosen, batch), np.full_like(chosen, number), chosen
                found.append(np.stack(place, axis=1))
    return np.concatenate(found)


def _overlap(shape: Floats, some: Indices, others: Indices, most: float) -> NDArray[np.bool_]:
    """Tell for each pair of boxes whether they overlap by more than a share of their union."""
    one, other = shape[:, some, None], shape[:, None, others]
    with np.errstate(**_QUIET):
        sides = np.minimum(one[2:4], other[2:4]) - np.maximum(one[:2], other[:2])
        both = sides[0] * sides[1]
        share = both / (one[4] + other[4] - both)
    found: NDArray[np.bool_] = (sides > 0).all(axis=0) & (share > np.float32(most))
    return found


def _between(first: Tensor, second: Tensor, weight: Floats) -> Floats:
    """Blend two arrays; the result may overwrite the second."""
    start = first.astype(np.float32, copy=False)
    found: Floats = second.astype(np.float32, copy=False)
    with np.errstate(**_QUIET):
        found -= start
        found *= weight
        found += start
    return found
