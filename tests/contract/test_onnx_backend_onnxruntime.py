"""The adapter for ONNX Runtime passes all of ONNX's own backend tests that it is known to pass."""

from __future__ import annotations

import pytest

from tests.contract.onnx_backend.cases import (
    Cases,
    check_none_is_lost,
    recorded,
    through_adapter,
)

RUNTIME = "onnxruntime"
RECORDED = recorded(RUNTIME)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    directory = tmp_path_factory.mktemp(RUNTIME)
    return Cases(through_adapter(RUNTIME, directory), directory)


@pytest.mark.parametrize("operator", RECORDED)
def test_no_case_is_lost(cases: Cases, operator: str) -> None:
    check_none_is_lost(cases, RUNTIME, RECORDED[operator])
