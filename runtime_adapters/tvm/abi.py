"""A compiled model's description of itself: the interface between the packager and the adapter.

A library exports three functions and needs only the C library:

- `const char *edgefleet_abi(void)`: this structure as JSON.
- `int edgefleet_run(const void *const *inputs, void *const *outputs)`: run one sample. The pointers
  point to whole C-contiguous tensors in the order of the structure; a batch axis has size 1. The
  result is 0 when done.
- `const char *edgefleet_error(void)`: why the last run failed; may be empty.

Rules:
- A change that an older adapter would misread gets a new `VERSION`.
- Inputs are copied in and outputs are copied out: a caller's memory needs no alignment, and the
  library does not use it after a call.
- One call at a time for each loaded library.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.package.tensors import TensorSpec

VERSION: Final = 1

ABI_SYMBOL: Final = "edgefleet_abi"
RUN_SYMBOL: Final = "edgefleet_run"
ERROR_SYMBOL: Final = "edgefleet_error"
SYMBOLS: Final = (ABI_SYMBOL, RUN_SYMBOL, ERROR_SYMBOL)


class CompiledModel(msgspec.Struct, frozen=True, kw_only=True):
    """The interface of one library."""

    version: int
    architecture: str
    """As `uname -m` prints it."""

    target: str
    """What it was compiled for, such as `x86-64-v3`."""

    cpu_flags: tuple[str, ...] = ()
    """What the processor must have, as /proc/cpuinfo names it."""

    inputs: tuple[TensorSpec, ...]
    """A first size of -1 is a batch axis: a call takes one sample, and repeated calls take more. No
    other size is -1."""

    outputs: tuple[TensorSpec, ...]
    ranges: dict[str, tuple[int, int]] = {}
    """Least and greatest value of inputs that are indices: the code does not check them."""

    arena_bytes: int
    """Memory that it works in, for as long as it is loaded."""

    constants_bytes: int
