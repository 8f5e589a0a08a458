"""All models on which quantizers are compared, by the names that `--task` takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.quantizers.estimators import forest, network
from benchmarks.quantizers.file_types import file_types
from benchmarks.quantizers.images import cifar, digits
from benchmarks.quantizers.task import Sizes, Task
from benchmarks.quantizers.texts import angles, characters, pages

TASKS: Final[dict[str, Callable[[Path, Sizes], Task | str]]] = {
    "resnet20": cifar,
    "digits": digits,
    "file-types": file_types,
    "text-angle": angles,
    "text-line": characters,
    "text-detector": pages,
    "perceptron": network,
    "forest": forest,
}
