"""The adapter for ONNX Runtime passes all of ONNX's own backend tests that it is known to pass."""

from __future__ import annotations

from tests.contract.onnx_backend.suite import suite

cases, test_no_case_is_lost = suite("onnxruntime")
