"""The adapter for IREE passes ONNX's own backend tests that compile and are known to pass.

Rules:
- The list holds cases of one operator with a batch of one, which is what is compiled.
"""

from __future__ import annotations

import pytest

from tests.contract.onnx_backend.cases import Cases, check_none_is_lost, recorded
from tests.contract.onnx_backend.compiled import kit_of, through_compiler

RUNTIME = "iree"
RECORDED = recorded(RUNTIME)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    if lacking := kit_of(RUNTIME).missing():
        pytest.skip(lacking)
    directory = tmp_path_factory.mktemp(RUNTIME)
    return Cases(through_compiler(RUNTIME, directory), directory)


@pytest.mark.parametrize("operator", RECORDED)
def test_no_case_is_lost(cases: Cases, operator: str) -> None:
    check_none_is_lost(cases, RUNTIME, RECORDED[operator])
