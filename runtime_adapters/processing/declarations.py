"""Checks that a declaration of pre- or post-processing can be applied to an input or output.

Rules:
- This module finds all mistakes that can be found without a tensor, so that no request meets them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.tensors import ANY, dtype_of
from wire.package.processing import Postprocessing, Preprocessing, Quantization, Suppression
from wire.package.tensors import TensorSpec

SAMPLES: Final = "N"
CHANNELS: Final = "C"
SIDES: Final = "HW"
FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})
QUANTIZED: Final = frozenset({"UINT8", "INT8", "UINT16", "INT16"})
DEQUANTIZED: Final = QUANTIZED | {"INT32"}
MAX_LABELS: Final = 100_000
MAX_LABEL_CHARACTERS: Final = 200
MAX_BOXES: Final = 100_000
BOXES_RANK: Final = 3
"""Axes of boxes and of their scores: batch, box, and number or class."""

PARTS: Final = ("index", "score")
"""Tensors that an answer has beside its values, named `<output>.<part>`."""


def check_preprocessing(spec: TensorSpec, how: Preprocessing) -> None:
    """Refuse a declaration that cannot be applied to an input.

    Args:
        spec: The input.
        how: Its preprocessing.

    Raises:
        DeclarationError: The first thing that is wrong.
    """
    where = f"preprocessing of {spec.name!r}"
    if "BYTES" in {how.source_datatype, spec.datatype}:
        raise DeclarationError(f"{where}: text cannot be preprocessed")
    _check_layouts(where, spec, how)
    _check_numbers(where, spec, how)
    if how.resize:
        _check_resize(where, spec, how)
    if how.quantization:
        _check_quantization(where, spec, how.quantization, QUANTIZED)
    elif spec.datatype not in FLOATS and how.source_datatype != spec.datatype:
        raise DeclarationError(
            f"{where}: the model takes {spec.datatype}, and {how.source_datatype} would need a "
            "cast",
            remedy=f'use source_datatype = "{spec.datatype}"',
        )


def check_postprocessing(
    specs: Mapping[str, TensorSpec], declared: Mapping[str, Postprocessing]
) -> None:
    """Refuse declarations that cannot be applied to a model's outputs.

    Args:
        specs: The outputs by name.
        declared: The postprocessing by output.

    Raises:
        DeclarationError: The first thing that is wrong.
    """
    for name, how in declared.items():
        where = f"postprocessing of {name[:80]!r}"
        spec = specs.get(name)
        if spec is None:
            raise DeclarationError(f"{where}: the model has no such output")
        if spec.datatype == "BYTES":
            raise DeclarationError(f"{where}: text cannot be postprocessed")
        if taken := [part for part in PARTS if f"{name}.{part}" in specs]:
            raise DeclarationError(f"{where}: the model has an output {name}.{taken[0]} already")
        if how.quantization:
            _check_quantization(where, spec, how.quantization, DEQUANTIZED)
        _check_scores(where, spec, how)
        if how.suppression:
            _check_suppression(where, spec, how, specs.get(how.suppression.scores))
            scores = declared.get(how.suppression.scores)
            if how.suppression.activation and scores is not None and scores.softmax:
                raise DeclarationError(
                    f"{where}: the scores get a softmax of their own and an activation",
                    remedy="leave out one of them",
                )


def computes(how: Preprocessing) -> bool:
    """Tell whether preprocessing changes values, and not only their type and place."""
    return how.scale != 1.0 or bool(how.mean) or bool(how.std)


def _check_layouts(where: str, spec: TensorSpec, how: Preprocessing) -> None:
    source, layout = how.source_layout, how.layout
    if not source and not layout:
        return
    if not source or not layout:
        raise DeclarationError(f"{where}: give both source_layout and layout, or neither")
    for text in (source, layout):
        plain = text.isascii() and text.isalpha() and text.isupper()
        if not plain or len(set(text)) != len(text) or text[0] != SAMPLES:
            raise DeclarationError(
                f"{where}: {text[:20]!r} is not a layout",
                remedy="write each axis as a letter, N first, such as NHWC",
            )
    if len(layout) != len(spec.shape):
        raise DeclarationError(
            f"{where}: {layout} has {len(layout)} axes, but the input has {len(spec.shape)}"
        )
    if set(source) == set(layout):
        return
    if set(source) | {CHANNELS} != set(layout):
        raise DeclarationError(f"{where}: {source} and {layout} do not have the same letters")
    if spec.shape[layout.index(CHANNELS)] not in {ANY, 1}:
        raise DeclarationError(
            f"{where}: {source} has no channels, but the input has "
            f"{spec.shape[layout.index(CHANNELS)]} of them"
        )


def _check_numbers(where: str, spec: TensorSpec, how: Preprocessing) -> None:
    numbers = (how.scale, *how.mean, *how.std)
    with np.errstate(over="ignore"):
        narrow = np.array(numbers, np.float64).astype(np.float32)
    if not np.isfinite(narrow).all():
        raise DeclarationError(f"{where}: scale, mean and std must be finite in float32")
    if narrow[0] == 0 or (narrow[1 + len(how.mean) :] <= 0).any():
        raise DeclarationError(f"{where}: scale must not be 0, and std must be greater than 0")
    if computes(how) and spec.datatype not in FLOATS and not how.quantization:
        raise DeclarationError(
            f"{where}: the model takes {spec.datatype}; but scale, mean and std give fractions",
            remedy="declare only the layout, or declare the quantization of the input",
        )
    counts = {len(numbers) for numbers in (how.mean, how.std)} - {0, 1}
    if not counts:
        return
    if CHANNELS not in how.source_layout:
        raise DeclarationError(
            f"{where}: mean and std have {max(counts)} channels, but no axis is declared as the "
            "channels",
            remedy="give source_layout and layout, with a C for the channels",
        )
    channels = spec.shape[how.layout.index(CHANNELS)]
    if len(counts) > 1 or (channels != ANY and counts != {channels}):
        expected = f"{channels} for each" if channels != ANY else "the same number for both"
        raise DeclarationError(
            f"{where}: mean has {len(how.mean)} values and std has {len(how.std)}, but "
            f"{expected} is needed"
        )


def _check_resize(where: str, spec: TensorSpec, how: Preprocessing) -> None:
    if not set(SIDES) <= set(how.layout) <= {SAMPLES, CHANNELS, *SIDES}:
        raise DeclarationError(
            f"{where}: only images can be resized",
            remedy="give source_layout and layout of N, H, W and C, such as NHWC",
        )
    if any(spec.shape[how.layout.index(side)] < 1 for side in SIDES):
        raise DeclarationError(f"{where}: the input has no height and width to resize to")
    if how.resize == "bilinear" and how.source_datatype not in FLOATS | {"UINT8"}:
        raise DeclarationError(
            f"{where}: {how.source_datatype} has no values between two neighbours",
            remedy='use resize = "nearest"',
        )


def _check_quantization(
    where: str, spec: TensorSpec, how: Quantization, kinds: frozenset[str]
) -> None:
    if spec.datatype not in kinds:
        raise DeclarationError(
            f"{where}: {spec.datatype} cannot be quantized, only {', '.join(sorted(kinds))} are"
        )
    with np.errstate(over="ignore", under="ignore"):
        scale = np.array(how.scale, np.float64).astype(np.float32)
    if not np.isfinite(scale).all() or (scale <= 0).any():
        raise DeclarationError(f"{where}: each scale must be finite and greater than 0")
    bounds = np.iinfo(dtype_of(spec.datatype))
    if any(not bounds.min <= zero <= bounds.max for zero in how.zero_point):
        raise DeclarationError(f"{where}: a zero_point is not of type {spec.datatype}")
    if spec.datatype == "INT32" and any(how.zero_point):
        raise DeclarationError(f"{where}: the zero_point of INT32 must be 0")
    counts = {len(how.scale), len(how.zero_point)}
    if counts == {1}:
        return
    if not 0 <= how.axis < len(spec.shape) or not counts <= {1, max(counts)} or 0 in counts:
        raise DeclarationError(
            f"{where}: scale and zero_point have different lengths, or belong to no axis"
        )
    if spec.shape[how.axis] not in {ANY, max(counts)}:
        raise DeclarationError(
            f"{where}: there are {max(counts)} scales, but axis {how.axis} has "
            f"{spec.shape[how.axis]} elements"
        )


def _check_scores(where: str, spec: TensorSpec, how: Postprocessing) -> None:
    if how.softmax and spec.datatype not in FLOATS and not how.quantization:
        raise DeclarationError(f"{where}: {spec.datatype} cannot be the scores of a softmax")
    if how.top_k < 0:
        raise DeclarationError(f"{where}: top_k is {how.top_k}")
    rank = len(spec.shape)
    if (how.softmax or how.top_k) and not -rank <= how.axis < rank:
        raise DeclarationError(f"{where}: there is no axis {how.axis} among {rank}")
    if len(how.labels) > MAX_LABELS or any(
        not 0 < len(label) <= MAX_LABEL_CHARACTERS or not label.isprintable()
        for label in how.labels
    ):
        raise DeclarationError(f"{where}: too many labels, or one that is not a line of text")
    classes = spec.shape[how.axis] if -rank <= how.axis < rank else ANY
    if classes != ANY and not how.suppression and len(how.labels) > classes:
        raise DeclarationError(f"{where}: {len(how.labels)} labels for {classes} classes")


def _check_suppression(
    where: str, spec: TensorSpec, how: Postprocessing, scores: TensorSpec | None
) -> None:
    wanted = how.suppression or Suppression(scores="")
    if how.softmax or how.top_k:
        raise DeclarationError(f"{where}: an output of boxes cannot have softmax or top_k")
    if scores is None:
        raise DeclarationError(
            f"{where}: there is no output {wanted.scores[:80]!r} with scores",
            remedy=f'if {spec.name[:80]!r} holds them too, use scores = "{spec.name[:80]}"',
        )
    _check_form(where, spec, wanted, scores)
    if not 0 <= wanted.iou_threshold <= 1 or not math.isfinite(wanted.score_threshold):
        raise DeclarationError(
            f"{where}: iou_threshold must be 0 to 1, and score_threshold must be finite"
        )
    if not 1 <= wanted.max_boxes_per_class <= MAX_BOXES:
        raise DeclarationError(f"{where}: max_boxes_per_class must be 1 to {MAX_BOXES}")


def _check_form(where: str, spec: TensorSpec, how: Suppression, scores: TensorSpec) -> None:
    together = scores.name == spec.name
    if together and len(spec.shape) != BOXES_RANK:
        raise DeclarationError(
            f"{where}: boxes must be (batch, box, 4), or with their scores (batch, number, box) or "
            f"(batch, box, number), but the output is {list(spec.shape)}"
        )
    ranks = {len(spec.shape), len(scores.shape)}
    apart = ranks == {BOXES_RANK} and spec.shape[2] in {ANY, 4} and scores.datatype != "BYTES"
    if not together and not apart:
        axes = "batch, box, class" if how.layout == "classes_last" else "batch, class, box"
        raise DeclarationError(
            f"{where}: boxes must be (batch, box, 4) and scores ({axes}), but they are "
            f"{list(spec.shape)} and {list(scores.shape)}"
        )
    if how.objectness and not together:
        raise DeclarationError(
            f"{where}: only an output that holds the scores too has an objectness",
            remedy=f'use scores = "{spec.name[:80]}", or leave out objectness',
        )
    if how.variances and not how.anchors:
        raise DeclarationError(f"{where}: variances belong to anchors, and there are none")
    if how.variances and not all(0 < one < math.inf for one in how.variances):
        raise DeclarationError(f"{where}: variances must be finite and greater than 0")
