"""The door to OpenVINO: imports it with its usage statistics off.

Importing OpenVINO starts a statistics package, which writes a client identifier into the home
directory and may report to its makers when a model is converted. OpenVINO and NNCF both work
without that package, so this module makes its import fail.

Its newer reader of ONNX files loses what the older one has: the loss operators, inputs without
elements, and a second name of a tensor. This module selects the older one, unless the environment
selects one already.

Rules:
- A module that needs `openvino` or `nncf` imports this module before them.

Source:
    OpenVINO's pull request 38295, for what the newer reader loses and for `ONNX_ITERATOR`.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

cast("dict[str, Any]", sys.modules).setdefault("openvino_telemetry", None)
os.environ.setdefault("ONNX_ITERATOR", "0")

import openvino  # noqa: E402 - only after the line above

__all__ = ["openvino"]
