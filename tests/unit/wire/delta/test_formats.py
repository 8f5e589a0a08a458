"""Where the tensors are: as the libraries that write these formats put them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tests.simulators.deltas import applied, of_files
from wire.delta import formats
from wire.delta.formats import onnx as onnx_format
from wire.delta.places import Place

RANDOM = np.random.default_rng(11)
WEIGHTS = RANDOM.standard_normal((8, 32)).astype(np.float32)
CODES = RANDOM.integers(-9, 9, (16, 16)).astype(np.int8)


def onnx_model(weights: Any = WEIGHTS, *, codes: Any = CODES) -> Any:
    """Return a model with weights of many kinds, also in a constant and in a branch."""
    typed = helper.make_tensor("typed", TensorProto.FLOAT, [64], weights.ravel()[:64])
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["inner"], value=numpy_helper.from_array(weights * 2))],
        "branch",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [8, 32])],
    )
    nodes = [
        helper.make_node("Constant", [], ["constant"], value=numpy_helper.from_array(weights)),
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
    ]
    stored = {"w": weights, "half": weights.astype(np.float16), "codes": codes}
    stored |= {"long": np.arange(64), "bias": weights[:2, 0]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 32])],
        [numpy_helper.from_array(value, name) for name, value in stored.items()] + [typed],
    )
    return helper.make_model(graph)


def content_of(data: bytes, place: Place) -> bytes:
    return data[place.offset : place.offset + place.length]


def test_the_tensors_of_an_onnx_model_are_found() -> None:
    data = onnx_model().SerializeToString()
    found = {p.name: p for p in formats.places("m.onnx", data)}
    expected: dict[str, tuple[str, tuple[int, ...], Any]] = {
        "w": ("f4", (8, 32), WEIGHTS),
        "half": ("f2", (8, 32), WEIGHTS.astype(np.float16)),
        "codes": ("i1", (16, 16), CODES),
        "long": ("i8", (64,), np.arange(64)),
        "typed": ("f4", (64,), WEIGHTS.ravel()[:64]),
        "constant": ("f4", (8, 32), WEIGHTS),
        "inner": ("f4", (8, 32), WEIGHTS * 2),
        "bias": ("f4", (2,), WEIGHTS[:2, 0]),
    }
    assert set(found) == set(expected)
    for name, (element, shape, value) in expected.items():
        assert (found[name].element, found[name].shape) == (element, shape)
        assert content_of(data, found[name]) == value.tobytes()


def test_packed_and_short_types_of_onnx_are_found() -> None:
    kinds = {"INT4": "n1", "UINT4": "n1", "BFLOAT16": "f2", "FLOAT8E4M3FN": "f1", "DOUBLE": "f8"}
    for name, element in kinds.items():
        tensor = onnx.TensorProto(
            name="t", data_type=TensorProto.DataType.Value(name), dims=[128], raw_data=bytes(1024)
        )
        graph = onnx.GraphProto(initializer=[tensor])
        (place,) = onnx_format.places(memoryview(onnx.ModelProto(graph=graph).SerializeToString()))
        assert (place.element, place.length) == (element, 1024)


def test_the_external_data_of_an_onnx_model_are_found(tmp_path: Path) -> None:
    model = onnx_model()
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="m.data",
              size_threshold=64)  # fmt: skip
    data = (tmp_path / "m.data").read_bytes()
    beside = {"m.onnx": (tmp_path / "m.onnx").read_bytes(), "m.data": data}
    found = {p.name: p for p in formats.places("m.data", data, beside)}
    assert content_of(data, found["w"]) == WEIGHTS.tobytes()
    assert content_of(data, found["codes"]) == CODES.tobytes()
    assert "w" not in {p.name for p in formats.places("m.onnx", beside["m.onnx"])}


def openvino_files(folder: Path, weights: Any = WEIGHTS) -> dict[str, bytes]:
    opset = openvino.opset13
    given_ = opset.parameter([1, len(weights)], np.float32, name="x")
    half = opset.convert(opset.constant(weights.astype(np.float16), name="h"), "f32")
    both = opset.add(opset.constant(weights, name="w"), half)
    model = openvino.Model(
        [opset.matmul(given_, both, transpose_a=False, transpose_b=False)], [given_], "m"
    )
    openvino.save_model(model, folder / "m.xml", compress_to_fp16=False)
    return {name: (folder / name).read_bytes() for name in ("m.xml", "m.bin")}


def test_the_tensors_of_an_openvino_model_are_found(tmp_path: Path) -> None:
    files = openvino_files(tmp_path)
    found = formats.places("m.bin", files["m.bin"], files)
    contents = {(p.element, content_of(files["m.bin"], p)) for p in found}
    assert ("f4", WEIGHTS.tobytes()) in contents
    assert ("f2", WEIGHTS.astype(np.float16).tobytes()) in contents
    assert formats.places("m.bin", files["m.bin"]) == []


def tflite_model(weights: Any = WEIGHTS, codes: Any = CODES, scale: float = 1.0) -> bytes:
    flatbuffers = pytest.importorskip("flatbuffers")
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    buffers = [schema.BufferT()]
    tensors = []
    for name, kind, value in (("w", 0, weights), ("codes", 9, codes)):
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        buffers.append(buffer)
        tensor = schema.TensorT()
        tensor.name, tensor.type, tensor.shape = (
            name.encode(),
            kind,
            np.array(value.shape, np.int32),
        )
        tensor.buffer = len(buffers) - 1
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = np.linspace(scale, 2 * scale, 32, dtype=np.float32)
        tensors.append(tensor)
    model, subgraph = schema.ModelT(), schema.SubGraphT()
    subgraph.tensors = tensors
    model.version, model.subgraphs, model.buffers = 3, [subgraph], buffers
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return memoryview(builder.Output()).tobytes()


def test_the_tensors_and_scales_of_a_tflite_model_are_found() -> None:
    data = tflite_model()
    found = {p.name: p for p in formats.places("m.tflite", data)}
    assert {name: p.element for name, p in found.items()} == {
        "w": "f4", "codes": "i1", "w/scale": "f4", "codes/scale": "f4",
    }  # fmt: skip
    assert content_of(data, found["w"]) == WEIGHTS.tobytes()
    assert content_of(data, found["codes"]) == CODES.tobytes()
    assert content_of(data, found["codes/scale"]) == np.linspace(1, 2, 32, dtype="<f4").tobytes()
    assert found["w"].shape == (8, 32)


def safetensors_file(weights: Any = WEIGHTS) -> bytes:
    """Return a file of that format, with padding in its header as the library writes it."""
    half = weights.astype(np.float16).tobytes()
    size = weights.nbytes
    entries = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": weights.shape, "data_offsets": [0, size]},
        "h": {"dtype": "F16", "shape": weights.shape, "data_offsets": [size, size + len(half)]},
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((len(header).to_bytes(8, "little"), header, weights.tobytes(), half))


def test_the_tensors_of_a_safetensors_file_are_found() -> None:
    data = safetensors_file()
    found = {p.name: p for p in formats.places("m.safetensors", data)}
    assert set(found) == {"w", "h"}
    assert content_of(data, found["w"]) == WEIGHTS.tobytes()
    assert (found["h"].element, found["h"].shape, found["h"].length) == ("f2", (8, 32), 512)


@pytest.mark.parametrize("kind", ["onnx", "tflite", "safetensors", "openvino"])
def test_a_fine_tuned_model_of_each_format_becomes_a_small_delta(kind: str, tmp_path: Path) -> None:
    before = RANDOM.standard_normal((64, 256)).astype(np.float32)
    after = before * np.float32(1 + 1e-5)
    files: Callable[[Any], dict[str, bytes]] = {
        "onnx": lambda w: {"m.onnx": onnx_model(w).SerializeToString()},
        "tflite": lambda w: {"m.tflite": tflite_model(w)},
        "safetensors": lambda w: {"m.safetensors": safetensors_file(w)},
        "openvino": lambda w: openvino_files(tmp_path, w),
    }[kind]
    old, new = files(before), files(after)
    name = next(name for name in old if not name.endswith(".xml"))
    delta = of_files(name, old[name], new[name], beside_old=old, beside_new=new)
    assert applied(old[name], delta) == new[name]
    assert len(delta) < 0.35 * len(new[name])


VALID = {
    "m.onnx": onnx_model().SerializeToString(),
    "m.safetensors": safetensors_file(),
}


@given(st.data(), st.sampled_from(["m.onnx", "m.tflite", "m.safetensors", "m.bin"]))
@settings(max_examples=120)
def test_a_damaged_model_still_round_trips(data: st.DataObject, name: str) -> None:
    valid = VALID | {"m.tflite": tflite_model(), "m.bin": WEIGHTS.tobytes()}
    xml = (
        b'<net><layer id="1" name="w" type="Const" version="opset1">\n'
        b'<data element_type="f32" shape="8, 32" offset="0" size="1024" />'
    )
    old = valid[name]
    new, text = bytearray(old), bytearray(xml)
    for content in (new, text):
        for _ in range(data.draw(st.integers(0, 3))):
            place = data.draw(st.integers(0, min(len(content) - 1, 900)))
            content[place : place + 1] = data.draw(st.binary(max_size=9))
    delta = of_files(
        name, old, bytes(new), beside_old={"m.xml": xml}, beside_new={"m.xml": bytes(text)}
    )
    assert applied(old, delta) == new
