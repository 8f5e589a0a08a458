"""The description beside a compiled IREE module: what the module's own file does not say.

A `.vmfb` takes and gives buffers by position. The description, a JSON file of the same name, holds
their names, types and shapes in that order, and what must be checked before the code runs.

Rules:
- A change that an older adapter would misread gets a new `VERSION`.
- The code runs one sample in a call: a first size of -1 in a shape is a batch axis of size 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from wire.package.tensors import TensorSpec

VERSION: Final = 1
FUNCTION: Final = "main"
"""The name of the module's function."""

MAX_DESCRIPTION_BYTES: Final = 1 << 20


class CompiledModel(msgspec.Struct, frozen=True, kw_only=True):
    """The description of one module."""

    version: int
    architecture: str
    """As `uname -m` prints it."""

    cpu_flags: tuple[str, ...] = ()
    """What the processor must have, as /proc/cpuinfo names it: nothing checks it at run time."""

    inputs: tuple[TensorSpec, ...]
    """Only the size of a batch axis is -1."""

    outputs: tuple[TensorSpec, ...]
    """A size of -1 on a later axis is known only when the code has run."""

    ranges: dict[str, tuple[int, int]] = {}
    """Least and greatest value of inputs that are indices: the code does not check them."""


def description_of(module: Path) -> Path:
    """Return the path of the description that belongs to a module."""
    return module.with_suffix(".json")
