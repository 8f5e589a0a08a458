"""The same as `numpy_forms`, compiled: one pass over memory where NumPy takes several.

Rules:
- Equal arguments give equal results: integers and single roundings are equal to the last bit. Where
  numbers are added up (softmax), the order of the sum differs, and so do some units in the last
  place.
- Each loop is compiled for few types: arrays are first brought to one memory order and made
  read-only, so that no request makes the compiler run again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.processing import numpy_forms
from runtime_adapters.processing.numba_library import compiled
from runtime_adapters.processing.numpy_forms import Floats, Indices, bilinear_taps
from runtime_adapters.protocol import Tensor

Bounds = NDArray[np.float32]


def resize_bilinear(images: Tensor, height: int, width: int) -> Floats:
    """Resize images, each pixel between its four neighbours: see `numpy_forms`."""
    rows, columns = bilinear_taps(images.shape[1], height), bilinear_taps(images.shape[2], width)
    out: Floats = np.empty((images.shape[0], height, width, images.shape[3]), np.float32)
    _resize(_narrow(images), *rows, *columns, out)
    return out


def normalise(
    values: Tensor, scale: float, mean: Floats, std: Floats, *, channels_first: bool
) -> Floats:
    """Compute `(value * scale - mean) / std`, channels first if wanted: see `numpy_forms`."""
    samples, pixels, channels = values.shape
    shape = (samples, channels, pixels) if channels_first else values.shape
    out: Floats = np.empty(shape, np.float32)
    loop = _normalise_first if channels_first else _normalise_last
    loop(_narrow(values), np.float32(scale), _fixed(mean), _fixed(std), out)
    return out


def quantize(
    values: Tensor, scale: Floats, zero_point: NDArray[np.int32], dtype: np.dtype[Any]
) -> Tensor:
    """Compute `round(value / scale) + zero_point` within the type's range: see `numpy_forms`."""
    if scale.size != 1 or zero_point.size != 1:
        return numpy_forms.quantize(values, scale, zero_point, dtype)
    bounds = np.iinfo(dtype)
    out = np.empty(values.shape, dtype)
    _quantize(
        _narrow(values).reshape(-1),
        np.float32(scale.item()),
        np.float32(zero_point.item()),
        np.array([bounds.min, bounds.max], np.float32),
        out.reshape(-1),
    )
    return out


def dequantize(values: Tensor, scale: Floats, zero_point: NDArray[np.int32]) -> Floats:
    """Compute `(value - zero_point) * scale`: see `numpy_forms`."""
    if scale.size != 1 or zero_point.size != 1:
        return numpy_forms.dequantize(values, scale, zero_point)
    out: Floats = np.empty(values.shape, np.float32)
    flat = _fixed(values).reshape(-1)
    _dequantize(flat, np.float32(scale.item()), np.int32(zero_point.item()), out.reshape(-1))
    return out


def softmax(scores: Tensor, axis: int) -> Floats:
    """Compute probabilities from scores, without overflow: see `numpy_forms`."""
    if not scores.size:
        return scores.astype(np.float32)
    rows = np.moveaxis(scores, axis, -1)
    out: Floats = np.empty(rows.shape, np.float32)
    _softmax(_narrow(rows).reshape(-1, rows.shape[-1]), out.reshape(-1, rows.shape[-1]))
    return np.ascontiguousarray(np.moveaxis(out, -1, axis))


def top_k(scores: Tensor, k: int) -> tuple[Tensor, Indices]:
    """Return the greatest of each row, greatest first: see `numpy_forms`."""
    if scores.dtype != np.float32 or k > MAX_INSERTED:
        return numpy_forms.top_k(scores, k)
    values: Floats = np.empty((len(scores), max(k, 0)), np.float32)
    indices: Indices = np.empty(values.shape, np.int64)
    if k > 0:
        _top_k(_fixed(scores), values, indices)
    return values, indices


def nms(
    boxes: Tensor,
    scores: Tensor,
    *,
    iou_threshold: float,
    score_threshold: float,
    max_per_class: int,
    centre: bool = False,
) -> Indices:
    """Keep the best boxes of each class, and none that overlaps a better one: `numpy_forms`."""
    return numpy_forms.suppress(
        boxes, scores, kept, iou_threshold, score_threshold, max_per_class, centre
    )


def kept(shape: Floats, order: Indices, iou_threshold: float, most: int) -> Indices:
    """Return which boxes of one class are kept: see `numpy_forms`."""
    found: Indices = np.empty(min(most, len(order)), np.int64)
    return found[: _kept(_fixed(shape), _fixed(order), np.float32(iou_threshold), found)]


MAX_INSERTED: Final = 64
"""Above this, insertion into the list of the best is slower than sorting them all."""


def _fixed(array: Tensor) -> Tensor:
    """Return an array as the compiler knows it: in C order, aligned and read-only."""
    view = np.require(array, requirements=["C", "A"]).view()
    view.flags.writeable = False
    return view


def _narrow(values: Tensor) -> Tensor:
    """Return numbers as bytes or as float32: the loops are compiled for these two kinds."""
    return _fixed(values if values.dtype == np.uint8 else values.astype(np.float32, copy=False))


@compiled
def _resize(
    images: Tensor,
    top: Indices,
    bottom: Indices,
    down: Floats,
    left: Indices,
    right: Indices,
    across: Floats,
    out: Floats,
) -> None:
    channels = images.shape[3]
    blended = np.empty(images.shape[2] * channels, np.float32)
    for n in range(out.shape[0]):
        for y in range(out.shape[1]):
            upper, lower = images[n, top[y]].reshape(-1), images[n, bottom[y]].reshape(-1)
            weight = down[y]
            for i in range(blended.shape[0]):
                start = np.float32(upper[i])
                blended[i] = (np.float32(lower[i]) - start) * weight + start
            for x in range(out.shape[2]):
                for c in range(channels):
                    start = blended[left[x] * channels + c]
                    end = blended[right[x] * channels + c]
                    out[n, y, x, c] = (end - start) * across[x] + start


@compiled
def _normalise_first(
    values: Tensor, scale: np.float32, mean: Floats, std: Floats, out: Floats
) -> None:
    for n in range(values.shape[0]):
        for c in range(values.shape[2]):
            for p in range(values.shape[1]):
                out[n, c, p] = (np.float32(values[n, p, c]) * scale - mean[c]) / std[c]


@compiled
def _normalise_last(
    values: Tensor, scale: np.float32, mean: Floats, std: Floats, out: Floats
) -> None:
    for n in range(values.shape[0]):
        for p in range(values.shape[1]):
            for c in range(values.shape[2]):
                out[n, p, c] = (np.float32(values[n, p, c]) * scale - mean[c]) / std[c]


@compiled
def _quantize(
    values: Tensor, scale: np.float32, zero_point: np.float32, bounds: Bounds, out: Tensor
) -> None:
    for i in range(values.shape[0]):
        real = np.rint(np.float32(values[i]) / scale)
        if np.isnan(real):
            real = np.float32(0)
        real += zero_point
        out[i] = min(max(real, bounds[0]), bounds[1])


@compiled
def _dequantize(values: Tensor, scale: np.float32, zero_point: np.int32, out: Floats) -> None:
    for i in range(values.shape[0]):
        out[i] = np.float32(np.int32(values[i]) - zero_point) * scale


@compiled
def _softmax(scores: Tensor, out: Floats) -> None:
    for row in range(scores.shape[0]):
        greatest = np.float32(scores[row, 0])
        for i in range(1, scores.shape[1]):
            greatest = np.maximum(greatest, np.float32(scores[row, i]))
        total = np.float32(0)
        for i in range(scores.shape[1]):
            out[row, i] = np.exp(np.float32(scores[row, i]) - greatest)
            total += out[row, i]
        for i in range(scores.shape[1]):
            out[row, i] /= total


@compiled
def _top_k(scores: Tensor, values: Floats, indices: Indices) -> None:
    most = values.shape[1]
    keys = np.empty(most, np.float32)
    for row in range(scores.shape[0]):
        found = 0
        for i in range(scores.shape[1]):
            key = scores[row, i]
            if np.isnan(key):
                key = np.float32(-np.inf)
            if found == most and key <= keys[most - 1]:
                continue
            place = found if found < most else most - 1
            while place > 0 and keys[place - 1] < key:
                keys[place], indices[row, place] = keys[place - 1], indices[row, place - 1]
                place -= 1
            keys[place], indices[row, place] = key, i
            found = min(found + 1, most)
        for place in range(most):
            values[row, place] = scores[row, indices[row, place]]


@compiled
def _kept(shape: Floats, order: Indices, iou_threshold: np.float32, found: Indices) -> int:
    count = 0
    for box in order:
        if count == found.shape[0]:
            break
        is_free = True
        for i in range(count):
            other = found[i]
            tall = min(shape[2, box], shape[2, other]) - max(shape[0, box], shape[0, other])
            wide = min(shape[3, box], shape[3, other]) - max(shape[1, box], shape[1, other])
            if tall > 0 and wide > 0:
                both = tall * wide
                if both / (shape[4, other] + shape[4, box] - both) > iou_threshold:
                    is_free = False
                    break
        if is_free:
            found[count] = box
            count += 1
    return count
