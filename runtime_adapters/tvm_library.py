"""A compiled model in this process: loaded, asked what it is, called.

Rules:
- A file is looked at before the loader maps it: on a truncated one, or one for another processor,
  the loader fails late or ends the process.
- A model that needs instructions that this processor lacks is refused before any of it runs.
- Sessions of one file share its memory, so they share a lock.

Source:
    System V ABI, ELF header and program header; ld.so(8).
"""

from __future__ import annotations

import _ctypes
import ctypes
import math
import os
import struct
import sys
import threading
import weakref
from pathlib import Path
from typing import Final, TypeAlias

from runtime_adapters.errors import LoadError
from runtime_adapters.tensors import ANY, DTYPES
from runtime_adapters.tvm_abi import (
    ABI_SYMBOL,
    ERROR_SYMBOL,
    MAX_TENSOR_BYTES,
    MAX_TENSORS,
    RUN_SYMBOL,
    VERSION,
    CompiledModel,
)
from wire.codec import from_json
from wire.errors import WireFormatError
from wire.manifest import TensorSpec

Addresses: TypeAlias = ctypes.Array[ctypes.c_void_p]

MAX_ABI_BYTES: Final = 1 << 20
MAX_LIBRARY_BYTES: Final = 1 << 31
CPUINFO: Final = Path("/proc/cpuinfo")

_MACHINES: Final = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""ELF's number of a machine to what `uname -m` prints."""

_HEADER_BYTES: Final = 64
_HEADERS: Final = {b"\x7fELF\1\1": "<16x2H5I6H", b"\x7fELF\2\1": "<16x2HI3QI6H"}
"""First bytes (32 or 64 bits, little-endian) to the layout of the header."""

_SHARED: Final = 3
"""ET_DYN."""

_ARMV8_HAS: Final = frozenset({"neon", "vfpv3", "vfpv4"})
"""What every 64-bit ARM processor has, which a 64-bit kernel does not name to a 32-bit process."""

_guard: Final = threading.Lock()
_locks: Final[weakref.WeakValueDictionary[int, threading.Lock]] = weakref.WeakValueDictionary()
"""The loader's handle to the lock of all who use it."""


class Library:
    """A loaded library.

    Args:
        path: The file, which exists.

    Raises:
        LoadError: Not a library for this machine, or of an unknown interface.
    """

    def __init__(self, path: Path) -> None:
        check_file(path)
        try:
            self._library = ctypes.CDLL(str(path), mode=os.RTLD_NOW)
        except OSError as exc:
            raise LoadError(str(exc).replace(str(path), path.name)) from exc
        self._handle = int(self._library._handle)  # noqa: SLF001 - no other way to close it
        with _guard:
            self.lock = _locks.setdefault(self._handle, threading.Lock())
        self._open = True
        try:
            self.model = self._described()
            self._run = getattr(self._library, RUN_SYMBOL)
            self._error = getattr(self._library, ERROR_SYMBOL)
        except AttributeError as exc:
            self.close()
            raise LoadError("it is not a compiled model") from exc
        except LoadError:
            self.close()
            raise
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._run.restype = ctypes.c_int
        self._error.restype = ctypes.c_char_p

    def run(
        self, inputs: ctypes.Array[ctypes.c_void_p], outputs: ctypes.Array[ctypes.c_void_p]
    ) -> str:
        """Run one sample; the caller holds the lock.

        Args:
            inputs: Addresses of whole tensors, in the order of the model.
            outputs: Addresses of memory for whole tensors.

        Returns:
            Why it failed; empty when it did not.
        """
        code = self._run(inputs, outputs)
        if code == 0:
            return ""
        reason = (self._error() or b"").decode("utf-8", errors="replace")
        return f"step {code}: {reason or 'no reason given'}"

    def close(self) -> None:
        """Unload the library, once; the caller holds the lock or is the only one."""
        if self._open:
            self._open = False
            _ctypes.dlclose(self._handle)

    def _described(self) -> CompiledModel:
        function = getattr(self._library, ABI_SYMBOL)
        function.restype = ctypes.c_char_p
        try:
            model = from_json(function() or b"", CompiledModel, limit_bytes=MAX_ABI_BYTES)
        except WireFormatError as exc:
            raise LoadError(f"it does not say what it is: {exc}") from exc
        check_model(model)
        return model


def check_file(path: Path) -> None:
    """Refuse a file that is not a whole shared library for this machine.

    Args:
        path: The file.

    Raises:
        LoadError: It is not, or cannot be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.read(_HEADER_BYTES)
    except OSError as exc:
        raise LoadError(f"it cannot be read: {exc.strerror}") from exc
    layout = _HEADERS.get(head[:6]) if len(head) == _HEADER_BYTES else None
    if layout is None or size > MAX_LIBRARY_BYTES:
        raise LoadError("it is not a shared library, or is truncated")
    fields = struct.unpack_from(layout, head)
    kind, machine, sections, entry, count = (fields[i] for i in (0, 1, 5, 10, 11))
    if kind != _SHARED or sections + entry * count > size:  # its table of sections comes last
        raise LoadError("it is not a shared library, or is truncated")
    built_for = _MACHINES.get(machine, f"machine {machine}")
    if built_for != _process_machine():
        raise LoadError(f"it is built for {built_for}, this is {_process_machine()}")


def check_model(model: CompiledModel) -> None:
    """Refuse a model that this adapter or this processor cannot run.

    Args:
        model: What a library says of itself.

    Raises:
        LoadError: Another version, impossible sizes, or instructions that are missing.
    """
    if model.version != VERSION:
        raise LoadError(f"its interface has version {model.version}, known is {VERSION}")
    tensors = (*model.inputs, *model.outputs)
    if len(tensors) > MAX_TENSORS or not model.outputs:
        raise LoadError(f"it has {len(model.inputs)} inputs and {len(model.outputs)} outputs")
    for spec in tensors:
        size_bytes = _sample_bytes(spec)
        if size_bytes is None or size_bytes > MAX_TENSOR_BYTES:
            raise LoadError(f"{spec.name[:80]!r} has the impossible shape {list(spec.shape)[:16]}")
    if lacking := sorted(set(model.cpu_flags) - processor_flags()):
        raise LoadError(f"this processor lacks {', '.join(lacking)}")


def processor_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return what a processor can, as the kernel names it.

    Args:
        cpuinfo: The kernel's list.

    Returns:
        Names such as `avx2` or `asimd`; none where the kernel does not say.
    """
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"flags", "Features"}:
            flags = frozenset(value.split())
            return flags | _ARMV8_HAS if "asimd" in flags else flags
    return frozenset()


def _process_machine() -> str:
    """Return the architecture of this process, which may be 32 bits wide on a 64-bit kernel."""
    machine = os.uname().machine
    if sys.maxsize < 2**32:
        return {"x86_64": "i686", "aarch64": "armv7l", "armv8l": "armv7l"}.get(machine, machine)
    return machine


def _sample_bytes(spec: TensorSpec) -> int | None:
    """Return the size of a tensor of one sample, in bytes; None where it has none."""
    sizes = spec.shape[1:] if spec.shape[:1] == (ANY,) else spec.shape
    if spec.datatype == "BYTES" or any(size < 0 for size in sizes):
        return None
    return math.prod(sizes) * DTYPES[spec.datatype].itemsize
