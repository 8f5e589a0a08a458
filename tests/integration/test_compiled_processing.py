"""Which form runs: compiled where Numba is there and its files are safe, and never compiled twice.

Each process here is a real one: what is imported and compiled is a matter of a whole process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, sys
if "without" in sys.argv:
    sys.modules["numba"] = None
import numpy as np
from runtime_adapters.processing import kernels
from runtime_adapters.processing.declared import Preprocessor
from wire.package.processing import Preprocessing
from wire.package.tensors import TensorSpec

before = kernels.describe()
spec = TensorSpec(name="x", datatype="FP32", shape=(-1, 3, 8, 8))
how = Preprocessing(
    source_datatype="UINT8", source_layout="NHWC", layout="NCHW", scale=1 / 255,
    mean=(0.5,), std=(0.25,), resize="bilinear",
)
prepare = Preprocessor(spec, how)
if "resize" in sys.argv:
    prepare.warm()
warm = kernels.describe()
odd = np.frombuffer(bytes(range(241)), np.uint8, offset=1).reshape(1, 5, 16, 3)
answer = float(prepare(odd).sum()) if "resize" in sys.argv else 0.0
print(json.dumps([before, warm, kernels.describe(), answer, "numba" in sys.modules]))
"""


def start(cache: Path | None, *words: str) -> Any:
    """Start a process that prepares an image; return what it says before, warm and after."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, *words],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    pytest.importorskip("numba")
    place = tmp_path / "cache"
    place.mkdir(mode=0o700)
    return place


def test_a_second_start_compiles_nothing(cache: Path) -> None:
    before, warm, after, first, _ = start(cache, "resize")
    assert before == {"engine": "not needed"}
    assert warm["engine"].startswith("numba ")
    assert (warm["read"], warm["compiled"]) == ("0", "1")
    assert after == warm  # no request makes the compiler run
    _, warm, after, second, _ = start(cache, "resize")
    assert (warm["read"], warm["compiled"]) == ("1", "0")
    assert after == warm
    assert second == first


def test_without_numba_the_answer_is_the_same(cache: Path) -> None:
    _, warm, _, plain, _ = start(cache, "resize", "without")
    assert warm["engine"].startswith("numpy: ")
    assert "numba" in warm["engine"]
    assert not list(cache.iterdir())
    assert start(cache, "resize")[3] == plain


def test_numba_is_imported_only_where_it_is_of_use(cache: Path) -> None:
    *_, is_imported = start(cache)
    assert not is_imported


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_files_that_a_power_cut_left_are_made_anew(cache: Path, content: bytes) -> None:
    *_, first, _ = start(cache, "resize")
    for path in cache.rglob("*.nb[ic]"):
        path.write_bytes(content)
    _, warm, _, second, _ = start(cache, "resize")
    assert warm["engine"].startswith("numba ")
    assert second == first
    _, warm, *_ = start(cache, "resize")
    assert (warm["read"], warm["compiled"]) == ("1", "0")


def test_compiled_code_is_not_read_from_where_others_can_put_it(cache: Path) -> None:
    cache.chmod(0o777)
    _, warm, *_ = start(cache, "resize")
    assert warm["engine"].startswith("numpy: others can write to ")
    assert not list(cache.rglob("*.nb[ic]"))


def test_without_a_place_for_compiled_code_nothing_is_compiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    _, warm, _, answer, _ = start(None, "resize")
    assert warm["engine"] == "numpy: there is no directory that can keep compiled code"
    assert answer == start(cache, "resize")[3]
