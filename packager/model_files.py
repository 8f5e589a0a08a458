"""The files that an ONNX model consists of, and whether its weights stay in one of their own.

Rules:
- No file is read into memory.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

from packager.errors import ModelError
from packager.plan.figures import Inspection
from packager.run.cache import file_sha256

APART_OVER_BYTES: Final = 1024**3
"""A step that holds a model of this size holds several copies of it for a while."""

PROTOCOL_BUFFER_BYTES: Final = 2**31 - 1
"""No model in one piece can be larger, whatever the user asks for."""


def may_have_external_data(model: Path) -> bool:
    """Tell whether a model may have external data, which the file declares with a `location`."""
    with model.open("rb") as stream:
        if not model.stat().st_size:
            return True
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"location") >= 0


def external_digests(model: Path, inspection: Inspection) -> dict[str, str]:
    """Return the SHA-256 of each file of external data, by its path relative to the model.

    Raises:
        ModelError: A file is missing.
        BuildError: A file cannot be read.
    """
    for name in inspection.external:
        if not (model.parent / name).is_file():
            raise ModelError(
                f"the model's external data are missing: {name}",
                remedy="put the file into the model's folder",
            )
    return {name: file_sha256(model.parent / name) for name in inspection.external}


def is_apart(files: list[Path], apart_over_bytes: int) -> bool:
    """Tell whether the weights of an ONNX model are to stay in a file of their own.

    Args:
        files: The model and its files of external data.
        apart_over_bytes: The largest size of all together that a build holds in memory.

    Returns:
        Whether they are larger, or larger than a model in one piece can be.
    """
    size_bytes = sum(file.stat().st_size for file in files)
    return size_bytes > min(apart_over_bytes, PROTOCOL_BUFFER_BYTES)
