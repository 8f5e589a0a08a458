"""Turns outputs into answers, as their `Postprocessing` declares.

Rules:
- The steps are: real numbers, then probabilities, then the greatest or the boxes that are kept.
- An answer of several tensors names them `<output>`, `<output>.index` and `<output>.score`.
- The index of a box is its batch, its class by the model's number, and its place in the output.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import numpy as np

from runtime_adapters.errors import InferenceError
from runtime_adapters.processing import kernels
from runtime_adapters.processing.declarations import BOXES_RANK, check_postprocessing
from runtime_adapters.processing.declared import constants
from runtime_adapters.processing.detections import (
    LAST,
    Detections,
    check_shapes,
    check_values,
    detections,
)
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.processing.numpy_forms import Floats
from runtime_adapters.protocol import Tensor, Tensors
from runtime_adapters.tensors import dtype_of
from wire.package.processing import Postprocessing, Suppression
from wire.package.tensors import TensorSpec

_NOTHING = Postprocessing()


class Answers:
    """The postprocessing of a model's outputs.

    Args:
        specs: The outputs.
        declared: Their postprocessing, by output.
        anchors: The anchors that it declares, by output.

    Raises:
        DeclarationError: The outputs and the postprocessing do not fit.
    """

    def __init__(
        self,
        specs: Iterable[TensorSpec],
        declared: Mapping[str, Postprocessing],
        anchors: Mapping[str, Floats] | None = None,
    ) -> None:
        self._specs = {spec.name: spec for spec in specs}
        check_postprocessing(self._specs, declared)
        self._declared = dict(declared)
        self._anchors = dict(anchors or {})
        for name, how in declared.items():
            if how.suppression and how.suppression.anchors and name not in self._anchors:
                raise DeclarationError(f"postprocessing of {name[:80]!r}: there are no anchors")

    def __contains__(self, name: str) -> bool:
        return name in self._declared

    def labels(self, name: str) -> tuple[str, ...]:
        """Return the names of an output's classes; empty where none are declared."""
        return self._declared.get(name, _NOTHING).labels

    def scores(self, name: str, outputs: Tensors) -> Tensor:
        """Return an output as real numbers, or as probabilities where that is declared.

        Args:
            name: The output.
            outputs: The outputs of one call.

        Returns:
            The same shape; the output itself where nothing is declared.
        """
        how, values = self._declared.get(name, _NOTHING), outputs[name]
        if how.quantization:
            scale, zero_point = constants(how.quantization, values.ndim)
            values = self._forms.dequantize(values, scale, zero_point)
        return kernels.softmax(values, how.axis) if how.softmax else values

    def answer(self, name: str, outputs: Tensors) -> Tensors:
        """Return the declared answer of an output.

        Args:
            name: The output.
            outputs: The outputs of one call.

        Returns:
            Tensors by name; the one that has the output's name comes first.

        Raises:
            InferenceError: The shapes of the model's boxes and scores do not match.
        """
        how, values = self._declared.get(name, _NOTHING), self.scores(name, outputs)
        if how.suppression:
            return self._boxes(name, how.suppression, values, outputs)
        if not how.top_k:
            return {name: values}
        last = np.moveaxis(values, how.axis, -1)
        rows = last.reshape(-1, last.shape[-1])
        found = self._forms.top_k(rows, min(how.top_k, last.shape[-1]))
        best, index = (
            np.ascontiguousarray(np.moveaxis(part.reshape(*last.shape[:-1], -1), -1, how.axis))
            for part in found
        )
        return {name: best, f"{name}.index": index}

    def check(self, outputs: Tensors) -> dict[str, int]:
        """Try everything that is declared on outputs of the model.

        Args:
            outputs: The outputs of one call.

        Returns:
            How many boxes are kept, by output; nothing where no boxes are declared.

        Raises:
            DeclarationError: A declaration does not fit these outputs, or gives NaN or infinity.
        """
        kept: dict[str, int] = {}
        for name, how in self._declared.items():
            if how.suppression:
                self._check_boxes(name, how.suppression, outputs)
            found = self.answer(name, outputs)
            for part, values in found.items():
                if values.dtype.kind == "f" and not np.isfinite(values).all():
                    raise DeclarationError(
                        f"postprocessing of {name[:80]!r}: {part[:80]!r} holds NaN or infinity",
                        remedy="check the declaration, and look for overflows in the model",
                    )
            if how.suppression:
                kept[name] = len(found[name])
        return kept

    def warm(self) -> None:
        """Run once on zeros, so that no request compiles anything."""
        outputs = {
            name: np.zeros([max(size, 1) for size in spec.shape], dtype_of(spec.datatype))
            for name, spec in self._specs.items()
            if spec.datatype != "BYTES"
        }
        for name, how in self._declared.items():
            if how.suppression:
                kernels.warm(self._suppress_one)
            else:
                kernels.warm(functools.partial(self.answer, name, outputs))

    def _boxes(self, name: str, how: Suppression, boxes: Tensor, outputs: Tensors) -> Tensors:
        try:
            found = self._detections(name, how, boxes, outputs)
        except DeclarationError as exc:
            raise InferenceError(exc.message, remedy=exc.remedy) from exc
        scores = found.scores
        if how.class_agnostic:
            scores = scores.max(axis=1, keepdims=True)
        index = self._forms.nms(
            found.boxes,
            scores,
            iou_threshold=how.iou_threshold,
            score_threshold=how.score_threshold,
            max_per_class=how.max_boxes_per_class,
            centre=how.boxes == "centre",
        )
        batch, kind, box = index.T
        if how.class_agnostic:
            index[:, 1] = kind = found.scores.argmax(axis=1)[batch, box]
        best = found.scores[batch, kind, box]
        index[:, 1] += found.first_class
        return {name: found.boxes[batch, box], f"{name}.index": index, f"{name}.score": best}

    def _detections(
        self, name: str, how: Suppression, boxes: Tensor, outputs: Tensors
    ) -> Detections:
        """Find boxes and scores, all that the model gives.

        Raises:
            DeclarationError: The shapes do not fit.
        """
        scores = boxes if how.scores == name else self.scores(how.scores, outputs)
        anchors = self._anchors.get(name)
        check_shapes(
            name,
            how,
            boxes.shape,
            scores.shape,
            labels=len(self.labels(name)),
            anchors=None if anchors is None else len(anchors),
        )
        return detections(name, how, boxes, scores, anchors)

    def _check_boxes(self, name: str, how: Suppression, outputs: Tensors) -> None:
        found = self._detections(name, how, self.scores(name, outputs), outputs)
        check_values(name, how, found)
        theirs = self._declared.get(how.scores, _NOTHING)
        classes = 2 if how.layout == LAST else 1
        if theirs.softmax and theirs.axis % BOXES_RANK != classes:
            raise DeclarationError(
                f"postprocessing of {how.scores[:80]!r}: the softmax is along axis {theirs.axis}, "
                f"but {name[:80]!r} has its classes along axis {classes}",
                remedy=f"use axis = {classes}",
            )

    @property
    def _forms(self) -> kernels.Forms:
        pays = any(how.suppression for how in self._declared.values())
        return kernels.forms(pays=pays)

    def _suppress_one(self) -> None:
        one = np.ones((1, 1, 1), np.float32)
        self._forms.nms(
            one.repeat(4, axis=2), one, iou_threshold=0.5, score_threshold=0.0, max_per_class=1
        )
