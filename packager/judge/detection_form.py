"""The form of detections: boxes with classes and scores, and labels that are boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime_adapters.protocol import Tensor, Tensors

LABEL_AXES: Final = 3
"""Samples, boxes, numbers."""

LABEL_NUMBERS: Final = 5
"""x1, y1, x2, y2 and the class; a class of -1 pads."""


class Found(NamedTuple):
    """The boxes in one sample."""

    boxes: NDArray[np.float64]
    """Shape (boxes, 4): two opposite corners."""

    classes: NDArray[np.intp]
    scores: NDArray[np.float64]


Detector = Callable[[Tensors], list[Found]]
"""Applies the declared postprocessing to the answers to some samples."""


def are_boxes(labels: Tensor | None) -> bool:
    """Tell whether labels have the form of boxes: (samples, boxes, 5)."""
    return labels is not None and labels.ndim == LABEL_AXES and labels.shape[-1] == LABEL_NUMBERS
