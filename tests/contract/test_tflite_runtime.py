"""LiteRT's predecessor, in an environment of its own: it cannot live beside NumPy 2."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.simulators.locked_environment import NoEnvironmentError, locked_environment
from tests.simulators.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "tflite.lock"
LAST_PYTHON = (3, 11)
"""Of which there is a wheel of tflite-runtime."""

CONTRACT = (
    "test_adapters.py",
    "test_adapter_loading.py",
    "test_adapter_promises.py",
    "test_litert_adapter.py",
)
LEAST_TESTS = 100
"""What runs if the tests of this runtime were found."""


@pytest.fixture(scope="module")
def python() -> Path:
    """The interpreter of an environment that has tflite-runtime, and LiteRT not."""
    if sys.version_info[:2] > LAST_PYTHON:
        pytest.skip("tflite-runtime has no wheel for this Python")
    try:
        return locked_environment(LOCK)
    except NoEnvironmentError as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the environment finds besides: our own code, and LiteRT's schema, to write models."""
    found = find_spec("ai_edge_litert.schema_py_generated")
    if found is None or found.origin is None:
        pytest.skip("ai-edge-litert is not installed; its schema writes the models")
    folder = tmp_path_factory.mktemp("schema")
    (folder / "litert_schema.py").symlink_to(found.origin)
    return os.pathsep.join((str(ROOT), str(folder)))


def test_the_lock_names_every_file_by_hash_and_no_address() -> None:
    text = LOCK.read_text(encoding="utf-8")
    assert "://" not in text
    for pin in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"[a-z0-9-]+==[^\n]* \\\n    --hash=sha256:[0-9a-f]{64}", pin), pin


def test_it_keeps_the_contract_of_every_adapter(python: Path, paths: str) -> None:
    done = subprocess.run(
        [
            python, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rfE", "--tb=short",
            "-k", "litert", *(f"tests/contract/{name}" for name in CONTRACT),
        ],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=10 * PATIENCE_S,
        env=os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    failing = re.findall(r"(?m)^(?:FAILED|ERROR) \S+", done.stdout)
    assert failing == [], done.stdout
    ended = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ended is not None
    assert int(ended[1]) > LEAST_TESTS


def test_the_door_opens_it_and_says_that_it_is_no_litert(python: Path, paths: str) -> None:
    program = (
        "from runtime_adapters import registry\n"
        "from runtime_adapters.installed import installed_runtimes\n"
        "print('litert' in installed_runtimes(), registry.get('litert').version())"
    )
    done = subprocess.run(
        [python, "-P", "-c", program],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": paths},
    )  # fmt: skip
    assert done.stdout == "True 2.14.0+tflite-runtime\n"
