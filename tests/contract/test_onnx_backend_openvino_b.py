"""The adapter for OpenVINO passes all of ONNX's own backend tests that it is known to pass.

Here is the other half of them: the halves run beside each other.
"""

from __future__ import annotations

from tests.contract.onnx_backend.suite import suite

cases, test_no_case_is_lost = suite("openvino", part=1, parts=2, few=25)
