"""What only LiteRT's adapter does: inputs that have no batch, delegates, the door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper

from runtime_adapters.errors import LoadError
from runtime_adapters.litert.adapter import ADAPTER
from runtime_adapters.protocol import Limits, Session
from tests.contract import litert_files
from tests.contract.adapter_models import copying_onnx, onnx_model, values
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

ROOT = Path(__file__).resolve().parents[2]
X = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
Z = TensorSpec(name="z", datatype="FP32", shape=(-1, 3))
Y = TensorSpec(name="y", datatype="FP32", shape=(-1, 3))
INFO = VariantInfo(
    runtime="litert",
    precision="fp32",
    model_file="model.tflite",
    inputs=(X, Z),
    outputs=(Y,),
    size_bytes=1,
)


def opened(tmp_path: Path, info: VariantInfo = INFO, *, batch: int = 1) -> Session:
    """Load a model whose output is `x * x + z`, of a fixed batch."""
    kind = TensorProto.FLOAT
    adding = onnx_model(
        [helper.make_node("Mul", ["x", "x"], ["q"]), helper.make_node("Add", ["q", "z"], ["y"])],
        inputs=[helper.make_tensor_value_info(name, kind, ("n", 3)) for name in "xz"],
        outputs=[helper.make_tensor_value_info("y", kind, ("n", 3))],
    )
    litert_files.write(tmp_path / info.model_file, adding, batch=batch)
    return ADAPTER.load(tmp_path, info, Limits())


def test_an_input_without_an_open_batch_is_given_to_every_sample(tmp_path: Path) -> None:
    fixed = msgspec.structs.replace(Z, shape=(1, 3))
    session = opened(tmp_path, msgspec.structs.replace(INFO, inputs=(X, fixed)))
    x, z = values("FP32", 4, seed=1), values("FP32", 1, seed=2)
    np.testing.assert_array_equal(session.infer({"x": x, "z": z})["y"], x**2 + z)


def test_an_open_batch_needs_a_model_of_one_sample(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"shape \[2, 3\], but the package declares \[-1, 3\]"):
        opened(tmp_path, batch=2)


def test_the_delegate_is_a_choice_that_is_seen_and_changes_no_answer(tmp_path: Path) -> None:
    inputs = {"x": values("FP32", 2, seed=1), "z": values("FP32", 2, seed=2)}
    answers = {}
    for delegate, device in (("xnnpack", "XNNPACK"), ("none", "CPU")):
        info = msgspec.structs.replace(INFO, options={"delegate": delegate})
        session = opened(tmp_path, info)
        assert session.describe().devices == (device,)
        assert session.describe().fallback == ""
        answers[delegate] = session.infer(inputs)["y"]
    np.testing.assert_array_equal(answers["xnnpack"], answers["none"])
    with pytest.raises(LoadError, match="delegate is 'gpu'"):
        opened(tmp_path, msgspec.structs.replace(INFO, options={"delegate": "gpu"}))


def test_a_delegate_that_takes_nothing_is_said(tmp_path: Path) -> None:
    spec = TensorSpec(name="x", datatype="INT64", shape=(-1, 3))
    info = msgspec.structs.replace(
        INFO,
        options={"delegate": "xnnpack"},
        inputs=(spec,),
        outputs=(TensorSpec(name="y", datatype="INT64", shape=(-1, 6)),),
    )
    litert_files.write(tmp_path / "model.tflite", copying_onnx("INT64"))
    description = ADAPTER.load(tmp_path, info, Limits()).describe()
    assert description.devices == ("CPU",)
    assert "XNNPACK took no operator" in description.fallback


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    kind = TensorProto.FLOAT
    adding = onnx_model(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        inputs=[helper.make_tensor_value_info(name, kind, ("n", 3)) for name in "xy"],
        outputs=[helper.make_tensor_value_info("z", kind, ("n", 3))],
    )
    path = tmp_path / "model.tflite"
    litert_files.write(path, adding)
    path.write_bytes(path.read_bytes().replace(b"\x01\0\0\0y\0", b"\x01\0\0\0x\0"))
    with pytest.raises(LoadError, match="two tensors 'x'"):
        ADAPTER.load(tmp_path, msgspec.structs.replace(INFO, outputs=(Z,)), Limits())


def test_without_a_runtime_the_door_says_what_is_missing() -> None:
    program = (
        "import sys\n"
        "sys.modules['ai_edge_litert'] = sys.modules['tflite_runtime'] = None\n"
        "from runtime_adapters import registry\n"
        "try:\n    registry.get('litert')\n"
        "except Exception as exc:\n    print(type(exc).__name__, exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("RuntimeUnavailableError the runtime litert cannot be imported")
    assert "the package ai-edge-litert is not installed" in done.stdout
    assert "tflite" not in done.stdout
    assert "edgefleet[litert]" in done.stdout
