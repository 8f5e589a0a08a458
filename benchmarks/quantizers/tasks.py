"""The trained models on which quantizers are compared, with their images in three disjoint parts.

Rules:
- Every tool gets the same calibration images, and where it judges its own work the same gate
  images. No tool ever sees the report images: all that is reported about accuracy is about those.
- Other tools get float images, prepared as our declared preprocessing prepares them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from examples.digits.data import Split, load_splits
from packager.samples.declarations import read_preprocessing
from packager.samples.preprocessing import prepare
from wire.package.manifest import TensorSpec

ROOT: Final = Path(__file__).resolve().parents[2]
MODELS: Final = Path(os.environ.get("EDGEFLEET_MODELS", str(ROOT.parent / "shared" / "models")))
INPUT: Final = "input"
CALIBRATION_IMAGES: Final = 256
"""As many as our recipes calibrate with: a tool that took more would need longer for it."""

PIXELS: Final = 255.0
Array = NDArray[Any]


class Sizes(NamedTuple):
    """How many images are used of each part."""

    calibration: int
    gate: int
    report: int


FULL: Final = Sizes(calibration=512, gate=1000, report=2000)
QUICK: Final = Sizes(calibration=64, gate=200, report=500)


class Task(NamedTuple):
    """A model and its images."""

    name: str
    model: Path
    calibration: Path
    """What our build is given, as a user has it."""

    gate: Path
    preprocessing: Path | None
    float_calibration: Path
    """The same for the other tools, at most `CALIBRATION_IMAGES`."""

    float_gate: Path
    images: Array
    """The report's, as the model takes them."""

    labels: Array


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
    parts: dict[str, tuple[Array, Array]] = {}
    for name, file_name, count in (
        ("calibration", "calib512", sizes.calibration),
        ("gate", "val1000", sizes.gate),
        ("report", "eval2000", sizes.report),
    ):
        with np.load(source / f"{file_name}.npz") as file:
            parts[name] = (file["x"][:count], file["y"][:count])
    return _task(
        "ResNet-20",
        folder,
        source / "cifar_resnet20.onnx",
        raw=parts,
        floats={name: (prepare(x, spec, how), y) for name, (x, y) in parts.items()},
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
    return _task("digits", folder, model, raw=parts, floats=parts, preprocessing=None)


def _first(split: Split, begin: int, end: int) -> tuple[Array, Array]:
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


def _task(
    name: str,
    folder: Path,
    model: Path,
    *,
    raw: dict[str, tuple[Array, Array]],
    floats: dict[str, tuple[Array, Array]],
    preprocessing: Path | None,
) -> Task:
    images, labels = floats["calibration"]
    step = max(1, len(labels) // CALIBRATION_IMAGES)
    chosen = (images[::step][:CALIBRATION_IMAGES], labels[::step][:CALIBRATION_IMAGES])
    return Task(
        name=name,
        model=model,
        calibration=_saved(folder / "calibration.npz", raw["calibration"]),
        gate=_saved(folder / "gate.npz", raw["gate"]),
        preprocessing=preprocessing,
        float_calibration=_saved(folder / "float-calibration.npz", chosen),
        float_gate=_saved(folder / "float-gate.npz", floats["gate"]),
        images=floats["report"][0],
        labels=floats["report"][1],
    )


def _saved(path: Path, part: tuple[Array, Array]) -> Path:
    np.savez(path, input=part[0], label=part[1])
    return path
