"""The adapter for LiteRT passes ONNX's own backend tests that convert and are known to pass.

Rules:
- The list holds some cases of each operator: each takes a conversion.
"""

from __future__ import annotations

from tests.contract.onnx_backend.suite import suite

cases, test_no_case_is_lost = suite("litert", few=35)
