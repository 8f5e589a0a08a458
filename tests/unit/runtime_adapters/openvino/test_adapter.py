"""What only OpenVINO does: precision hints, 32-bit integers, several file formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime_adapters.errors import InputError, LoadError
from runtime_adapters.openvino.adapter import ADAPTER, PRECISION_OPTION
from runtime_adapters.openvino.library import openvino
from runtime_adapters.protocol import Limits, Session
from tests.contract.adapter_models import KITS, WIDTH, copying_onnx, onnx_model, values
from wire.package.tensors import Datatype, TensorSpec
from wire.package.variant import VariantInfo

KIT = next(kit for kit in KITS if kit.runtime == "openvino")


def load(directory: Path, info: VariantInfo) -> Session:
    return ADAPTER.load(directory, info, Limits())


@pytest.mark.parametrize("hint", ["f32", "bf16", "f16"])
def test_another_precision_than_promised_is_a_fallback(tmp_path: Path, hint: str) -> None:
    plain = KIT.copying(tmp_path, "FP32")
    info = KIT.info(plain.inputs[0], plain.outputs[0], **{PRECISION_OPTION: hint})
    fallback = load(tmp_path, info).describe().fallback
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if {"f32": "FP32", "bf16": "BF16", "f16": "FP16"}[hint] in able:
        assert fallback == ""
    else:
        assert fallback.startswith(f"{PRECISION_OPTION} is ")
        assert fallback.endswith(f", promised was {hint}")


def test_another_hint_is_refused(tmp_path: Path) -> None:
    plain = KIT.copying(tmp_path, "FP32")
    info = KIT.info(plain.inputs[0], plain.outputs[0], **{PRECISION_OPTION: "undefined"})
    with pytest.raises(LoadError, match="values are f32, bf16, f16"):
        load(tmp_path, info)


@pytest.mark.parametrize("datatype", ["INT64", "UINT64", "UINT32"])
def test_integers_beyond_32_bits_are_refused_not_cut_off(
    tmp_path: Path, datatype: Datatype
) -> None:
    session = load(tmp_path, KIT.copying(tmp_path, datatype))
    batch = values(datatype, 1)
    batch[0, 0] = 2**31 - 1
    np.testing.assert_array_equal(session.infer({"x": batch})["y"][:, :WIDTH], batch)
    batch[0, 0] = 2**31
    with pytest.raises(InputError, match="beyond the 32 bits"):
        session.infer({"x": batch})


def test_double_precision_is_said_to_be_single(tmp_path: Path) -> None:
    session = load(tmp_path, KIT.copying(tmp_path, "FP64"))
    assert session.describe().fallback == "FP64 is computed as FP32"


def renamed(info: VariantInfo, model_file: str) -> VariantInfo:
    return VariantInfo(
        runtime="openvino",
        precision="fp32",
        model_file=model_file,
        inputs=info.inputs,
        outputs=info.outputs,
        size_bytes=1,
    )


def test_onnx_files_are_read_too(tmp_path: Path) -> None:
    info = KIT.copying(tmp_path, "FP32")
    onnx.save(copying_onnx("FP32"), str(tmp_path / "m.onnx"))
    x = values("FP32", 2)
    answer = load(tmp_path, renamed(info, "m.onnx")).infer({"x": x})["y"]
    np.testing.assert_array_equal(answer, np.concatenate([x, x], axis=1))


def test_an_operator_that_onnx_does_not_have_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    info = KIT.copying(tmp_path, "FP32")
    onnx.save(copying_onnx("FP32", operator="Frobnicate"), str(tmp_path / "m.onnx"))
    with pytest.raises(LoadError, match="Frobnicate"):
        load(tmp_path, renamed(info, "m.onnx"))
    (tmp_path / "m.onnx").write_bytes(b"\x08")
    with pytest.raises(LoadError, match="Error during import of ONNX model"):
        load(tmp_path, renamed(info, "m.onnx"))
    assert capfd.readouterr() == ("", "")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    info = KIT.copying(tmp_path, "FP32")
    (tmp_path / "m.pb").write_bytes(b"")
    with pytest.raises(LoadError, match=r"must end with \.xml or \.onnx or \.tflite"):
        load(tmp_path, renamed(info, "m.pb"))


def test_missing_weights_are_a_load_error(tmp_path: Path) -> None:
    model = onnx_model(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", WIDTH))],
        outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, ("n", WIDTH))],
        constants=[helper.make_tensor("w", TensorProto.FLOAT, (WIDTH,), [2.0, 3.0, 4.0])],
    )
    KIT.write(tmp_path / KIT.model_file, model)
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, WIDTH))
    info = KIT.info(spec, TensorSpec(name="y", datatype="FP32", shape=(-1, WIDTH)))
    load(tmp_path, info).close()
    weights = (tmp_path / KIT.model_file).with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(LoadError, match="Incorrect weights"):
        load(tmp_path, info)
    weights.unlink()
    with pytest.raises(LoadError, match="bin file cannot be found"):
        load(tmp_path, info)


def test_scalars_go_in_and_out(tmp_path: Path) -> None:
    model = onnx_model(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, ())],
        outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, ())],
    )
    KIT.write(tmp_path / KIT.model_file, model)
    spec = TensorSpec(name="x", datatype="FP32", shape=())
    session = load(tmp_path, KIT.info(spec, TensorSpec(name="y", datatype="FP32", shape=())))
    assert session.infer({"x": np.array(2, np.float32)})["y"] == np.float32(4)
