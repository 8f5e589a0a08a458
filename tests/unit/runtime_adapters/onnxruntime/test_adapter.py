"""What only ONNX Runtime does: text tensors, its options, its threads, its failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from runtime_adapters.errors import InputError, LoadError
from runtime_adapters.onnxruntime.adapter import ADAPTER
from runtime_adapters.protocol import Limits, Session
from tests.contract.adapter_models import KITS, onnx_model, values
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

KIT = next(kit for kit in KITS if kit.runtime == "onnxruntime")
TEXTS = np.array([["a", b"b", "é"]], np.object_)


def load(directory: Path, info: VariantInfo, threads: int = 1) -> Session:
    return ADAPTER.load(directory, info, Limits(threads=threads))


def test_text_goes_in_as_either_and_comes_out_as_bytes(tmp_path: Path) -> None:
    session = load(tmp_path, KIT.copying(tmp_path, "BYTES"))
    assert session.infer({"x": TEXTS})["y"].tolist() == [[b"a", b"b", "é".encode()] * 2]


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    session = load(tmp_path, KIT.copying(tmp_path, "BYTES"))
    with pytest.raises(InputError, match="not UTF-8"):
        session.infer({"x": np.array([[b"\xff", b"", b""]], np.object_)})


@pytest.mark.parametrize("level", ["disabled", "basic", "extended", "all"])
def test_optimization_levels_are_options(tmp_path: Path, level: str) -> None:
    info = KIT.copying(tmp_path, "FP32")
    chosen = KIT.info(info.inputs[0], info.outputs[0], graph_optimization_level=level)
    assert load(tmp_path, chosen).infer({"x": values("FP32", 1)})["y"].shape == (1, 6)


def test_another_level_is_refused(tmp_path: Path) -> None:
    info = KIT.copying(tmp_path, "FP32")
    chosen = KIT.info(info.inputs[0], info.outputs[0], graph_optimization_level="ludicrous")
    with pytest.raises(LoadError, match="values are disabled, basic, extended, all"):
        load(tmp_path, chosen)


@pytest.mark.parametrize(("threads", "more"), [(1, 0), (3, 2)])
def test_a_session_has_the_threads_that_it_may(tmp_path: Path, threads: int, more: int) -> None:
    info = KIT.copying(tmp_path, "FP32")
    load(tmp_path, info).close()
    before = psutil.Process().num_threads()
    session = load(tmp_path, info, threads)
    session.infer({"x": values("FP32", 64)})
    assert psutil.Process().num_threads() - before == more
    session.close()


def test_a_type_without_a_name_is_refused_at_load(tmp_path: Path) -> None:
    model = onnx_model(
        [helper.make_node("Identity", ["x"], ["y"])],
        inputs=[helper.make_tensor_value_info("x", TensorProto.BFLOAT16, (1,))],
        outputs=[helper.make_tensor_value_info("y", TensorProto.BFLOAT16, (1,))],
    )
    onnx.save(model, str(tmp_path / "model.onnx"))
    spec = TensorSpec(name="x", datatype="UINT16", shape=(1,))
    with pytest.raises(LoadError, match="'x' is of another type, but the package declares UINT16"):
        load(tmp_path, KIT.info(spec, TensorSpec(name="y", datatype="UINT16", shape=(1,))))


def test_importing_leaves_no_usage_files(tmp_path: Path) -> None:
    code = "import runtime_adapters.onnxruntime.adapter as a; print(a.ADAPTER.version())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert done.stdout.strip()
    assert list(tmp_path.iterdir()) == []
