"""The tensors of a variant: named, and typed as in the Open Inference Protocol."""

from __future__ import annotations

from typing import Literal

import msgspec

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip
"""Tensor types of the Open Inference Protocol."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One named input or output; -1 in the shape is a dimension that may vary."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
