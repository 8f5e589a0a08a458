"""Reads the anchors of a variant: an `.npy` file with the centre and the size of each.

Rules:
- The file is never unpickled, and not read beyond its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from runtime_adapters.golden import array_from_npy
from runtime_adapters.processing.declarations import MAX_BOXES
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.processing.numpy_forms import Floats
from wire.errors import WireFormatError
from wire.package.paths import safe_path
from wire.package.processing import Postprocessing

MAX_ANCHORS_BYTES: Final = MAX_BOXES * 4 * 8 + 4096
"""As many as a model may have boxes, as doubles, and a header."""

_COLUMNS: Final = 4


def read_anchors(path: Path) -> Floats:
    """Read anchors.

    Args:
        path: The file.

    Returns:
        Shape (anchors, 4): the centre, then the size.

    Raises:
        DeclarationError: It cannot be read, or does not hold anchors.
    """
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_ANCHORS_BYTES + 1)
    except OSError as exc:
        raise DeclarationError(f"anchors {path.name[:80]}: {exc.strerror}") from exc
    if len(content) > MAX_ANCHORS_BYTES:
        raise DeclarationError(f"anchors {path.name[:80]}: over {MAX_ANCHORS_BYTES} bytes")
    try:
        found = array_from_npy(path.name, content, called="anchors")
    except WireFormatError as exc:
        raise DeclarationError(
            exc.message, remedy="write them with numpy.save, in C order"
        ) from exc
    if found.ndim != 2 or found.shape[1] != _COLUMNS or found.dtype.kind != "f" or not len(found):  # noqa: PLR2004
        raise DeclarationError(
            f"anchors {path.name[:80]}: {found.dtype} of {list(found.shape)}, but floats of "
            "(box, 4) are needed",
            remedy="write the centre and the size of an anchor for each box",
        )
    with np.errstate(over="ignore"):
        anchors: Floats = found.astype(np.float32)
    if not np.isfinite(anchors).all() or (anchors[:, 2:] <= 0).any():
        raise DeclarationError(
            f"anchors {path.name[:80]}: a size is not above 0, or a number is not finite",
            remedy="write each anchor as centre and size, not as two corners",
        )
    return anchors


def anchors_of(directory: Path, declared: Mapping[str, Postprocessing]) -> dict[str, Floats]:
    """Read the anchors that a variant declares.

    Args:
        directory: The variant's directory, whose files have been verified.
        declared: Its postprocessing by output.

    Returns:
        By output; nothing where none are declared.

    Raises:
        DeclarationError: A file is missing, or does not hold anchors.
        WireFormatError: A path is not safe.
    """
    return {
        name: read_anchors(directory / safe_path(how.suppression.anchors))
        for name, how in declared.items()
        if how.suppression and how.suppression.anchors
    }
