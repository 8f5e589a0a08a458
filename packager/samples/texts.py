"""Checks texts among samples, and gives them one type.

Rules:
- Texts are arrays of NumPy's type `<U`, which is read without unpickling. A user's function may
  yield arrays of `str` objects too: these are objects already.
- A set's texts get an array as wide as the longest, so equal texts are equal samples whatever the
  width was.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO, Final

import numpy as np

from packager.errors import DataError
from packager.samples.store import blocks
from runtime_adapters.protocol import Tensor
from runtime_adapters.texts import are_unicode, longest

MAX_CHARACTERS: Final = 65_536
"""Longest text of a sample; every text of a set takes as much room as the longest."""

_REMEDY: Final = "store texts as an array of NumPy's type str, such as numpy.array(list_of_texts)"
_TOO_LONG: Final = f"{{}}: {{!r}} holds a text of over {MAX_CHARACTERS} characters"
_SHORTER: Final = "leave the longest texts out, or cut them"


def checked_texts(source: str, name: str, values: Tensor) -> Tensor:
    """Refuse what is no array of texts.

    Args:
        source: What offers it, for messages.
        name: Name of the input.
        values: The array.

    Returns:
        The texts, of type `<U`; the same array where that is its type.

    Raises:
        DataError: Another type, a text that is too long, or one that is not Unicode.
    """
    if values.dtype.kind == "O":
        values = _of_objects(source, name, values)
    if values.dtype.kind != "U":
        raise DataError(
            f"{source}: {name!r} is {values.dtype}, but texts are needed", remedy=_REMEDY
        )
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    for block in blocks(native):
        if native.dtype.itemsize and not are_unicode(native[block]):
            raise DataError(
                f"{source}: {name!r} holds a text that is not Unicode, such as half of a surrogate "
                "pair",
                remedy="decode the texts from their encoding before they are stored",
            )
        if longest(native[block]) > MAX_CHARACTERS:
            raise DataError(_TOO_LONG.format(source, name), remedy=_SHORTER)
    return native


def fitting_texts(source: str, name: str, array: Tensor, path: Path, max_bytes: int) -> Tensor:
    """Return the texts of a set in an array that is as wide as the longest, mapped from a file.

    Args:
        source: What offers them, for messages.
        name: Name of the input.
        array: The texts, samples along the first axis.
        path: The file to write, if the width has to change.
        max_bytes: How large that may be.

    Returns:
        The array, of type `<U`.

    Raises:
        DataError: They are no texts, or too much.
    """
    texts = checked_texts(source, name, array)
    width = max((longest(texts[block]) for block in blocks(texts)), default=1)
    dtype = np.dtype(f"<U{width}")
    if texts.dtype == dtype:
        return texts
    _check_room(source, texts.size * dtype.itemsize, max_bytes)
    found: Tensor = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=texts.shape)
    for block in blocks(texts):
        found[block] = texts[block]
    return found


class TextRows:
    """Texts that arrive in pieces of different widths, on disk.

    Args:
        file: Where the pieces go, as they are.
        shape: The shape of one sample.
    """

    def __init__(self, file: IO[bytes], shape: tuple[int, ...]) -> None:
        self._file = file
        self._shape = shape
        self._pieces: list[tuple[int, int]] = []

    def add(self, rows: Tensor) -> None:
        """Add texts of type `<U`."""
        self._file.write(np.ascontiguousarray(rows).tobytes())
        self._pieces.append((len(rows), rows.dtype.itemsize))

    def array(self, source: str, max_bytes: int) -> Tensor:
        """Map all texts in one width.

        Raises:
            DataError: They are too large in the width of the longest.
        """
        self._file.flush()
        widest = np.dtype(f"<U{max(1, *(size // 4 for _, size in self._pieces))}")
        count = sum(rows for rows, _ in self._pieces)
        shape = (count, *self._shape)
        _check_room(source, int(np.prod(shape)) * widest.itemsize, max_bytes)
        path = Path(f"{self._file.name}.texts")
        found = np.memmap(path, dtype=widest, mode="w+", shape=shape)
        row = offset = 0
        for rows, size in self._pieces:
            of_piece = (rows, *self._shape)
            if size:
                found[row : row + rows] = np.memmap(
                    self._file.name, dtype=f"<U{size // 4}", mode="r", offset=offset, shape=of_piece
                )
            row += rows
            offset += int(np.prod(of_piece)) * size
        found.flush()
        return found


def _of_objects(source: str, name: str, values: Tensor) -> Tensor:
    flat = values.reshape(-1).tolist()
    if not all(isinstance(value, str) for value in flat):
        raise DataError(f"{source}: {name!r} holds objects that are no texts", remedy=_REMEDY)
    if any(len(value) > MAX_CHARACTERS for value in flat):
        raise DataError(_TOO_LONG.format(source, name), remedy=_SHORTER)
    if any(value.endswith("\0") for value in flat):
        raise DataError(
            f"{source}: {name!r} holds a text with NUL at its end, which NumPy does not keep",
            remedy="strip it",
        )
    return np.array(flat, np.str_).reshape(values.shape)


def _check_room(source: str, size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise DataError(
            f"{source}: its texts are over {max_bytes} bytes, where each takes as much room as the "
            "longest",
            remedy=_SHORTER,
        )
