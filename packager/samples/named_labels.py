"""Labels with a name of their own, which further metrics read beside the labels of the main one.

They lie in the folder of the part that judges, one `.npy` file each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from packager.errors import DataError
from packager.plan.further import LABELS
from runtime_adapters.protocol import Tensor


def save_named(
    folder: Path,
    source: str,
    offered: Mapping[str, Tensor],
    wanted: Iterable[str],
    indices: NDArray[np.intp],
) -> None:
    """Write the labels that further metrics read.

    Args:
        folder: The folder of the part that judges.
        source: What offers the samples, for messages.
        offered: Labels by name, for all samples of that source.
        wanted: The names that the metrics read.
        indices: The samples of the part, in order.

    Raises:
        DataError: The source does not offer one of them.
    """
    for name in wanted:
        if name not in offered:
            raise DataError(
                f"{source} has no array {name[:80]!r}, which a further metric reads as its labels",
                remedy="add the array, or name another one with --metric OUTPUT=METRIC,labels=NAME",
            )
        np.save(_file(folder, name), np.asarray(offered[name][indices]), allow_pickle=False)


def load_named(folder: Path, name: str, main: Tensor | None) -> Tensor | None:
    """Map the labels of a further metric.

    Args:
        folder: The folder of the part that judges.
        name: The name of the labels; empty for none.
        main: The labels of the main metric.

    Returns:
        The labels; None where the name is empty.

    Raises:
        DataError: It stands for the labels of the main metric, and there are none.
    """
    if not name:
        return None
    if name not in LABELS:
        found: Tensor = np.load(_file(folder, name), mmap_mode="r")
        return found
    if main is None:
        raise DataError(
            f"a further metric reads the labels {name!r}, but the evaluation data have no labels",
            remedy="add an array `label`, or leave out labels=",
        )
    return main


def _file(folder: Path, name: str) -> Path:
    return folder / f"named-labels.{quote(name, safe='')}.npy"
