"""Mean average precision of detections, by the rules of COCO.

Rules:
- The boxes are those that a device answers: after the declared postprocessing.
- Labels are boxes, shape (samples, boxes, 5): x1, y1, x2, y2 and the class, by the model's number;
  a class of -1 pads. They are in the unit of the model's boxes. Without labels, what the reference
  finds is the truth.
- A class without a labelled box does not count, as in COCO.

Source:
    T.-Y. Lin et al., "Microsoft COCO: common objects in context", ECCV 2014; the evaluation is that
    of its tools, `pycocotools.cocoeval`: intersection over union of 0.50 to 0.95 in steps of 0.05,
    101 recalls, at most 100 boxes of each class in an image, all sizes.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from packager.errors import DataError
from packager.judge.detection_form import LABEL_NUMBERS, Detector, Found, are_boxes
from packager.judge.sums import Options
from runtime_adapters.protocol import Tensor, Tensors

PAD: Final = -1
MOST_BOXES: Final = 100
MUCH: Final = 0.5
"""The wrong order of coordinates fits square boxes near the diagonal too, but not half as well."""

LARGEST_AREA: Final = 1e10
"""As in COCO: of all sizes."""


class Matches:
    """Which boxes of which samples fit the truth, so that the metric of any samples is quick.

    Args:
        found: The boxes in each sample.
        truth: The true boxes in each sample; their scores do not count.
    """

    def __init__(self, found: Sequence[Found], truth: Sequence[Found]) -> None:
        self.found, self.truth = found, truth
        classes = sorted({int(c) for one in truth for c in one.classes})
        with contextlib.redirect_stdout(io.StringIO()):  # the tools print what they do
            evaluation = COCOeval(
                _data(truth, classes, scored=False), _data(found, classes, scored=True), "bbox"
            )
            evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, LARGEST_AREA]], ["all"]
            evaluation.params.maxDets = [MOST_BOXES]
            evaluation.evaluate()
        self._evaluation: Any = evaluation
        self._classes = len(classes)
        self._images = list(evaluation.evalImgs)
        self._samples = len(found)

    def value(self) -> float:
        """Return the mean average precision of all samples.

        Raises:
            DataError: No sample has a true box.
        """
        return self.value_of(np.arange(self._samples))

    def value_of(self, rows: NDArray[np.intp]) -> float:
        """Return the mean average precision of some samples.

        Args:
            rows: The samples that count.

        Returns:
            The metric.

        Raises:
            DataError: None of these samples has a true box.
        """
        tool = self._evaluation
        tool.evalImgs = [
            self._images[kind * self._samples + int(row)]
            for kind in range(self._classes)
            for row in rows
        ]
        for params in (tool.params, tool._paramsEval):  # noqa: SLF001 - as `evaluate` leaves it
            params.imgIds = list(range(len(rows)))
        with contextlib.redirect_stdout(io.StringIO()):
            tool.accumulate()
        precision = tool.eval["precision"]
        counted = precision[precision > -1]
        if not counted.size:
            raise DataError("metric map: there is no box in the labels of these samples")
        return float(counted.mean())


def matches(
    answers: Tensors,
    reference: Tensors,
    labels: Tensor | None,
    options: Options,
    detector: Detector,
) -> Matches:
    """Match the boxes that a variant finds with the true ones.

    Args:
        answers: The variant's answers by output, samples along the first axis.
        reference: The reference's answers to them.
        labels: The boxes of their labels, if there are any.
        options: `order`: `yx` if the model's corners have y first.
        detector: The declared postprocessing.

    Returns:
        The matches.
    """
    truth = detector(reference) if labels is None else labelled(labels, options)
    found = truth if labels is None and answers is reference else detector(answers)
    return Matches(found, truth)


def labelled(labels: Tensor, options: Options) -> list[Found]:
    """Return the true boxes in each sample, in the order of the model's coordinates."""
    order = [1, 0, 3, 2] if options.get("order") == "yx" else [0, 1, 2, 3]
    found = []
    for row in np.asarray(labels, np.float64):
        boxes = row[row[:, 4] >= 0]
        kinds = boxes[:, 4].astype(np.intp)
        found.append(Found(boxes[:, order], kinds, np.ones(len(boxes))))
    return found


def check_boxes(
    reference: Tensors, labels: Tensor | None, options: Options, detector: Detector | None
) -> None:
    """Refuse labels that do not belong to the boxes that the reference finds.

    Args:
        reference: The reference's answers.
        labels: The labels, if there are any.
        options: `order`, as the user gave it.
        detector: The declared postprocessing, where it gives boxes.

    Raises:
        DataError: No boxes are declared, the labels are no boxes, or the reference finds none.
    """
    if detector is None:
        raise DataError(
            "metric map: no output is declared to hold boxes",
            remedy="declare its suppression with --postprocessing; docs/detectors.md says how",
        )
    if labels is None:
        if not any(len(one.boxes) for one in detector(reference)):
            raise DataError(
                "metric map: the reference finds no box in any sample, and there are no labels",
                remedy="look at score_threshold in the postprocessing",
            )
        return
    _check_form(labels)
    right = matches(reference, reference, labels, options, detector).value()
    other = "xy" if options.get("order") == "yx" else "yx"
    swapped = {**options, "order": other}
    if matches(reference, reference, labels, swapped, detector).value() > right / MUCH:
        raise DataError(
            "metric map: the boxes that the reference finds fit the labels if the corners of the "
            f"model's boxes have {other[0]} first, and hardly as they are read now",
            remedy=f"use --metric map,order={other}",
        )
    if right == 0.0:
        raise DataError(
            "metric map: no box that the reference finds fits a label",
            remedy="give labels x1, y1, x2, y2 in the unit of the model's boxes (pixels of its "
            "input, or shares), and classes by the model's numbers",
        )


def _check_form(labels: Tensor) -> None:
    """Refuse labels that are no boxes.

    Raises:
        DataError: They are none.
    """
    if not are_boxes(labels):
        raise DataError(
            f"metric map: labels are {labels.dtype} of shape {list(labels.shape)}, but boxes "
            "(samples, boxes, 5) are needed: x1, y1, x2, y2, class; a class of -1 pads"
        )
    rows = np.asarray(labels, np.float64).reshape(-1, LABEL_NUMBERS)
    used = rows[rows[:, 4] != PAD]
    whole = np.isfinite(used).all() and (used[:, 4] == np.floor(used[:, 4])).all()
    if not len(used) or not whole or (used[:, 4] < 0).any():
        raise DataError(
            "metric map: the labels hold no box, or one that is not finite, or whose class is no "
            "whole number from 0 on"
        )
    if (used[:, 2] <= used[:, 0]).any() or (used[:, 3] <= used[:, 1]).any():
        raise DataError(
            "metric map: a box of the labels is empty: x2 or y2 is not greater than x1 or y1",
            remedy="give the corners x1, y1, x2, y2, not a width and a height",
        )


def _data(images: Sequence[Found], classes: Sequence[int], *, scored: bool) -> COCO:
    """Return boxes as COCO's tools take them."""
    boxes: list[dict[str, Any]] = []
    for image, found in enumerate(images):
        for corners, kind, score in zip(found.boxes, found.classes, found.scores, strict=True):
            low, high = np.minimum(corners[:2], corners[2:]), np.maximum(corners[:2], corners[2:])
            width, height = (float(side) for side in high - low)
            boxes.append(
                {
                    "id": len(boxes) + 1,  # 0 would count as no match
                    "image_id": image,
                    "category_id": int(kind),
                    "bbox": [float(low[0]), float(low[1]), width, height],
                    "area": width * height,
                    "iscrowd": 0,
                }
                | ({"score": float(score)} if scored else {})
            )
    data = COCO()
    data.dataset = {
        "images": [{"id": image} for image in range(len(images))],
        "categories": [{"id": kind} for kind in classes],
        "annotations": boxes,
    }
    data.createIndex()
    return data
