"""A device finds out which runtimes it has, without importing one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runtime_adapters.installed import _is_there, installed_runtimes
from runtime_adapters.runtimes import BY_NAME
from tests.simulators.device_environment import device_environment
from tests.simulators.patience import PATIENCE_S

PROGRAM = """
import sys
from runtime_adapters.installed import installed_runtimes
print(",".join(installed_runtimes()))
print([name for name in ("numpy", "onnxruntime", "importlib.metadata") if name in sys.modules])
"""


def test_here_all_are_installed() -> None:
    assert set(installed_runtimes()) == set(BY_NAME)


@pytest.mark.parametrize(
    ("packages", "found"),
    [
        ((), "null"),
        (("numpy",), "tvm,null"),
        (("numpy", "onnxruntime"), "onnxruntime,tvm,null"),
        (("numpy", "iree-base-runtime"), "tvm,iree,null"),
        (("numpy", "ai-edge-litert"), "litert,tvm,null"),
    ],
)
def test_a_device_finds_what_its_environment_has(
    packages: tuple[str, ...], found: str, tmp_path: Path
) -> None:
    programs = device_environment(tmp_path, *packages)
    done = subprocess.run(
        [programs / "python", "-c", PROGRAM],
        capture_output=True, text=True, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout == f"{found}\n[]\n"


def test_each_part_of_a_dotted_name_is_looked_for() -> None:
    assert _is_there("json.decoder")
    assert not _is_there("json.nothing")
    assert not _is_there("nothing.decoder")
