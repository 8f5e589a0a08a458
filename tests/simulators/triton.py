"""A model with an input and an output of each type, for tests of Triton's clients."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime_adapters.tensors import dtype_of
from tests.simulators.packages import variant
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import Variant

Array = NDArray[Any]
EVERY_TYPE: tuple[Datatype, ...] = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64",
)  # fmt: skip
EXTREMES: dict[str, tuple[float, float]] = {"BOOL": (0, 1), "FP16": (-6e4, 6e4)}


def all_types() -> Variant:
    """Return a variant with an input and an output of each type."""
    plain = variant("all")
    inputs = tuple(TensorSpec(name=f"in_{t}", datatype=t, shape=(-1, 2)) for t in EVERY_TYPE)
    outputs = tuple(TensorSpec(name=f"out_{t}", datatype=t, shape=(-1, 3)) for t in EVERY_TYPE)
    info = msgspec.structs.replace(plain.info, inputs=inputs, outputs=outputs)
    return Variant(name="all", directory=plain.directory, info=info)


def samples() -> dict[str, Array]:
    """Return an input of each type, with its extremes."""
    arrays = {}
    for name in EVERY_TYPE:
        dtype = dtype_of(name)
        low, high = EXTREMES.get(name, (0, 0))
        if name not in EXTREMES:
            limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
            low, high = limits.min, limits.max
        arrays[f"in_{name}"] = np.array([[low, high], [1, 0]], dtype)
    return arrays
