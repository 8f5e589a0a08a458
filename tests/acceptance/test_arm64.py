"""The agent on an emulated 64-bit Arm board: the same program as `make board`."""

from __future__ import annotations

import os

import pytest

from tests.field.arm64 import run
from tests.simulators.arm64 import default_root
from tests.simulators.locked_environment import NoEnvironmentError

pytestmark = [pytest.mark.broker, pytest.mark.timeout(7200)]


def test_an_agent_installs_enrols_and_answers_on_an_arm64_board() -> None:
    if "EDGEFLEET_ARM64_ROOT" not in os.environ:
        pytest.skip("takes a quarter of an hour: make board, or set EDGEFLEET_ARM64_ROOT")
    said: list[str] = []
    try:
        run(default_root(), said.append)
    except NoEnvironmentError as exc:
        pytest.skip(str(exc))
    assert any("tvm-fp32-aarch64" in line for line in said)
