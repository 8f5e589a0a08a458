"""The adapter for IREE passes ONNX's own backend tests that compile and are known to pass.

Rules:
- The list holds cases of one operator with a batch of one, which is what is compiled.
"""

from __future__ import annotations

from tests.contract.onnx_backend.suite import suite

cases, test_no_case_is_lost = suite("iree", few=9)
