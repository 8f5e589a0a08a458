"""Loads a compiled model into this process, reads its description and calls it.

Rules:
- The adapter inspects a file before the loader maps it: for a truncated file, or one for another
  processor, the loader fails late or ends the process.
- A model that needs instructions which this processor does not have is refused before any of it
  runs.
- Sessions of one file share its memory, so they share a lock.

Source:
    System V ABI, ELF header and program header; ld.so(8).
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
import threading
import weakref
from pathlib import Path
from typing import Final, TypeAlias

from runtime_adapters.compiled import check_code, check_sizes, process_machine
from runtime_adapters.errors import LoadError
from runtime_adapters.tvm.abi import ABI_SYMBOL, ERROR_SYMBOL, RUN_SYMBOL, VERSION, CompiledModel
from wire.codec import from_json
from wire.errors import WireFormatError

Addresses: TypeAlias = ctypes.Array[ctypes.c_void_p]

MAX_ABI_BYTES: Final = 1 << 20
MAX_LIBRARY_BYTES: Final = 1 << 31

_MACHINES: Final = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""ELF's number of a machine to what `uname -m` prints."""

_HEADER_BYTES: Final = 64
_HEADERS: Final = {b"\x7fELF\1\1": "<16x2H5I6H", b"\x7fELF\2\1": "<16x2HI3QI6H"}
"""First bytes (32 or 64 bits, little-endian) to the layout of the header."""

_SHARED: Final = 3
"""ET_DYN."""

_guard: Final = threading.Lock()
_locks: Final[weakref.WeakValueDictionary[int, threading.Lock]] = weakref.WeakValueDictionary()
"""The loader's handle of a library to the lock that all its sessions share."""


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

    def run(self, inputs: Addresses, outputs: Addresses) -> str:
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
            raise LoadError(f"its description cannot be read: {exc}") from exc
        check_model(model)
        return model


def check_file(path: Path) -> None:
    """Refuse a file that is not a whole shared library for this machine.

    Args:
        path: The file.

    Raises:
        LoadError: The file is not one, or cannot be read.
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
    if built_for != process_machine():
        raise LoadError(f"it is built for {built_for}, but this machine is {process_machine()}")


def check_model(model: CompiledModel) -> None:
    """Refuse a model that this adapter or this processor cannot run.

    Args:
        model: A library's description of itself.

    Raises:
        LoadError: Another version, impossible sizes, or instructions that are missing.
    """
    if model.version != VERSION:
        raise LoadError(
            f"its interface has version {model.version}, but this runtime reads version {VERSION}"
        )
    if not model.outputs:
        raise LoadError("it has no outputs")
    check_code(model.architecture, model.cpu_flags, model.inputs, model.ranges)
    check_sizes(model.outputs)
