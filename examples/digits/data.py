"""The demo's data: scikit-learn's handwritten digits, split for training, calibration and scoring.

Run ``python examples/digits/data.py OUT_DIR`` to write ``calibration.npz`` and ``evaluation.npz``.

Rules this module keeps:

* The three splits are disjoint, and each holds the ten digits in the data set's own proportions.
* The same call gives the same bytes. The order comes from one fixed seed.
* Nothing is fetched: scikit-learn ships the images. Only numpy and scikit-learn are needed.
* The calibration split is for quantization and the evaluation split for scoring; training sees
  neither.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

SEED = (
    20240229  # any fixed number does; a new one makes other splits, so train again after a change
)
EVALUATION_COUNT = 450  # a quarter of the images: one mistake weighs 0.22 points of accuracy
CALIBRATION_COUNT = 256  # enough for stable activation ranges, few enough to calibrate in a second
PIXEL_MAX = 16.0  # each stored pixel counts the set bits of a 4x4 block: 0 to 16
INPUT_KEY = "input"  # the model's input name: a sample file is fed to the model by key
LABEL_KEY = "label"  # the right digit


class Split(NamedTuple):
    """One part of the data set.

    Attributes:
        images: Pixel values in [0, 1], shape (N, 1, 8, 8).
        labels: The digit each image shows, shape (N,).
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


class Splits(NamedTuple):
    """The three disjoint parts of the data set.

    Attributes:
        train: What the network learns from.
        calibration: What a quantizer measures activation ranges on.
        evaluation: What accuracy is measured on.
    """

    train: Split
    calibration: Split
    evaluation: Split


def load_splits() -> Splits:
    """Load the digits and cut them into the three splits.

    Returns:
        The splits, always the same, each in shuffled order so that a prefix is a fair sample too.
    """
    digits: Any = load_digits()
    images = (digits.images[:, np.newaxis] / PIXEL_MAX).astype(np.float32)
    labels = digits.target.astype(np.int64)

    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(labels))
    by_digit = order[np.argsort(labels[order], kind="stable")]
    evaluation, rest = _take_evenly(by_digit, EVALUATION_COUNT)
    calibration, train = _take_evenly(rest, CALIBRATION_COUNT)

    def cut(indices: npt.NDArray[np.intp]) -> Split:
        shuffled = rng.permutation(indices)
        return Split(images[shuffled], labels[shuffled])

    return Splits(cut(train), cut(calibration), cut(evaluation))


def write_samples(out_dir: Path) -> tuple[Path, Path]:
    """Write the calibration and evaluation splits as ``.npz`` files.

    Args:
        out_dir: The folder to write to; made if absent.

    Returns:
        The paths of the calibration file and the evaluation file.
    """
    splits = load_splits()
    out_dir.mkdir(parents=True, exist_ok=True)
    calibration = out_dir / "calibration.npz"
    evaluation = out_dir / "evaluation.npz"
    for path, split in ((calibration, splits.calibration), (evaluation, splits.evaluation)):
        arrays: dict[str, Any] = {INPUT_KEY: split.images, LABEL_KEY: split.labels}
        np.savez(path, **arrays)  # stamps each member 1980-01-01
    return calibration, evaluation


def _take_evenly(
    indices: npt.NDArray[np.intp], count: int
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Take evenly spaced members; over indices sorted by digit that is a stratified draw.

    Args:
        indices: What to draw from, sorted by digit and shuffled within each.
        count: How many to draw, at most ``len(indices)``.

    Returns:
        The drawn indices, and those left.
    """
    drawn = np.zeros(len(indices), dtype=np.bool_)
    drawn[np.arange(count) * len(indices) // count] = True
    return indices[drawn], indices[~drawn]


def main() -> None:
    """Write the sample files to the folder named on the command line."""
    parser = argparse.ArgumentParser(description="Write calibration.npz and evaluation.npz.")
    parser.add_argument("out_dir", type=Path, help="folder to write to; made if absent")
    arguments = parser.parse_args()
    for path in write_samples(arguments.out_dir):
        print(path)


if __name__ == "__main__":
    main()
