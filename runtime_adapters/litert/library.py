"""The door to LiteRT: `ai_edge_litert`, or `tflite_runtime` where that is what the device has.

Rules:
- `ai_edge_litert` is preferred: it is faster on int8 and is the one that is still maintained. If
  neither is there, it is the one that the error names, as the package that brings it is called.
- `tflite_runtime` 2.14, the last one, was built against NumPy 1 and cannot make an interpreter with
  NumPy 2. This module says so when it is imported, not at the first model.
"""

from __future__ import annotations

import importlib.util

import numpy as np

if importlib.util.find_spec("ai_edge_litert") is not None:
    import ai_edge_litert as package
    from ai_edge_litert import interpreter as litert
elif importlib.util.find_spec("tflite_runtime") is not None:
    import tflite_runtime as package
    from tflite_runtime import interpreter as litert

    if int(np.__version__.partition(".")[0]) > 1:
        raise ImportError(
            f"tflite-runtime {package.__version__} needs numpy<2, installed is {np.__version__}"
        )
else:
    raise ImportError("the package ai-edge-litert is not installed")

PACKAGE: str = package.__name__.replace("_", "-")
"""The package that is the runtime here."""

VERSION: str = str(package.__version__)
if PACKAGE != "ai-edge-litert":
    VERSION += f"+{PACKAGE}"  # its numbers do not compare with those of ai-edge-litert

__all__ = ["PACKAGE", "VERSION", "litert"]
