"""The null runtime answers alike everywhere, and misbehaves exactly as it is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from runtime_adapters.errors import InferenceError, LoadError
from runtime_adapters.null.adapter import NullAdapter
from runtime_adapters.protocol import Limits, Session
from tests.simulators.patience import PATIENCE_S
from wire.clock import SystemClock
from wire.codec import to_json
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

X = np.arange(12, dtype=np.float32).reshape(3, 4)
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from wire.codec import from_json
from wire.package.variant import VariantInfo
session = open_session(Path(sys.argv[1]), from_json(sys.argv[2].encode(), VariantInfo), Limits())
print("loaded", flush=True)
session.infer({"x": np.zeros((1, 4), np.float32)})
print("answered", flush=True)
"""


class StillClock(SystemClock):
    """A clock that notes how long it was asked to wait."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.slept_s.append(duration_s)


def variant(
    directory: Path,
    options: dict[str, str] | None = None,
    *,
    seed: int = 7,
    datatype: Datatype = "FP32",
) -> VariantInfo:
    (directory / "m.json").write_text(f'{{"seed": {seed}}}', encoding="utf-8")
    return VariantInfo(
        runtime="null",
        precision="fp32",
        model_file="m.json",
        options=options or {},
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
        outputs=(TensorSpec(name="y", datatype=datatype, shape=(-1, 5)),),
        size_bytes=1,
    )


def load(directory: Path, info: VariantInfo, clock: StillClock | None = None) -> Session:
    return NullAdapter(clock or StillClock()).load(directory, info, Limits())


def test_the_function_is_fixed(tmp_path: Path) -> None:
    answer = load(tmp_path, variant(tmp_path)).infer({"x": np.ones((1, 4), np.float32)})["y"]
    np.testing.assert_allclose(answer, [[1.0111, 2.0301, 2.0944, 1.1736, -0.2991]], atol=1e-4)


def test_seed_and_input_change_the_answer(tmp_path: Path) -> None:
    first = load(tmp_path, variant(tmp_path)).infer({"x": X})["y"]
    other = load(tmp_path, variant(tmp_path, seed=8)).infer({"x": X})["y"]
    assert not np.allclose(first, other)
    assert not np.allclose(first[0], first[1])


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "INT64", "UINT8", "BOOL"])
def test_a_wrong_answer_is_wrong_everywhere(tmp_path: Path, datatype: Datatype) -> None:
    right = load(tmp_path, variant(tmp_path, datatype=datatype)).infer({"x": X})["y"]
    wrong = load(tmp_path, variant(tmp_path, {"wrong": "1"}, datatype=datatype)).infer({"x": X})[
        "y"
    ]
    assert (right != wrong).all()


def test_extreme_inputs_have_an_answer(tmp_path: Path) -> None:
    session = load(tmp_path, variant(tmp_path))
    for value in (np.nan, np.inf, -np.inf, np.finfo(np.float32).max):
        assert np.isfinite(session.infer({"x": np.full((1, 4), value, np.float32)})["y"]).all()


def test_batches_of_unequal_sizes_fail(tmp_path: Path) -> None:
    info = variant(tmp_path)
    both = VariantInfo(
        runtime="null",
        precision="p",
        model_file="m.json",
        inputs=(*info.inputs, TensorSpec(name="z", datatype="INT8", shape=(-1,))),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=()),),
        size_bytes=1,
    )
    session = load(tmp_path, both)
    assert session.infer({"x": X, "z": np.zeros(3, np.int8)})["y"].shape == ()
    with pytest.raises(InferenceError, match=r"different sizes: \[2, 3\] samples"):
        session.infer({"x": X, "z": np.zeros(2, np.int8)})


def test_a_delay_is_spent_on_the_clock(tmp_path: Path) -> None:
    clock = StillClock()
    load(tmp_path, variant(tmp_path, {"delay_ms": "250"}), clock).infer({"x": X})
    assert clock.slept_s == [0.25]


def test_failures_come_when_told(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="told to fail"):
        load(tmp_path, variant(tmp_path, {"fail": "load"}))
    session = load(tmp_path, variant(tmp_path, {"fail": "infer", "fail_after": "2"}))
    session.infer({"x": X})
    session.infer({"x": X})
    for _ in range(2):
        with pytest.raises(InferenceError, match="told to fail"):
            session.infer({"x": X})


def test_a_larger_batch_than_it_takes_fails(tmp_path: Path) -> None:
    session = load(tmp_path, variant(tmp_path, {"most_rows": "1"}))
    session.infer({"x": X[:1]})
    with pytest.raises(InferenceError, match="cannot take 2 samples at once"):
        session.infer({"x": X[:2]})


@pytest.mark.parametrize(
    "options", [{"fail": "perhaps"}, {"delay_ms": "soon"}, {"wrong": "yes"}, {"fial": "load"}]
)
def test_misspelt_options_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(LoadError, match="null cannot load"):
        load(tmp_path, variant(tmp_path, options))


def start(directory: Path, info: VariantInfo) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory), to_json(info).decode()],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loaded\n"
    return process


def test_a_crash_ends_the_process(tmp_path: Path) -> None:
    with start(tmp_path, variant(tmp_path, {"fail": "crash"})) as process:
        assert process.wait(timeout=PATIENCE_S) == -signal.SIGKILL


def test_a_hang_never_answers(tmp_path: Path) -> None:
    with start(tmp_path, variant(tmp_path, {"fail": "hang"})) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        process.kill()
        assert process.communicate()[0] == ""
