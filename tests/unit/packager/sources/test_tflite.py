"""What a given TFLite file is taken for, and how a broken one is refused."""

from __future__ import annotations

import random
from pathlib import Path

import onnx
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils
from onnx import TensorProto, helper

from packager.errors import ModelError
from packager.sources import tflite
from packager.sources.tflite import facts_of
from tests.contract import litert_files
from tests.models import trained
from wire.package.tensors import TensorSpec


def model(
    name: str = "x", kind: int = TensorProto.FLOAT, *, operator: str = "Add"
) -> onnx.ModelProto:
    """Return an ONNX model that adds a stored vector to its input."""
    weight = helper.make_tensor("w", kind, (1, 3), [1, 2, 3])
    graph = helper.make_graph(
        [helper.make_node(operator, [name, "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info(name, kind, ("n", 3))],
        [helper.make_tensor_value_info("y", kind, ("n", 3))],
        [weight],
    )
    return helper.make_model(graph)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "model.tflite"
    litert_files.write(target, model())
    return target


def changed(path: Path, change: object) -> Path:
    """Write a model again after a change to its object form."""
    assert callable(change)
    content = flatbuffer_utils.read_model_from_bytearray(path.read_bytes())
    change(content)
    path.write_bytes(bytes(flatbuffer_utils.convert_object_to_bytearray(content)))
    return path


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        facts_of(path)
    assert "\n" not in str(caught.value)
    assert str(path.parent) not in str(caught.value)
    return caught.value.message


def test_the_facts_of_a_model(path: Path) -> None:
    facts = facts_of(path)
    assert facts.kind == "tflite"
    assert facts.inputs == (TensorSpec(name="x", datatype="FP32", shape=(-1, 3)),)
    assert facts.outputs == (TensorSpec(name="y", datatype="FP32", shape=(-1, 3)),)
    assert facts.operators == ("ADD",)
    assert (facts.opset, facts.parameters, facts.quantized, facts.notes) == (0, 3, False, ())


def test_a_fixed_shape_and_a_name_of_tensorflow_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    litert_files.write(path, model("serving_default_x:0", TensorProto.INT32), batch=1)
    (spec,) = facts_of(path).inputs
    assert spec == TensorSpec(name="serving_default_x:0", datatype="INT32", shape=(1, 3))


def test_a_weight_with_a_scale_makes_a_model_quantized(path: Path) -> None:
    def quantize(content: schema.ModelT) -> None:
        tensor = content.subgraphs[0].tensors[2]
        tensor.type = schema.TensorType.INT8
        content.buffers[tensor.buffer].data = [1, 2, 3]
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [0.5], [0]

    assert tflite.read(changed(path, quantize)).quantized


def test_a_custom_operator_is_named_and_refused(path: Path) -> None:
    litert_files.write(path, model(operator="Frobnicate"))
    found = tflite.read(path)
    assert found.custom == found.operators == ("Frobnicate",)
    assert "Frobnicate" in refused(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.tflite")


def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    for content in (b"", b"\0" * 8, model().SerializeToString(), bytes(range(256)) * 9):
        path.write_bytes(content)
        assert "is not a TFLite model" in refused(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "truncated or damaged" in refused(path)


def test_what_the_runtime_lacks_is_not_called_damage(path: Path) -> None:
    def newer(content: schema.ModelT) -> None:
        content.operatorCodes[0].version = 99

    fault = refused(changed(path, newer))
    assert "LiteRT cannot read the model: " in fault
    assert "version '99'" in fault
    assert "damaged" not in fault
    assert "copy it again" not in fault


def test_a_file_without_a_graph_is_refused(path: Path) -> None:
    def empty(content: schema.ModelT) -> None:
        content.subgraphs = []

    assert "subgraph" in refused(changed(path, empty))


@pytest.mark.parametrize("end", ["inputs", "outputs"])
def test_a_model_must_take_and_give_something(path: Path, end: str) -> None:
    def without(content: schema.ModelT) -> None:
        setattr(content.subgraphs[0], end, [])

    assert "no inputs or no outputs" in refused(changed(path, without))


def test_two_inputs_of_one_name_are_refused(path: Path) -> None:
    def twice(content: schema.ModelT) -> None:
        content.subgraphs[0].inputs = [0, 0]

    assert "the same name" in refused(changed(path, twice))


def test_a_type_that_has_no_name_for_requests_is_refused(path: Path) -> None:
    def complex_input(content: schema.ModelT) -> None:
        content.subgraphs[0].tensors[0].type = schema.TensorType.COMPLEX64

    assert "not supported" in refused(changed(path, complex_input))


def test_the_first_axis_must_be_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    litert_files.write(path, model(), batch=4)
    assert "batch axis" in refused(path)


def test_more_parts_than_any_model_has_are_refused(path: Path) -> None:
    def crowd(content: schema.ModelT) -> None:
        content.subgraphs[0].tensors += [schema.TensorT()] * tflite.MAX_ITEMS

    assert f"over {tflite.MAX_ITEMS} tensors and operators" in refused(changed(path, crowd))


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_gives_a_model_or_a_model_error(path: Path, seed: int) -> None:
    content, chance = path.read_bytes(), random.Random(seed)
    faults = []
    for _ in range(100):
        broken = bytearray(content)
        for _ in range(chance.choice([1, 2, 8])):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        path.write_bytes(bytes(broken))
        try:
            tflite.read(path)
        except ModelError as exc:
            faults.append(exc.message)
    assert len(faults) > 20
    assert not [fault for fault in faults if "\n" in fault]


@pytest.mark.parametrize(
    ("name", "datatype", "shape", "quantized"),
    [
        ("ic_resnet8_fp32", "FP32", (-1, 32, 32, 3), False),
        ("ic_resnet8_int8", "INT8", (-1, 32, 32, 3), True),
        ("kws_dscnn_fp32", "FP32", (-1, 49, 10, 1), True),  # its weights are int8
        ("kws_dscnn_int8", "INT8", (-1, 49, 10, 1), True),
    ],
)
def test_the_facts_of_real_models(
    name: str, datatype: str, shape: tuple[int, ...], quantized: bool
) -> None:
    facts = facts_of(trained(f"mlperf_tiny/{name}.tflite"))
    assert (facts.inputs[0].datatype, facts.inputs[0].shape) == (datatype, shape)
    assert facts.quantized is quantized
    assert "CONV_2D" in facts.operators
    assert facts.parameters > 20_000
