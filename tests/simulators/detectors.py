"""Small detectors with the heads of large ones; their answers to a picture are known.

Bright squares that fill a cell of the grid are what they detect. The weights are set, not trained.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]

FACE_SIZE = (240, 320)
"""Height and width of what the face detector takes."""

FACE_CELL = 16
FACE_GRIDS = ((8, 3), (16, 2), (32, 2), (64, 3))
"""Side of a cell in pixels, and anchors in each: 4420 in all."""

FACE_OFFSETS = (0.5, -0.25, 1.0, -1.0)
"""What the face detector answers for every box."""

SHAPE_SIZE = (64, 96)
SHAPE_CELL = 16
SHAPE_BOX = (20.0, 12.0)
"""Width and height, in pixels, of every box that the detector of shapes answers."""


def picture(
    size: tuple[int, int], cell: int, squares: dict[tuple[int, int], tuple[int, int, int]]
) -> Pixels:
    """Draw squares on black: row and column of a cell to its colour; shape (H, W, 3)."""
    found = np.zeros((*size, 3), np.uint8)
    for (row, column), colour in squares.items():
        found[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = colour
    return found


def face_anchors() -> Floats:
    """Return the 4420 anchors of the face detector: centre and size as shares of the picture."""
    height, width = FACE_SIZE
    found = []
    for cell, count in FACE_GRIDS:
        for row in range(-(-height // cell)):
            for column in range(-(-width // cell)):
                for number in range(count):
                    side = cell * (2 + 0.5 * number)
                    centre = (column + 0.5) * cell / width, (row + 0.5) * cell / height
                    found.append((*centre, side / width, side / height))
    return np.array(found, np.float32)


def face_detector(path: Path, *, log_size: float = FACE_OFFSETS[2]) -> Path:
    """Write a detector like SSD: scores (1, 4420, 2) with a background, and offsets (1, 4420, 4).

    Only the anchors of one grid see anything; the first of a cell is surer than the second.

    Args:
        path: The file.
        log_size: The offset of each width.
    """
    made = _Graph()
    grey = made.add("ReduceMean", "image", axes=[1], keepdims=1)
    scores, boxes = [], []
    offsets = (*FACE_OFFSETS[:2], log_size, FACE_OFFSETS[3])
    for cell, count in FACE_GRIDS:
        cells = made.add(
            "AveragePool", grey, kernel_shape=[cell] * 2, strides=[cell] * 2, ceil_mode=1
        )
        weights = [[factor] for number in range(count) for factor in (0.0, 6.0 - 2 * number)]
        bias = [0.0, 0.0] * count
        if cell != FACE_CELL:
            weights, bias = [[0.0], [0.0]] * count, [5.0, -5.0] * count
        logits = made.convolution(cells, weights, bias)
        scores.append(made.rows(logits, 2))
        places = made.convolution(cells, [[0.0]] * (4 * count), [*offsets] * count)
        boxes.append(made.rows(places, 4))
    made.add("Concat", *scores, axis=1, output="scores")
    made.add("Concat", *boxes, axis=1, output="boxes")
    outputs = {"scores": (1, 4420, 2), "boxes": (1, 4420, 4)}
    return made.write(path, (1, 3, *FACE_SIZE), outputs)


def shape_detector(path: Path) -> Path:
    """Write a detector like YOLO, of red and blue squares, with three forms of its answer.

    `rows` is (1, 24, 7): box, objectness, two classes. `columns` is (1, 6, 24): box, two classes.
    `logits` is `columns` before the sigmoid.
    """
    made = _Graph()
    height, width = (side // SHAPE_CELL for side in SHAPE_SIZE)
    cells = made.add(
        "AveragePool", "image", kernel_shape=[SHAPE_CELL] * 2, strides=[SHAPE_CELL] * 2
    )
    grid = np.zeros((1, 4, height, width), np.float32)
    grid[0, 0] = (np.arange(width) + 0.5) * SHAPE_CELL
    grid[0, 1] = ((np.arange(height) + 0.5) * SHAPE_CELL)[:, None]
    sizes = made.convolution(cells, [[0.0] * 3] * 4, [0.0, 0.0, *SHAPE_BOX])
    boxes = made.add("Add", sizes, made.constant(grid))
    classes = [[12.0, 0.0, 0.0], [0.0, 0.0, 12.0]]
    logits = made.convolution(cells, [*classes, [12.0, 12.0, 12.0]], [-6.0] * 3)
    chances = made.add("Sigmoid", logits)
    kinds, sure = made.channels(chances, 0, 2), made.channels(chances, 2, 3)
    raw = made.channels(logits, 0, 2)
    flat = [made.constant(np.array([1, size, height * width])) for size in (6, 6, 7)]
    made.add("Reshape", made.add("Concat", boxes, kinds, axis=1), flat[0], output="columns")
    made.add("Reshape", made.add("Concat", boxes, raw, axis=1), flat[1], output="logits")
    all_of_it = made.add("Reshape", made.add("Concat", boxes, sure, kinds, axis=1), flat[2])
    made.add("Transpose", all_of_it, perm=[0, 2, 1], output="rows")
    count = height * width
    outputs = {"rows": (1, count, 7), "columns": (1, 6, count), "logits": (1, 6, count)}
    return made.write(path, (1, 3, *SHAPE_SIZE), outputs)


def draw(path: Path, pixels: Pixels, corners: NDArray[np.float32]) -> Path:
    """Write a picture as PNG with the outlines of boxes: left, top, right, bottom in pixels."""
    drawn = pixels.copy()
    height, width, _ = drawn.shape
    for box in corners:
        left, right = (round(float(side)) for side in np.clip(box[[0, 2]], 0, width - 1))
        top, bottom = (round(float(side)) for side in np.clip(box[[1, 3]], 0, height - 1))
        drawn[[top, bottom], left : right + 1] = (0, 255, 0)
        drawn[top : bottom + 1, [left, right]] = (0, 255, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in drawn)
    parts = (
        (b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines)),
        (b"IEND", b""),
    )
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(content)) + kind + content
            + struct.pack(">I", zlib.crc32(kind + content))
            for kind, content in parts
        )
    )  # fmt: skip
    return path


class _Graph:
    """Nodes and constants of a model whose input is `image`."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []

    def add(self, kind: str, *inputs: str, output: str = "", **fields: Any) -> str:
        """Add a node; return the name of its output."""
        name = output or f"{kind}.{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], **fields))
        return name

    def channels(self, maps: str, first: int, end: int) -> str:
        """Add a cut along the second axis."""
        bounds = [self.constant(np.array([bound])) for bound in (first, end, 1)]
        return self.add("Slice", maps, *bounds)

    def constant(self, values: NDArray[np.generic]) -> str:
        name = f"constant.{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(values, name))
        return name

    def convolution(self, cells: str, weights: list[list[float]], bias: list[float]) -> str:
        """Add one of kernel 1: a row of weights for each output."""
        kernel = np.array(weights, np.float32)[..., None, None]
        return self.add(
            "Conv", cells, self.constant(kernel), self.constant(np.array(bias, np.float32))
        )

    def rows(self, maps: str, numbers: int) -> str:
        """Bring maps to one row of numbers for each anchor."""
        last = self.add("Transpose", maps, perm=[0, 2, 3, 1])
        return self.add("Reshape", last, self.constant(np.array([1, -1, numbers])))

    def write(
        self, path: Path, image: tuple[int, ...], outputs: Mapping[str, tuple[int, ...]]
    ) -> Path:
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, image)],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
                for name, shape in outputs.items()
            ],
            self._constants,
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(path))
        return path
