"""Sums over the layers of a profile. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from packager.layers.values import MAX_LAYERS, Layer, LayerProfile

_PLAIN: Final = {
    "float": "fp32", "float16": "fp16", "bfloat16": "bf16", "double": "fp64",
    "f32": "fp32", "f16": "fp16", "f64": "fp64", "float32": "fp32", "float64": "fp64",
    "u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16", "u32": "uint32", "i32": "int32",
    "u64": "uint64", "i64": "int64", "u4": "uint4", "i4": "int4", "u1": "uint1", "boolean": "bool",
}  # fmt: skip


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """All layers with one operator."""

    operator: str
    layers: int
    time_us: float
    share: float
    """Of the time of all layers."""


def totals(profile: LayerProfile) -> tuple[Total, ...]:
    """Sum the layers by operator.

    Args:
        profile: A profile with times.

    Returns:
        The sums, the longest first; without the layers beyond the bound of rows.
    """
    whole_us = layers_us(profile)
    groups: dict[str, list[float]] = {}
    for layer in profile.layers:
        groups.setdefault(layer.operator, []).append(layer.time_us or 0.0)
    sums = [
        Total(
            operator=operator,
            layers=len(times),
            time_us=sum(times),
            share=sum(times) / whole_us if whole_us else 0.0,
        )
        for operator, times in groups.items()
    ]
    return tuple(sorted(sums, key=lambda total: (-total.time_us, total.operator)))


def layers_us(profile: LayerProfile) -> float:
    """Return the time of all layers of one inference, in microseconds."""
    return sum(layer.time_us or 0.0 for layer in profile.layers) + profile.left_out_us


def by_time(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return layers with the longest first; equal ones stay in their order."""
    return tuple(sorted(layers, key=lambda layer: -(layer.time_us or 0.0)))


def bounded(profile: LayerProfile, *, most: int = MAX_LAYERS) -> LayerProfile:
    """Return a profile with at most so many layers: the slowest, in their order.

    Args:
        profile: Any profile.
        most: How many rows it may have.

    Returns:
        The profile; what was left out is counted in it.
    """
    if len(profile.layers) <= most and len(profile.removed) <= most:
        return profile
    slowest = sorted(
        range(len(profile.layers)), key=lambda i: (-(profile.layers[i].time_us or 0.0), i)
    )
    kept, left = sorted(slowest[:most]), slowest[most:]
    return msgspec.structs.replace(
        profile,
        layers=tuple(profile.layers[i] for i in kept),
        left_out=profile.left_out + len(left),
        left_out_us=profile.left_out_us + sum(profile.layers[i].time_us or 0.0 for i in left),
        removed=profile.removed[:most],
    )


def faster_half(totals_us: Sequence[float]) -> list[int]:
    """Choose the inferences that count: the faster half.

    Another process may hold up an inference for milliseconds, and all of that falls on the layer
    that ran just then. A median by layer would not be moved, but medians do not add up to the
    median of the sum; means do.

    Args:
        totals_us: The time of each inference.

    Returns:
        Indices, in order; at least one where there is one inference.
    """
    ranked = sorted(range(len(totals_us)), key=lambda index: (totals_us[index], index))
    return sorted(ranked[: (len(ranked) + 1) // 2])


def precision_text(inputs: Sequence[str], output: str) -> str:
    """Name the types that a layer computes with, as variants name precisions.

    Args:
        inputs: The types of its inputs, as a runtime names them.
        output: The type of its output; empty where there is none.

    Returns:
        Such as `fp32`, `uint8, int8 → uint8` or `fp32 → uint8`; empty where nothing is known.
    """
    taken = list(dict.fromkeys(_PLAIN.get(name, name) for name in inputs if name))
    given = _PLAIN.get(output, output)
    text = ", ".join(taken)
    if not given or taken == [given]:
        return text
    return f"{text} → {given}" if text else given
