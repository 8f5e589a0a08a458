"""Magika's classifier of file types, on files of this environment.

Rules:
- The files are those of Python and of the installed packages. The truth is their extension. No
  content comes twice, at most `MOST` files have one type, and the digest of a file decides into
  which part it goes.
- The model sees what its authors' package shows it: 1,024 bytes of the beginning and of the end,
  without white space around.

Source:
    magika 1.0.3, `_extract_features_from_seekable`.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.quantizers import shipped
from benchmarks.quantizers.qualities import Array
from benchmarks.quantizers.task import Sizes, Task, in_parts, make_task

TYPES: Final = {
    ".c": "c", ".cmake": "cmake", ".cpp": "cpp", ".css": "css", ".csv": "csv", ".f90": "fortran",
    ".gif": "gif", ".gz": "gzip", ".hpp": "cpp", ".html": "html", ".ini": "ini",
    ".ipynb": "ipynb", ".js": "javascript", ".json": "json", ".md": "markdown", ".npy": "npy",
    ".npz": "npz", ".onnx": "onnx", ".pdf": "pdf", ".png": "png", ".proto": "proto",
    ".py": "python", ".pyc": "pythonbytecode", ".rst": "rst", ".sh": "shell", ".so": "elf",
    ".svg": "svg", ".toml": "toml", ".ttf": "ttf", ".wav": "wav", ".whl": "zip", ".xml": "xml",
    ".yaml": "yaml", ".yml": "yaml",
}  # fmt: skip
MOST: Final = 200
LEAST_BYTES: Final = 64
READ_BYTES: Final = 4096
SHOWN_BYTES: Final = 1024
PADDING: Final = 256
SHAPE: Final = (1, 2 * SHOWN_BYTES)


def file_types(folder: Path, sizes: Sizes) -> Task | str:
    """Return the classifier.

    Args:
        folder: For the files that are made.
        sizes: How many files are used.

    Returns:
        The task, or why there is none.
    """
    source, names = shipped.fetched(shipped.FILE_TYPES), shipped.fetched(shipped.FILE_TYPE_NAMES)
    if isinstance(source, str):
        return source
    if isinstance(names, str):
        return names
    known = json.loads(names.read_text(encoding="utf-8"))["target_labels_space"]
    samples, labels = _samples([str(name) for name in known])
    folder.mkdir(parents=True)
    model = folder / "model.onnx"
    input_name = shipped.of_one_shape(source, SHAPE, model)
    few = Sizes(min(sizes.calibration, 256), min(sizes.gate, 500), sizes.report)
    parts = in_parts(samples, labels, few)
    made = make_task("file types", folder, model, input_name=input_name, parts=parts)
    return made._replace(slow=True)


def _samples(known: list[str]) -> tuple[Array, Array]:
    found: dict[str, tuple[Array, int]] = {}
    taken = dict.fromkeys(TYPES.values(), 0)
    for path in _files():
        kind = TYPES[path.suffix]
        if taken[kind] == MOST:
            continue
        with path.open("rb") as file:
            begin = file.read(READ_BYTES)
            file.seek(max(0, path.stat().st_size - READ_BYTES))
            end = file.read(READ_BYTES)
        digest = hashlib.sha256(begin + end).hexdigest()
        if len(begin.strip()) >= LEAST_BYTES and digest not in found:
            found[digest] = (_shown(begin, end), known.index(kind))
            taken[kind] += 1
    chosen = [found[digest] for digest in sorted(found)]
    return np.stack([x for x, _ in chosen]), np.array([y for _, y in chosen], np.int64)


def _files() -> list[Path]:
    """Return the files of known types, in an order that has nothing to do with their folders."""
    places = {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
    found = {
        path
        for place in places
        for path in Path(place).rglob("*")
        if path.suffix in TYPES and path.is_file()
    }
    return sorted(found, key=lambda path: hashlib.sha256(path.name.encode()).digest())


def _shown(begin: bytes, end: bytes) -> Array:
    """Return a file's bytes as the model takes them, with a number above all bytes for none."""
    first, last = begin.lstrip()[:SHOWN_BYTES], end.rstrip()[-SHOWN_BYTES:]
    numbers = np.full(2 * SHOWN_BYTES, PADDING, np.int32)
    numbers[: len(first)] = np.frombuffer(first, np.uint8)
    numbers[numbers.size - len(last) :] = np.frombuffer(last, np.uint8)
    return numbers
