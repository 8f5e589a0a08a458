"""Reads the weights that an ONNX model stores in separate files.

Rules:
- Every file is checked before it is read: its place, its kind, and its size.
- Data are read from the model's own folder only, and never through a link.

Source:
    ONNX, docs/ExternalData.md.
"""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath
from typing import Any, Final

import onnx
from onnx import TensorProto

from packager.errors import ModelError
from packager.fault_text import one_line
from packager.sources.onnx_graph import all_tensors, shown

MAX_MODEL_BYTES: Final = 2**31 - 1
"""The most that a protocol buffer can hold; the model is one."""

_INLINE: Final = "export the model with its weights inside"


def external_locations(model: Any, folder: Path) -> tuple[str, ...]:  # noqa: ANN401 - untyped
    """Check the files of external data that a model names.

    Args:
        model: The model, without its external data.
        folder: The folder of its file.

    Returns:
        Paths relative to the folder, sorted, each once.

    Raises:
        ModelError: A path that leaves the folder, or a file that is missing, no plain file or too
            short.
    """
    return tuple(sorted(_checked_ends(model, folder)[0]))


def _checked_ends(model: Any, folder: Path) -> tuple[dict[str, int], int]:  # noqa: ANN401 - untyped
    """Check the files; return where the data end in each, and the length of all data."""
    ends: dict[str, int] = {}
    total = 0
    for tensor in all_tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location, end, length = _extent(tensor)
        ends[location] = max(end, ends.get(location, 0))
        total += length
    for location, end in sorted(ends.items()):
        _check_file(folder, location, end)
    return ends, total


def take_external_data(model: Any, folder: Path) -> None:  # noqa: ANN401 - onnx is untyped
    """Read the external data into the model, and check them first.

    Args:
        model: The model; changed in place.
        folder: The folder of its file.

    Raises:
        ModelError: The data are not what the model says, cannot be read, or are more than a model
            can hold.
    """
    _, total = _checked_ends(model, folder)
    if total > MAX_MODEL_BYTES:
        raise ModelError(
            f"the model's external data are {total} bytes, over {MAX_MODEL_BYTES}",
            remedy="split the model or store its weights in fewer bits",
        )
    for tensor in all_tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except (onnx.checker.ValidationError, OSError, ValueError) as exc:
            raise ModelError(
                f"the external data of {shown(tensor.name)} cannot be read: {one_line(exc)}",
                remedy=_INLINE,
            ) from exc


def _extent(tensor: Any) -> tuple[str, int, int]:  # noqa: ANN401 - onnx is untyped
    """Return the file of a tensor's data, where they end in it, and their length, in bytes.

    Raises:
        ModelError: The place is missing, not a number, or outside the model's folder.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    pure = PurePosixPath(location)
    if pure.is_absolute() or ".." in pure.parts or "\\" in location or "\0" in location:
        raise ModelError(
            f"the model's external data are outside its folder: {shown(location)}",
            remedy="put the file into the model's folder and name it in the model without a folder",
        )
    if not pure.parts:
        raise ModelError(
            f"the weight {shown(tensor.name)} has external data, but no file is named for them",
            remedy=_INLINE,
        )
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", "0"))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0:
        raise ModelError(
            f"the place of the weight {shown(tensor.name)} in {shown(location)} is not a number",
            remedy=_INLINE,
        )
    return str(pure), offset + length, length


def _check_file(folder: Path, location: str, end: int) -> None:
    path = folder / location
    try:
        links = any((folder / part).is_symlink() for part in _prefixes(location))
        status = path.stat()
    except OSError as exc:
        raise ModelError(
            f"the model's data file {shown(location)}, at least {end} bytes, "
            f"cannot be read: {exc.strerror}",
            remedy="put the file into the model's folder, under that name",
        ) from exc
    if links or not stat.S_ISREG(status.st_mode):
        raise ModelError(
            f"the model's data file {shown(location)} is a link or not a regular file",
            remedy="replace it with a copy of the file",
        )
    if status.st_size < end:
        raise ModelError(
            f"the model's data file {shown(location)} has {status.st_size} bytes, but the model "
            f"needs {end}",
            remedy="copy or download the file again; it is truncated or belongs to another model",
        )


def _prefixes(location: str) -> list[PurePosixPath]:
    pure = PurePosixPath(location)
    return [pure, *(parent for parent in pure.parents if parent.parts)]
