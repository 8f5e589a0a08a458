"""The door to OpenVINO: imports it with its usage statistics off.

Importing OpenVINO starts a statistics package, which writes a client identifier into the home
directory and may call home when a model is converted. OpenVINO and NNCF both do without that
package when it cannot be imported, so that is what it is made here.

Rules:
- Whoever needs `openvino` or `nncf` imports this module before them.
"""

from __future__ import annotations

import sys
from typing import Any, cast

cast("dict[str, Any]", sys.modules).setdefault("openvino_telemetry", None)

import openvino  # noqa: E402 - only after the line above

__all__ = ["openvino"]
