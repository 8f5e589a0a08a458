"""Two scikit-learn pipelines on a made set: a network that tools can quantize, and a forest.

Rules:
- All tools get the file that skl2onnx writes, with the probabilities as its one output.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx

from benchmarks.quantizers.task import Sizes, Task, in_parts, make_task

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

FEATURES: Final = 40
CLASSES: Final = 8
TRAINING: Final = 4000
INPUT: Final = "features"
OUTPUT: Final = "probabilities"
OPSET: Final = 18
SEED: Final = 5309


def network(folder: Path, sizes: Sizes) -> Task | str:
    """Return a pipeline of a scaler and a perceptron with two hidden layers."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    perceptron = MLPClassifier((128, 64), early_stopping=True, max_iter=40, random_state=SEED)
    return _task(
        "scaler and perceptron", folder, sizes, make_pipeline(StandardScaler(), perceptron)
    )


def forest(folder: Path, sizes: Sizes) -> Task | str:
    """Return a random forest of 100 trees."""
    from sklearn.ensemble import RandomForestClassifier

    trees = RandomForestClassifier(100, max_depth=12, random_state=SEED)
    return _task("random forest", folder, sizes, trees)


def _task(name: str, folder: Path, sizes: Sizes, estimator: BaseEstimator) -> Task | str:
    try:
        from skl2onnx import to_onnx
        from sklearn.datasets import make_classification
    except ImportError as exc:
        return str(exc)
    folder.mkdir(parents=True)
    x, labels = make_classification(
        n_samples=TRAINING + sum(sizes), n_features=FEATURES, n_informative=20,
        n_classes=CLASSES, class_sep=1.6, random_state=SEED,
    )  # fmt: skip
    samples = x.astype(np.float32)
    estimator.fit(samples[:TRAINING], labels[:TRAINING])
    last = estimator if not hasattr(estimator, "steps") else estimator[-1]
    exported = to_onnx(
        estimator, samples[:1], options={id(last): {"zipmap": False}}, target_opset=OPSET
    )
    exported.graph.input[0].name, before = INPUT, exported.graph.input[0].name
    for node in exported.graph.node:
        node.input[:] = [INPUT if given == before else given for given in node.input]
    kept = [value for value in exported.graph.output if value.name == OUTPUT]
    del exported.graph.output[:]
    exported.graph.output.extend(kept)
    onnx.save(exported, str(folder / "model.onnx"))
    parts = in_parts(samples[TRAINING:], labels[TRAINING:].astype(np.int64), sizes)
    return make_task(name, folder, folder / "model.onnx", input_name=INPUT, parts=parts)
