"""The test of one runtime: none of the cases that are known to pass is lost."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.onnx_backend.cases import Cases, check_none_is_lost, recorded
from tests.contract.onnx_backend.ways import WAYS
from tests.thorough import THOROUGH


def suite(
    runtime: str, *, part: int = 0, parts: int = 1, few: int = 1000
) -> tuple[Any, Callable[..., None]]:
    """Return the fixture `cases` and the test of a module.

    Every change runs the first case of operators, a thorough run all cases of all of them.

    Args:
        runtime: The adapter's name.
        part: Which part of the operators is tested, from 0: parts run beside each other.
        parts: Into how many parts they are dealt out.
        few: Of how many operators every change runs the first case.
    """
    names = recorded(runtime, part=part, parts=parts)

    @pytest.fixture(scope="module")
    def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
        way = WAYS[runtime]
        if lacking := way.missing():
            pytest.skip(lacking)
        directory = tmp_path_factory.mktemp(runtime)
        with contextlib.ExitStack() as stack:
            yield Cases(way.prepared(directory, stack, math.inf).adapter, directory)

    @pytest.mark.few(few)
    @pytest.mark.parametrize("operator", names)
    def test_no_case_is_lost(cases: Cases, operator: str) -> None:
        known = names[operator]
        check_none_is_lost(cases, runtime, known if THOROUGH else known[:1])

    return cases, test_no_case_is_lost
