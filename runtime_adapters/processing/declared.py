"""Turns raw samples into what an input takes, as its `Preprocessing` declares.

Rules:
- The steps are: resize, then `(raw * scale - mean) / std` in float32, channel by channel, then the
  order of the axes, then quantisation. The packager and the device run this same code.
- The letters of a layout stand for the last axes of an array; axes before them count samples and
  stay.
- The size of a request is checked before anything is allocated.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.errors import InputError
from runtime_adapters.processing import kernels
from runtime_adapters.processing.declarations import (
    CHANNELS,
    FLOATS,
    SAMPLES,
    SIDES,
    check_preprocessing,
    computes,
)
from runtime_adapters.protocol import Tensor
from runtime_adapters.tensors import ANY, dtype_of
from wire.package.processing import Preprocessing, Quantization
from wire.package.tensors import TensorSpec

MAX_PREPARED_BYTES: Final = 256 * 1024**2
"""Counted as float32; a request with prepared samples may bring as much."""

_FLOAT_BYTES: Final = 4


class Preprocessor:
    """The preprocessing of an input's raw samples.

    Args:
        spec: The input.
        how: Its preprocessing.

    Raises:
        DeclarationError: The input and the preprocessing do not fit.
    """

    def __init__(self, spec: TensorSpec, how: Preprocessing) -> None:
        check_preprocessing(spec, how)
        self._spec = spec
        self._how = how
        self._dtype = dtype_of(spec.datatype)
        self._layout = how.layout
        self.raw = raw_spec(spec, how)
        # As the steps see it: images are N, H, W, C; anything else keeps its order, channels last.
        inner = "".join(letter for letter in how.source_layout[1:] if letter != CHANNELS)
        self._inner = SIDES if how.resize else inner
        self._size = (
            tuple(spec.shape[how.layout.index(side)] for side in SIDES) if how.resize else None
        )

    def __call__(self, raw: Tensor) -> Tensor:
        """Prepare samples.

        Args:
            raw: Samples of the raw type and rank; more axes that count may come first.

        Returns:
            What the input takes, C-contiguous.

        Raises:
            InputError: The samples are too large, have other channels than `mean` and `std`, or
                give a result that is not finite.
        """
        self._check_size(raw)
        if not self._layout:
            flat = self._computed(raw.reshape(1, raw.size, 1), first=False)
            return self._finished(flat.reshape(raw.shape))
        counting = raw.shape[: raw.ndim - len(self._how.source_layout) + 1]
        values = self._images(raw.reshape(math.prod(counting), *raw.shape[len(counting) :]))
        if self._size:
            values = self._resized(values, *self._size)
        first = self._layout.startswith(SAMPLES + CHANNELS)
        samples, sides, channels = values.shape[0], values.shape[1:-1], values.shape[-1]
        pixels = values.reshape(samples, math.prod(sides), channels)
        values = self._computed(pixels, first=first)
        shape = (samples, channels, *sides) if first else (samples, *sides, channels)
        prepared = self._finished(self._ordered(values.reshape(shape), first=first))
        return prepared.reshape(*counting, *prepared.shape[1:])

    def warm(self) -> None:
        """Run once on the smallest sample, so that no request compiles anything."""
        shape = [2 if size == ANY else size for size in self.raw.shape]
        if max(math.prod(shape[1:]), 1) * _FLOAT_BYTES <= MAX_PREPARED_BYTES:
            least = np.zeros([min(shape[0], 2), *shape[1:]] if shape else [], self.raw_dtype)
            kernels.warm(lambda: self(least))

    @property
    def _forms(self) -> kernels.Forms:
        return kernels.forms(pays=self._how.resize == "bilinear")

    @property
    def raw_dtype(self) -> np.dtype[Any]:
        """NumPy's type of raw samples."""
        return dtype_of(self.raw.datatype)

    def _images(self, raw: Tensor) -> Tensor:
        """Return a view with the channels last, even where there are none."""
        source = self._how.source_layout
        if CHANNELS not in source:
            raw, source = raw[..., np.newaxis], source + CHANNELS
        return raw.transpose([source.index(axis) for axis in SAMPLES + self._inner + CHANNELS])

    def _check_size(self, raw: Tensor) -> None:
        count = raw.size
        if self._size:
            sides = [raw.shape[self._raw_axis(side)] for side in SIDES]
            if 0 in sides:
                raise InputError(f"input {self._spec.name!r}: an image of {sides} has no pixels")
            count = count // math.prod(sides) * self._size[0] * max(sides[1], self._size[1])
        if count * _FLOAT_BYTES > MAX_PREPARED_BYTES:
            raise InputError(
                f"input {self._spec.name!r} of {list(raw.shape)} would take over "
                f"{MAX_PREPARED_BYTES} bytes",
                remedy="send fewer samples at a time, or smaller ones",
            )

    def _raw_axis(self, letter: str) -> int:
        source = self._how.source_layout
        return source.index(letter) - len(source)

    def _resized(self, images: Tensor, height: int, width: int) -> Tensor:
        if images.shape[1:3] == (height, width):
            return images
        if self._how.resize == "nearest":
            return kernels.resize_nearest(images, height, width)
        resized: Tensor = self._forms.resize_bilinear(images, height, width)
        if self._spec.datatype not in FLOATS and not self._how.quantization:
            np.rint(resized, out=resized)
        return resized

    def _computed(self, values: Tensor, *, first: bool) -> Tensor:
        """Compute values of shape (samples, pixels, channels), whose channels come first if wanted.

        Raises:
            InputError: The channels are not as many as `mean` and `std`.
        """
        how, channels = self._how, values.shape[-1]
        if not computes(how):
            return values.transpose(0, 2, 1) if first else values
        constants: list[NDArray[np.float32]] = []
        for given, neutral in ((how.mean, 0.0), (how.std, 1.0)):
            if len(given) > 1 and len(given) != channels:
                raise InputError(
                    f"preprocessing of {self._spec.name!r}: {len(given)} values for {channels} "
                    "channels"
                )
            constants.append(np.full(channels, given or neutral, np.float32))
        return kernels.normalise(values, how.scale, *constants, channels_first=first)

    def _ordered(self, values: Tensor, *, first: bool) -> Tensor:
        """Put the axes of samples into the order of the input."""
        layout = self._layout
        if CHANNELS not in layout:
            return values[..., 0].transpose(
                [(SAMPLES + self._inner).index(axis) for axis in layout]
            )
        inner = CHANNELS + self._inner if first else self._inner + CHANNELS
        return values.transpose([(SAMPLES + inner).index(axis) for axis in layout])

    def _finished(self, values: Tensor) -> Tensor:
        if self._how.quantization:
            scale, zero_point = constants(self._how.quantization, values.ndim)
            values = np.ascontiguousarray(values)
            return self._forms.quantize(values, scale, zero_point, self._dtype)
        with np.errstate(over="ignore"):  # float16 is narrow
            values = values.astype(self._dtype, order="C", copy=False)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(
                f"preprocessing of {self._spec.name!r} gives NaN or infinity",
                remedy="check scale and std",
            )
        return values


def raw_spec(spec: TensorSpec, how: Preprocessing) -> TensorSpec:
    """Return what raw samples of an input must be: the input before its preprocessing."""
    shape = spec.shape
    if how.layout:
        shape = tuple(
            ANY if how.resize and axis in SIDES else spec.shape[how.layout.index(axis)]
            for axis in how.source_layout
        )
    return TensorSpec(name=spec.name, datatype=how.source_datatype, shape=shape)


def constants(how: Quantization, rank: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return scale and zero point in shapes that broadcast to a tensor.

    Args:
        how: The quantisation.
        rank: The tensor's rank.

    Returns:
        One value, or one per index along the axis.
    """
    along = (-1, *(1,) * (rank - how.axis - 1))
    scale, zero = np.array(how.scale, np.float32), np.array(how.zero_point, np.int32)
    return (
        scale.reshape(along) if scale.size > 1 else scale,
        zero.reshape(along) if zero.size > 1 else zero,
    )
