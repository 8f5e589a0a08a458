"""Checks that the adapters of compiled code share, because such code checks nothing itself.

Rules:
- Code that needs instructions which this processor does not have is refused before any of it runs.
- The adapter limits sizes from outside before it allocates memory for them.
- An index out of range reads foreign memory or ends the process, so values are checked here.

Source:
    Linux, Documentation/arch/arm64/elf_hwcaps.rst and arch/x86/include/asm/cpufeatures.h: names in
    /proc/cpuinfo.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from runtime_adapters.batches import sample_shape
from runtime_adapters.checks import ModelTensor
from runtime_adapters.errors import InputError, LoadError
from runtime_adapters.processor import CPUINFO, cpu_flags
from runtime_adapters.protocol import Tensors
from runtime_adapters.tensors import DTYPES
from wire.package.tensors import TensorSpec

MAX_TENSORS: Final = 256
MAX_TENSOR_BYTES: Final = 1 << 30

_ARMV8_HAS: Final = frozenset({"neon", "vfpv3", "vfpv4"})
"""Features of every 64-bit ARM processor that a 64-bit kernel does not name to a 32-bit process."""

Ranges = Mapping[str, tuple[int, int]]
"""Input to the least and greatest value that it may hold."""


def check_code(
    architecture: str, cpu_flags: Iterable[str], inputs: Sequence[TensorSpec], ranges: Ranges
) -> None:
    """Refuse code that this process cannot run, or whose description is impossible.

    Args:
        architecture: What it is compiled for, as `uname -m` prints it.
        cpu_flags: What the processor must have, as /proc/cpuinfo names it.
        inputs: The inputs of the code.
        ranges: Ranges of the inputs that are indices.

    Raises:
        LoadError: The first thing that is wrong.
    """
    if architecture != process_machine():
        raise LoadError(f"it is built for {architecture}, but this machine is {process_machine()}")
    if lacking := sorted(set(cpu_flags) - processor_flags()):
        raise LoadError(f"this processor lacks {', '.join(lacking)}")
    check_sizes(inputs)
    if unknown := sorted(set(ranges) - {spec.name for spec in inputs}):
        raise LoadError(f"it has limits for an input {unknown[0][:80]!r}, but no such input")


def check_sizes(specs: Sequence[TensorSpec]) -> None:
    """Refuse tensors for which no memory can be set aside before the code runs.

    Args:
        specs: The tensors.

    Raises:
        LoadError: There are too many, or one is too large or has no fixed size.
    """
    if len(specs) > MAX_TENSORS:
        raise LoadError(
            f"it has {len(specs)} inputs or outputs, but at most {MAX_TENSORS} are allowed"
        )
    for spec in specs:
        size_bytes = sample_bytes(spec)
        if size_bytes is None:
            raise LoadError(f"its tensor {spec.name[:80]!r} has no fixed size")
        if size_bytes > MAX_TENSOR_BYTES:
            raise LoadError(f"its tensor {spec.name[:80]!r} is over {MAX_TENSOR_BYTES} bytes")


def check_ranges(inputs: Tensors, ranges: Ranges) -> None:
    """Refuse indices that are out of range.

    Args:
        inputs: A request.
        ranges: Ranges of the inputs that are indices.

    Raises:
        InputError: An index is out of range.
    """
    for name, (least, greatest) in ranges.items():
        tensor = inputs[name]
        # Written so that NaN fails too.
        if tensor.size and not (least <= tensor.min() and tensor.max() <= greatest):
            raise InputError(f"input {name!r} has an index outside the range {least} to {greatest}")


def sample_bytes(spec: TensorSpec) -> int | None:
    """Return the size of a tensor of one sample, in bytes; None where it has no fixed one."""
    sizes = sample_shape(spec)
    if spec.datatype == "BYTES" or any(size < 0 for size in sizes):
        return None
    return math.prod(sizes) * DTYPES[spec.datatype].itemsize


def model_tensors(specs: Iterable[TensorSpec]) -> dict[str, ModelTensor]:
    """Return tensors as the check against a declaration takes them."""
    return {spec.name: ModelTensor(datatype=spec.datatype, shape=spec.shape) for spec in specs}


def processor_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the features of a processor, also those that the kernel does not name to a process.

    Args:
        cpuinfo: The kernel's list.

    Returns:
        Names such as `avx2` or `asimd`; none where the kernel does not say.
    """
    flags = cpu_flags(cpuinfo)
    return flags | _ARMV8_HAS if "asimd" in flags else flags


def process_machine() -> str:
    """Return the architecture of this process, which may be 32 bits wide on a 64-bit kernel."""
    machine = os.uname().machine
    if sys.maxsize < 2**32:
        return {"x86_64": "i686", "aarch64": "armv7l", "armv8l": "armv7l"}.get(machine, machine)
    return machine
