"""The door to `onnxruntime`: imported without its telemetry.

ONNX Runtime 1.31 writes usage files below the user's cache directory when it is imported, unless
the environment says otherwise. Nobody else should learn what a device infers, and a hardened
service has no such directory.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

__all__ = ["onnxruntime"]
