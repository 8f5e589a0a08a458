"""The table of runtimes that models are built for.

A new runtime is one row here and one in `runtime_adapters.runtimes`, with a folder beside each.
"""

from __future__ import annotations

from typing import Final

from packager.plan.runtimes import Runtimes
from packager.runtimes.iree import spec as iree
from packager.runtimes.litert import spec as litert
from packager.runtimes.onnxruntime import spec as onnxruntime
from packager.runtimes.openvino import spec as openvino
from packager.runtimes.tvm import spec as tvm

RUNTIMES: Final = Runtimes(
    (onnxruntime.SPEC, openvino.SPEC, litert.SPEC, tvm.SPEC, iree.SPEC),
)
