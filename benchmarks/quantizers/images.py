"""Two networks for images: a ResNet-20 that somebody trained, and the one of the digits example."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.quantizers.qualities import Array
from benchmarks.quantizers.task import MODELS, ROOT, Samples, Sizes, Task, make_task
from examples.digits.data import Split, load_splits
from packager.samples.declarations import read_preprocessing
from packager.samples.preprocessing import prepare
from wire.package.tensors import TensorSpec

INPUT: Final = "input"
PIXELS: Final = 255.0


def cifar(folder: Path, sizes: Sizes) -> Task | str:
    """Return the ResNet-20 that was trained on CIFAR-10.

    Args:
        folder: For the files that are made of the given ones.
        sizes: How many images are used.

    Returns:
        The task, or why there is none.
    """
    source = MODELS / "cifar10"
    if not (source / "cifar_resnet20.onnx").is_file():
        return f"{source} is not there; set EDGEFLEET_MODELS"
    folder.mkdir(parents=True)
    declared = folder / "preprocessing.toml"
    with np.load(source / "calib512.npz") as file:
        declared.write_text(_declaration(file["mean"], file["std"]), encoding="ascii")
    spec = TensorSpec(name=INPUT, datatype="FP32", shape=(1, 3, 32, 32))
    how = read_preprocessing(declared, (spec,))[INPUT]
    raw: dict[str, Samples] = {}
    for name, file_name, count in (
        ("calibration", "calib512", sizes.calibration),
        ("gate", "val1000", sizes.gate),
        ("report", "eval2000", sizes.report),
    ):
        with np.load(source / f"{file_name}.npz") as file:
            raw[name] = (file["x"][:count], file["y"][:count])
    return make_task(
        "ResNet-20",
        folder,
        source / "cifar_resnet20.onnx",
        input_name=INPUT,
        parts={name: (prepare(x, spec, how), y) for name, (x, y) in raw.items()},
        raw=raw,
        preprocessing=declared,
    )


def digits(folder: Path, sizes: Sizes) -> Task | str:
    """Return the small network of the digits example, whose last 450 images nothing has seen.

    Args:
        folder: For the files that are made.
        sizes: How many images are used at most.

    Returns:
        The task, or why there is none.
    """
    model = ROOT / "examples" / "digits" / "digits.onnx"
    if not model.is_file():
        return f"{model} is not there"
    folder.mkdir(parents=True)
    splits = load_splits()
    third = len(splits.evaluation.labels) // 3
    parts = {
        "calibration": _first(splits.calibration, 0, sizes.calibration),
        "gate": _first(splits.evaluation, 0, third),
        "report": _first(splits.evaluation, third, len(splits.evaluation.labels)),
    }
    return make_task("digits", folder, model, input_name=INPUT, parts=parts)


def _first(split: Split, begin: int, end: int) -> Samples:
    return split.images[begin:end], split.labels[begin:end]


def _declaration(mean: Array, std: Array) -> str:
    return "\n".join(
        (
            "[x]",
            'source_datatype = "UINT8"',
            'source_layout = "NHWC"',
            'layout = "NCHW"',
            f"scale = {1 / PIXELS!r}",
            f"mean = {[float(value) for value in mean]}",
            f"std = {[float(value) for value in std]}",
            "",
        )
    )
