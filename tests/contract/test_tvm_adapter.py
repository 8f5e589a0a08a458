"""What the adapter for compiled models must refuse before their code runs, and how they share."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from runtime_adapters.compiled import processor_flags
from runtime_adapters.errors import InferenceError, InputError, LoadError
from runtime_adapters.protocol import Limits
from runtime_adapters.tvm.abi import VERSION, CompiledModel
from runtime_adapters.tvm.adapter import ADAPTER
from wire.codec import to_json
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

X = TensorSpec(name="x", datatype="INT32", shape=(-1, 2))
SHARED = TensorSpec(name="k", datatype="INT32", shape=(1, 1))
Y = TensorSpec(name="y", datatype="INT32", shape=(-1, 2))
MODEL = CompiledModel(
    version=VERSION,
    architecture=os.uname().machine,
    target="test",
    inputs=(X, SHARED),
    outputs=(Y,),
    ranges={"x": (-3, 1000)},
    arena_bytes=64,
    constants_bytes=0,
)
INFO = VariantInfo(
    runtime="tvm", precision="fp32", model_file="model.so", inputs=(X, SHARED), outputs=(Y,),
    size_bytes=1,
)  # fmt: skip
SOURCE = r"""
#include <string.h>
static int work[2], key; /* as a real library: one place to work in */
const char *edgefleet_abi(void) { return ABI; }
const char *edgefleet_error(void) { return "thirteen\nis refused"; }
int edgefleet_run(const void *const *in, void *const *out) {
  memcpy(work, in[0], sizeof work);
  key = *(const int *)in[1];
  if (key == 13) return 5;
  for (volatile int i = 0; i < 2000; i++) ;
  for (int i = 0; i < 2; i++) work[i] = work[i] * 2 + key;
  memcpy(out[0], work, sizeof work);
  return 0;
}
"""
Build = Callable[..., VariantInfo]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a function that makes a library with some interface."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")

    def make(model: CompiledModel = MODEL, *, source: str = SOURCE, text: str = "") -> VariantInfo:
        quoted = (text or to_json(model).decode()).replace("\\", "\\\\").replace('"', '\\"')
        (tmp_path / "model.c").write_text(f'#define ABI "{quoted}"\n{source}', encoding="utf-8")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "model.c", "-o", "model.so"], cwd=tmp_path, check=True
        )
        return INFO

    return make


def arrays(*rows: tuple[int, int], key: int = 0) -> dict[str, np.ndarray]:
    return {
        "x": np.array(rows, np.int32).reshape(-1, 2),
        "k": np.array([[key]], np.int32),
    }


def test_a_batch_is_answered_sample_by_sample_with_shared_inputs(
    build: Build, tmp_path: Path
) -> None:
    session = ADAPTER.load(tmp_path, build(), Limits())
    answer = session.infer(arrays((1, 2), (3, 4), (5, 6), key=7))["y"]
    np.testing.assert_array_equal(answer, [[9, 11], [13, 15], [17, 19]])
    assert session.infer(arrays())["y"].shape == (0, 2)


@pytest.mark.parametrize("bad", [-4, 1001])
def test_an_index_out_of_range_never_reaches_the_code(
    build: Build, tmp_path: Path, bad: int
) -> None:
    session = ADAPTER.load(tmp_path, build(), Limits())
    session.infer(arrays((-3, 1000)))
    with pytest.raises(InputError, match="'x' has an index outside the range -3 to 1000"):
        session.infer(arrays((0, 0), (bad, 0)))


def test_a_failure_in_the_code_is_an_error_of_one_line(build: Build, tmp_path: Path) -> None:
    session = ADAPTER.load(tmp_path, build(), Limits())
    with pytest.raises(InferenceError, match="step 5: thirteen is refused"):
        session.infer(arrays((1, 1), key=13))
    np.testing.assert_array_equal(session.infer(arrays((1, 2)))["y"], [[2, 4]])


def test_sessions_of_one_file_take_turns_and_close_apart(build: Build, tmp_path: Path) -> None:
    info = build()
    sessions = [ADAPTER.load(tmp_path, info, Limits()) for _ in range(4)]

    def many(start: int) -> bool:
        session = sessions[start % len(sessions)]
        for step in range(200):
            answer = session.infer(arrays((start, step), (step, start), key=start))["y"]
            right = [[2 * start + start, 2 * step + start], [2 * step + start, 3 * start]]
            if answer.tolist() != right:
                return False
        return True

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert all(pool.map(many, range(8)))
    sessions[0].close()
    np.testing.assert_array_equal(sessions[1].infer(arrays((1, 2)))["y"], [[2, 4]])
    for session in sessions:
        session.close()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_library_that_is_refused_is_not_left_loaded(build: Build, tmp_path: Path) -> None:
    info = msgspec.structs.replace(build(), outputs=(msgspec.structs.replace(Y, name="z"),))
    with pytest.raises(LoadError, match="no output 'z'"):
        ADAPTER.load(tmp_path, info, Limits())
    assert str(tmp_path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": VERSION + 1}, "interface has version"),
        ({"cpu_flags": ("amx_time_travel",)}, "lacks amx_time_travel"),
        ({"outputs": ()}, "no outputs"),
        ({"inputs": (X,) * 300}, "300 inputs or outputs"),
        ({"inputs": (msgspec.structs.replace(X, shape=(-1, -1)), SHARED)}, "no fixed size"),
        ({"inputs": (msgspec.structs.replace(X, shape=(1 << 20, 1 << 20)), SHARED)}, "is over"),
        ({"inputs": (msgspec.structs.replace(X, datatype="BYTES"), SHARED)}, "no fixed size"),
        ({"inputs": (msgspec.structs.replace(X, datatype="INT64"), SHARED)}, "INT64"),
        ({"inputs": (X,)}, "no input 'k'"),
        ({"ranges": {"w": (0, 1)}}, "limits for an input 'w'"),
    ],
)
def test_an_interface_that_does_not_fit_is_refused(
    build: Build, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    info = build(msgspec.structs.replace(MODEL, **change))
    with pytest.raises(LoadError, match=words) as caught:
        ADAPTER.load(tmp_path, info, Limits())
    assert str(tmp_path) not in caught.value.message


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', "null", " "])
def test_a_library_that_talks_nonsense_is_refused(build: Build, tmp_path: Path, text: str) -> None:
    info = build(text=text)
    with pytest.raises(LoadError, match="description cannot be read"):
        ADAPTER.load(tmp_path, info, Limits())


@pytest.mark.parametrize("missing", ["edgefleet_abi", "edgefleet_run", "edgefleet_error"])
def test_another_shared_library_is_refused(build: Build, tmp_path: Path, missing: str) -> None:
    info = build(source=SOURCE.replace(missing, "something_else"))
    with pytest.raises(LoadError, match="not a compiled model"):
        ADAPTER.load(tmp_path, info, Limits())


def test_code_for_another_processor_is_refused_by_name(build: Build, tmp_path: Path) -> None:
    info = build()
    content = bytearray((tmp_path / "model.so").read_bytes())
    content[18:20] = (2).to_bytes(2, "little")  # SPARC
    (tmp_path / "model.so").write_bytes(content)
    with pytest.raises(
        LoadError, match=f"built for machine 2, but this machine is {os.uname().machine}"
    ):
        ADAPTER.load(tmp_path, info, Limits())


def test_every_truncation_is_refused_before_the_loader_sees_it(
    build: Build, tmp_path: Path
) -> None:
    info = build()
    content = (tmp_path / "model.so").read_bytes()
    for size in (0, 3, 63, 64, 100, len(content) // 2, len(content) - 1):
        (tmp_path / "model.so").write_bytes(content[:size])
        with pytest.raises(LoadError, match="not a shared library, or is truncated"):
            ADAPTER.load(tmp_path, info, Limits())


@pytest.mark.parametrize(
    ("cpuinfo", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 fma\n", {"fpu", "avx2", "fma"}),
        ("Features\t: half neon vfpv4\n", {"half", "neon", "vfpv4"}),
        ("Features\t: fp asimd crc32\n", {"fp", "asimd", "crc32", "neon", "vfpv3", "vfpv4"}),
        ("isa\t\t: rv64imafdc_zba\n", {"i", "m", "a", "f", "d", "c", "zba"}),
        ("", set()),
    ],
)
def test_processors_say_what_they_can(cpuinfo: str, flags: set[str], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo, encoding="ascii")
    assert processor_flags(tmp_path / "cpuinfo") == flags
    assert processor_flags(tmp_path / "absent") == frozenset()
