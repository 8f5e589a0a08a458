"""The door to IREE: loads a compiled module into this process and calls it by position.

Rules:
- With one thread, the model runs in the calling thread. With more, it has a device with as many
  worker threads, which end with the device.
- A file is mapped, not read: constants that are used as they are stored cost no memory.
- Inputs are copied to where the code reads them, which costs less than a new buffer per call.
  Outputs must be copied too, because their memory belongs to the runtime.
- One call at a time for each module.

Source:
    IREE 3.13, `iree.runtime`; its flag `--task_topology_group_count` is the only way to say how
    many workers a device has, and is read when a driver is made.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from iree import runtime
from iree.runtime import flags
from iree.runtime._binding import create_hal_driver
from iree.runtime.version import VERSION as _BUILD
from numpy.typing import NDArray

from runtime_adapters.batches import sample_shape
from runtime_adapters.iree.abi import FUNCTION
from runtime_adapters.tensors import DTYPES
from wire.package.tensors import Datatype, TensorSpec

VERSION: Final = str(_BUILD).partition("rc")[0]

_TYPES: Final = runtime.HalElementType
_ELEMENTS: Final[dict[Datatype, Any]] = {
    "BOOL": _TYPES.BOOL_8,
    "UINT8": _TYPES.UINT_8,
    "UINT16": _TYPES.UINT_16,
    "UINT32": _TYPES.UINT_32,
    "UINT64": _TYPES.UINT_64,
    "INT8": _TYPES.SINT_8,
    "INT16": _TYPES.SINT_16,
    "INT32": _TYPES.SINT_32,
    "INT64": _TYPES.SINT_64,
    "FP16": _TYPES.FLOAT_16,
    "FP32": _TYPES.FLOAT_32,
    "FP64": _TYPES.FLOAT_64,
}

_PLACE: Final = {
    "memory_type": int(runtime.MemoryType.DEVICE_LOCAL | runtime.MemoryType.HOST_VISIBLE),
    "allowed_usage": int(runtime.BufferUsage.DEFAULT | runtime.BufferUsage.MAPPING),
}
_flags_lock: Final = threading.Lock()


class Module:
    """A loaded module with memory for its inputs.

    Args:
        path: The file.
        inputs: What it takes, in its order.
        outputs: What it gives, in its order.
        threads: Threads that a call may use.

    Raises:
        ValueError: IREE does not take the file, or it has no function of that name.
    """

    def __init__(
        self,
        path: Path,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        threads: int,
    ) -> None:
        device, self.device_name = _device(threads)
        instance = runtime.VmInstance()
        with path.open("rb") as stream:  # IREE's own way of mapping opens it for writing
            content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        module = runtime.VmModule.wrap_buffer(instance, content, close_buffer=True)
        function = module.lookup_function(FUNCTION)
        if function is None:
            raise ValueError(f"it has no function {FUNCTION!r}")
        hal = runtime.create_hal_module(instance, device)
        self._context = runtime.VmContext(instance, [hal, module])
        self._function = function
        self._arguments = runtime.VmVariantList(len(inputs))
        self._places: list[NDArray[Any]] = []
        for spec in inputs:
            zeros = np.zeros(sample_shape(spec), DTYPES[spec.datatype])
            view = device.allocator.allocate_buffer_copy(
                device=device, buffer=zeros, element_type=_ELEMENTS[spec.datatype], **_PLACE
            )
            self._places.append(view.map().asarray(list(zeros.shape), zeros.dtype))
            self._arguments.push_ref(view)
        self._outputs = [(DTYPES[spec.datatype], len(spec.shape)) for spec in outputs]

    def run(self, inputs: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run one sample.

        Args:
            inputs: One array per input, of its shape and type.

        Returns:
            One array per output, in the runtime's memory: the caller copies what it keeps.

        Raises:
            ValueError: The module's outputs are not the declared ones.
        """
        for place, tensor in zip(self._places, inputs, strict=True):
            place[...] = tensor
        results = runtime.VmVariantList(len(self._outputs))
        self._context.invoke(self._function, self._arguments, results)
        if len(results) != len(self._outputs):
            raise ValueError(f"it gives {len(results)} outputs, not {len(self._outputs)}")
        arrays = []
        for index, (dtype, rank) in enumerate(self._outputs):
            view = results.get_as_object(index, runtime.HalBufferView)
            shape = view.shape
            if len(shape) != rank or view.byte_length != math.prod(shape) * dtype.itemsize:
                raise ValueError(f"it gives {view.byte_length} bytes of shape {shape}")
            # Its own `asarray` takes fifteen times as long.
            arrays.append(np.ndarray(shape, dtype, view.map()))
        return arrays


def _device(threads: int) -> tuple[Any, str]:
    """Return a device and its name."""
    if threads == 1:
        return runtime.get_device("local-sync"), "local-sync"
    with _flags_lock:
        flags.parse_flags(f"--task_topology_group_count={threads}")
        return create_hal_driver("local-task").create_default_device(), "local-task"
