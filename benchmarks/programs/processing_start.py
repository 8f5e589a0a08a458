"""Prints the seconds until a process can resize, and its memory: `processing_start.py [numpy]`.

With `numpy` it has no Numba. The memory is in KiB.
"""

import sys
import time
from pathlib import Path

if "numpy" in sys.argv:
    sys.modules["numba"] = None  # type: ignore[assignment]  # so that its import fails
from runtime_adapters.processing.declared import Preprocessor
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec

begin_s = time.perf_counter()
Preprocessor(
    TensorSpec(name="x", datatype="FP32", shape=(1, 3, 224, 224)),
    Preprocessing(source_datatype="UINT8", source_layout="NHWC", layout="NCHW", resize="bilinear"),
).warm()
lines = Path("/proc/self/status").read_text().splitlines()
status = dict(line.split(":", 1) for line in lines)
print(time.perf_counter() - begin_s, status["VmRSS"].split()[0])
