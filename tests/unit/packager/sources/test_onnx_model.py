"""ONNX graphs: broken ones are refused in one line, good ones come out clean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from packager.errors import ModelError
from packager.sources import onnx_model, onnx_reading
from packager.sources.onnx_batch import with_one_batch
from packager.sources.onnx_graph import sort_nodes
from packager.sources.parity import answers

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NODE = helper.make_node
FLOAT = TensorProto.FLOAT


def graph_model(
    nodes: list[Any],
    inputs: dict[str, list[Any]] | None = None,
    outputs: dict[str, list[Any]] | None = None,
    weights: tuple[Any, ...] = (),
    *,
    opset: int = 17,
    domains: tuple[str, ...] = (),
) -> Any:
    def values(shapes: dict[str, list[Any]]) -> list[Any]:
        return [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()]

    made = helper.make_graph(
        nodes,
        "g",
        values({"x": ["n", 4]} if inputs is None else inputs),
        values({"y": ["n", 4]} if outputs is None else outputs),
        weights,
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


def model(
    *, operator: str = "Relu", weight: float = 1.0, weight_is_input: bool = False, opset: int = 17
) -> Any:
    tensor = numpy_helper.from_array(np.full((4, 3), weight, np.float32), "w")
    nodes = [
        NODE("MatMul", ["x", "w"], ["h"], doc_string="/home/somebody/train.py"),
        NODE(operator, ["h"], ["y"]),
    ]
    inputs: dict[str, list[Any]] = {"x": ["n", 4]} | ({"w": [4, 3]} if weight_is_input else {})
    return graph_model(nodes, inputs, {"y": ["n", 3]}, (tensor,), opset=opset)


def save(path: Path, made: Any) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def taken(path: Path) -> tuple[Any, Any]:
    """Do with a file what a build does; return the clean copy and the facts."""
    loaded, batch_notes = with_one_batch(onnx_model.load_checked(path))
    cleaned, notes = onnx_model.clean(loaded)
    return cleaned, onnx_model.facts_of(cleaned, (*batch_notes, *notes))


def test_a_good_model_comes_out_clean(tmp_path: Path) -> None:
    cleaned, facts = taken(save(tmp_path / "m.onnx", model(weight_is_input=True)))
    assert [value.name for value in cleaned.graph.input] == ["x"]
    assert any("weights were inputs" in note for note in facts.notes)
    assert b"/home/somebody" not in onnx_model.model_bytes(cleaned)
    assert facts.inputs[0].shape == (-1, 4)
    assert facts.outputs[0].datatype == "FP32"
    assert facts.parameters == 12
    assert facts.domains == ()
    assert {"MatMul", "Gemm"} & set(facts.operators)
    names = [node.name for node in cleaned.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("opset", [6, 7, 9, 12, 13, 26])
@pytest.mark.parametrize("ir", [3, 8, 14, 99])
def test_every_opset_and_format_ends_in_the_common_ones(
    tmp_path: Path, opset: int, ir: int
) -> None:
    made = model(opset=opset, weight_is_input=True)
    made.ir_version = ir
    cleaned, facts = taken(save(tmp_path / "m.onnx", made))
    assert cleaned.ir_version <= onnx_reading.NEWEST_IR
    assert facts.opset == max(opset, onnx_model.OLDEST_OPSET)


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", model())
    first, second = (taken(path)[0] for _ in range(2))
    assert onnx_model.model_bytes(first) == onnx_model.model_bytes(second)


def with_nodes(*indices: int) -> Any:
    made = model()
    nodes = [made.graph.node[i] for i in indices]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    return made


def changed(change: Callable[[Any], object], **options: Any) -> Any:
    made = model(**options)
    change(made)
    return made


def newer_format(made: Any) -> None:
    made.ir_version = 99
    made.MergeFromString(b"\x9a\x3f\x03new")  # a field of a number that nobody uses


def typed(made: Any, kind: Any) -> None:
    made.graph.input[0].type.CopyFrom(kind)


TENSOR = helper.make_tensor_type_proto(FLOAT, ["n", 4])
BROKEN = [
    (
        changed(lambda m: m.graph.node[0].input.__setitem__(0, "y")),
        "cycle: Relu 'y' -> MatMul 'h' -> Relu 'y'",
    ),
    (changed(lambda m: m.graph.node[0].input.__setitem__(0, "z")), "'h' takes 'z', which no node"),
    (with_nodes(), "graph is empty"),
    (with_nodes(0), "not valid ONNX"),
    (with_nodes(0, 1, 1), "two values with the name 'y'"),
    (changed(lambda m: m.graph.input.append(m.graph.input[0])), "two inputs with the name 'x'"),
    (changed(lambda m: m.graph.output.append(m.graph.output[0])), "two outputs with the name 'y'"),
    (
        changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])),
        "two weights with the name 'w'",
    ),
    (model(operator="NoSuch"), "'NoSuch' of the domain 'ai.onnx'"),
    (
        graph_model([NODE("Foo", ["x"], ["y"], domain="com.acme")], domains=("com.acme",)),
        "'Foo' of the domain 'com.acme'",
    ),
    (
        graph_model([NODE("Conv", ["x"], ["y"], domain="com.microsoft.nchwc")]),
        "optimized this file for one processor",
    ),
    (model(weight=float("nan")), "weight 'w' holds NaN"),
    (model(weight=float("inf")), "weight 'w' holds infinity"),
    (model(opset=27), "opset 27, newer than 26"),
    (changed(newer_format), "format is version 99"),
    (changed(lambda m: m.graph.ClearField("input")), "takes 'x', which no node"),
    (changed(lambda m: typed(m, helper.make_sequence_type_proto(TENSOR))), "'x' is a sequence"),
    (changed(lambda m: typed(m, helper.make_optional_type_proto(TENSOR))), "'x' is optional"),
    (
        changed(lambda m: typed(m, helper.make_tensor_type_proto(TensorProto.STRING, ["n", 4]))),
        "STRING, which is not supported",
    ),
    (
        graph_model(
            [NODE("Cast", ["x"], ["c"], to=TensorProto.FLOAT4E2M1), NODE("Relu", ["x"], ["y"])],
            opset=23,
        ),
        "type FLOAT4E2M1",
    ),
]


@pytest.mark.parametrize(("made", "text"), BROKEN, ids=[text for _, text in BROKEN])
def test_broken_models_are_refused_in_one_line_with_a_remedy(
    tmp_path: Path, made: Any, text: str
) -> None:
    with pytest.raises(ModelError) as caught:
        taken(save(tmp_path / "m.onnx", made))
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xff\xff not a model", "not an ONNX model"),
        (b"", "empty"),
        (model().SerializeToString()[:-20], "truncated"),
        (model().SerializeToString().replace(b"Relu", b"Re\xffu"), "damaged"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=text):
        onnx_model.external_files(path)


def body(operator: str, output: str) -> Any:
    """Return a branch of `If` that takes `h` from the graph around it."""
    return helper.make_graph(
        [NODE(operator, ["h"], [output])],
        "body",
        [],
        [helper.make_tensor_value_info(output, FLOAT, ["n", 4])],
    )


def conditional() -> Any:
    """Return a model of an `If` in front of the node whose output its branches take."""
    condition = numpy_helper.from_array(np.array(True), "condition")  # noqa: FBT003 - a scalar
    branches = {"then_branch": body("Relu", "then"), "else_branch": body("Neg", "else")}
    nodes = [NODE("If", ["condition"], ["y"], **branches), NODE("Abs", ["x"], ["h"])]
    return graph_model(nodes, weights=(condition,))


def test_nodes_in_a_wrong_order_are_sorted_also_by_what_bodies_take(tmp_path: Path) -> None:
    made = conditional()
    assert sort_nodes(made.graph)
    assert [node.op_type for node in made.graph.node] == ["Abs", "If"]
    assert not sort_nodes(made.graph)
    path = save(tmp_path / "m.onnx", conditional())
    cleaned, _ = taken(path)
    ready = save(tmp_path / "c.onnx", cleaned)
    x = np.array([[1, -2, 3, -4]], np.float32)
    assert answers(ready, cleaned, {"x": x})["y"].tolist() == [[1, 2, 3, 4]]


def test_a_models_own_functions_are_put_in_place(tmp_path: Path) -> None:
    made = graph_model([NODE("Twice", ["x"], ["y"], domain="own")], domains=("own",))
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], [NODE("Add", ["a", "a"], ["b"])], made.opset_import[:1]
    )
    made.functions.append(function)
    _, facts = taken(save(tmp_path / "m.onnx", made))
    assert facts.operators == ("Add",)
    assert facts.domains == ()


def test_operators_of_onnx_runtime_are_taken_and_told(tmp_path: Path) -> None:
    node = NODE("FastGelu", ["x"], ["y"], domain="com.microsoft")
    _, facts = taken(save(tmp_path / "m.onnx", graph_model([node], domains=("com.microsoft",))))
    assert facts.domains == ("com.microsoft",)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(model(), str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_external_data_are_listed_and_read(external: Path) -> None:
    assert onnx_model.external_files(external) == ("w.bin",)
    assert taken(external)[1].parameters == 12


def missing(file: Path) -> None:
    file.unlink()


def short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("harm", "text"),
    [(missing, "cannot be read: No such"), (short, "has 47 bytes"), (link, "link"), (folder, "no")],
)
def test_external_data_at_fault_are_named(
    external: Path, harm: Callable[[Path], None], text: str
) -> None:
    harm(external.parent / "w.bin")
    for read in (onnx_model.external_files, onnx_model.load_checked):
        with pytest.raises(ModelError, match=f"'w.bin'.*{text}") as caught:
            read(external)
        assert caught.value.remedy


@pytest.mark.parametrize(
    ("entry", "value", "text"),
    [
        ("location", "../../etc/passwd", "outside its folder"),
        ("location", "/etc/passwd", "outside its folder"),
        ("location", "", "no file is named"),
        ("offset", "-8", "not a number"),
        ("offset", "999999", "the model needs 1000047"),
        ("length", "many", "not a number"),
        ("length", str(2**32), "the model needs 4294967296"),
        ("length", "40", "cannot be read|not valid"),
    ],
)
def test_external_data_in_no_place_are_refused(
    external: Path, entry: str, value: str, text: str
) -> None:
    made = onnx.load(str(external), load_external_data=False)
    entries = made.graph.initializer[0].external_data
    for index in reversed(range(len(entries))):
        if entries[index].key == entry:
            del entries[index]
    entries.add(key=entry, value=value)
    save(external, made)
    with pytest.raises(ModelError, match=text):
        onnx_model.load_checked(external)


def test_a_missing_file_of_2_gib_is_named_before_anything_is_read(external: Path) -> None:
    made = onnx.load(str(external), load_external_data=False)
    tensor = made.graph.initializer[0]
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="huge.bin")
    tensor.external_data.add(key="length", value=str(2**31))
    with pytest.raises(ModelError, match=r"'huge.bin', at least 2147483648 bytes"):
        onnx_model.external_files(save(external, made))


def shaped(inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], *nodes: Any) -> Any:
    return graph_model(list(nodes), inputs, outputs)


ADD = NODE("Add", ["x", "s"], ["y"])
SUM = NODE("ReduceSum", ["x"], ["y"], keepdims=0)


@pytest.mark.parametrize(
    ("made", "inputs", "outputs"),
    [
        (
            shaped({"x": ["n", 4]}, {"y": ["n", 4]}, NODE("Relu", ["x"], ["y"])),
            [[-1, 4]],
            [[-1, 4]],
        ),
        (shaped({"x": ["n", 4]}, {"y": [1, 4]}, NODE("Relu", ["x"], ["y"])), [[-1, 4]], [[-1, 4]]),
        (
            shaped({"x": [3, 4]}, {"y": [3, 4]}, NODE("Relu", ["x"], ["y"])),
            [[3, 4]],
            [[3, 4]],
        ),
        (shaped({"x": [], "s": []}, {"y": []}, ADD), [[], []], [[]]),
        (shaped({"x": ["n", 4], "s": []}, {"y": ["n", 4]}, ADD), [[-1, 4], []], [[-1, 4]]),
        (shaped({"x": ["n", 4], "s": [1, 4]}, {"y": ["n", 4]}, ADD), [[1, 4], [1, 4]], [[1, 4]]),
        (shaped({"x": [1, 4]}, {"y": []}, SUM), [[1, 4]], [[]]),
        (shaped({"x": ["n", 4]}, {"y": []}, SUM), [[-1, 4]], [[]]),
    ],
)
@pytest.mark.parametrize("opset", [11, 17])
def test_inputs_and_outputs_keep_their_axes_and_the_answers_stay(
    tmp_path: Path, made: Any, inputs: list[list[int]], outputs: list[list[int]], opset: int
) -> None:
    made = onnx.ModelProto.FromString(made.SerializeToString())
    made.opset_import[0].version = opset
    cleaned, facts = taken(save(tmp_path / "m.onnx", made))
    assert [list(spec.shape) for spec in facts.inputs] == inputs
    assert [list(spec.shape) for spec in facts.outputs] == outputs
    feeds = {
        spec.name: np.full([2 if size < 0 else size for size in spec.shape], -3.0, np.float32)
        for spec in facts.inputs
    }
    found = answers(save(tmp_path / "c.onnx", cleaned), cleaned, feeds)["y"]
    x = feeds["x"]
    wanted = np.maximum(x, 0) if len(feeds) == 1 else x + x.flat[0]
    if "ReduceSum" in facts.operators:
        wanted = x.sum(dtype=np.float32)
    assert found.shape == np.shape(wanted)
    assert np.array_equal(found, wanted)


@pytest.mark.few(4)
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_models_that_compute_their_weights_come_through(path: Path) -> None:
    cleaned, facts = taken(path)
    assert facts.inputs[0].shape == (1, 3, 224, 224)
    assert facts.opset == onnx_model.OLDEST_OPSET
    assert not [note for note in facts.notes if "could not" in note or "not simplified" in note]
    assert cleaned.ByteSize() < path.stat().st_size + onnx_model.MAX_INFLATION_BYTES


def test_a_cleaned_network_answers_as_the_given_one(tmp_path: Path) -> None:
    path = LIGHT / "light_squeezenet.onnx"
    given_model = onnx_model.load_checked(path)
    weights = {tensor.name for tensor in given_model.graph.initializer}
    kept = [value for value in given_model.graph.input if value.name not in weights]
    cleaned, facts = taken(path)
    x = np.random.default_rng(0).random(facts.inputs[0].shape, np.float32)
    found = answers(save(tmp_path / "c.onnx", cleaned), cleaned, {kept[0].name: x})
    given_model.ir_version = onnx_reading.NEWEST_IR
    del given_model.graph.input[:]
    given_model.graph.input.extend(kept)
    wanted = answers(save(tmp_path / "m.onnx", given_model), given_model, {kept[0].name: x})
    for name, values in wanted.items():
        assert np.allclose(found[name], values, rtol=1e-4, atol=1e-6)


SEED = conditional().SerializeToString()


@settings(
    max_examples=150,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    cut=st.integers(0, len(SEED)),
    flips=st.lists(st.tuples(st.integers(0, len(SEED) - 1), st.integers(0, 255)), max_size=6),
)
@example(cut=len(SEED), flips=[])
@example(cut=len(SEED) // 2, flips=[])
def test_damaged_files_are_refused_or_taken_and_nothing_else(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(SEED)
    for place, value in flips:
        content[place] = value
    path = tmp_path / f"m{os.getpid()}.onnx"
    path.write_bytes(content[:cut] if not flips else content)
    try:
        onnx_model.external_files(path)
        taken(path)
    except ModelError as exc:
        assert len(str(exc).splitlines()) == 1  # noqa: PT017 - whether it fails is the file's affair
