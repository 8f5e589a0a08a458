"""What ONNX Runtime fused, from the names in two graphs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packager.runtimes.onnxruntime.fusions import GraphNode, find_fusions


def node(name: str, operator: str, inputs: str, outputs: str) -> GraphNode:
    return GraphNode(
        name=name,
        operator=operator,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
    )


RESIDUAL = [
    node("conv1", "Conv", "x w1", "c1"),
    node("relu1", "Relu", "c1", "r1"),
    node("conv2", "Conv", "r1 w2", "c2"),
    node("add", "Add", "c2 x", "a"),
    node("relu2", "Relu", "a", "y"),
]


def test_a_node_with_the_last_ones_value_holds_all_back_to_its_operator() -> None:
    ran = [
        node("fused", "FusedConv", "x w1", "r1"),
        node("other", "FusedConv", "r1 w2 x", "y"),
    ]
    found = find_fusions(RESIDUAL, ran, ["x"])
    assert found.fused == (("conv1", "relu1"), ("conv2", "add", "relu2"))
    assert not found.removed


def test_what_came_after_a_node_in_blocked_layout_was_fused_into_it() -> None:
    ran = [
        node("r1_nchwc", "Conv", "x w1b", "reorder_token_0"),
        node("c2_nchwc", "Conv", "reorder_token_0 w2b x", "reorder_token_1"),
        node("ReorderOutput", "ReorderOutput", "reorder_token_1", "y"),
    ]
    found = find_fusions(RESIDUAL, ran, ["x"])
    assert found.fused == (("conv1", "relu1"), ("conv2", "add", "relu2"), ())


QUANTIZED = [  # ONNX Runtime's quantizer writes what it adds first
    node("c_DQ", "DequantizeLinear", "cq s z", "cd"),
    node("c_Q", "QuantizeLinear", "r s z", "cq"),
    node("w_DQ", "DequantizeLinear", "w8 s z", "w"),
    node("x_DQ", "DequantizeLinear", "xq s z", "xd"),
    node("x_Q", "QuantizeLinear", "x s z", "xq"),
    node("conv", "Conv", "xd w", "c"),
    node("relu", "Relu", "c", "r"),
    node("gemm", "Gemm", "cd v", "y"),
]


def test_an_integer_node_holds_the_rounding_around_it() -> None:
    ran = [
        node("x_Q", "QuantizeLinear", "x s z", "xq"),
        node("conv_token_1", "QLinearConv", "xq s z w8 s z s z", "conv"),
        node("c_DQ", "DequantizeLinear", "conv s z", "cd"),
        node("gemm", "Gemm", "cd v", "y"),
    ]
    found = find_fusions(QUANTIZED, ran, ["x"])
    assert [set(names) for names in found.fused] == [
        {"x_Q"}, {"conv", "relu", "x_DQ", "w_DQ", "c_Q"}, {"c_DQ"}, {"gemm"},
    ]  # fmt: skip
    assert found.fused[1][0] == "conv"


def test_what_constants_alone_decide_was_computed_in_advance() -> None:
    model = [
        node("shape", "Constant", "", "k"),
        node("cast", "Cast", "k", "k2"),
        node("size", "Mul", "k2 w", "m"),
        node("reshape", "Reshape", "x m", "y"),
    ]
    found = find_fusions(model, [node("reshape", "Reshape", "x m", "y")], ["x"])
    assert found.fused == (("cast", "size", "reshape"),)
    folded = find_fusions(model[:3], [], [])
    assert folded.removed == ("cast", "size")


def test_nodes_without_names_are_found_by_their_values() -> None:
    model = [node("", "Relu", "x", "y")]
    assert find_fusions(model, [node("", "Relu", "x", "y")], ["x"]).fused == (("Relu of y",),)


def test_a_product_and_a_sum_become_one_node_between_added_reshapes() -> None:
    model = [
        node("norm/Sub", "Sub", "x m", "s"),
        node("norm/Mul", "Mul", "s g", "n"),
        node("q/MatMul", "MatMul", "n w", "p"),
        node("q/Add", "Add", "p b", "y"),
    ]
    ran = [
        node("norm/Mul/LayerNormFusion/", "LayerNormalization", "x g m", "n"),
        node("gemm_input_reshape", "Reshape", "n shape", "n2"),
        node("q/MatMul/MatMulAddFusion", "Gemm", "n2 w b", "y2"),
        node("gemm_output_reshape_token_3", "Reshape", "y2 shape", "y"),
    ]
    found = find_fusions(model, ran, ["x"])
    assert found.fused == (("norm/Sub", "norm/Mul"), (), ("q/MatMul", "q/Add"), ())


NAMES = st.sampled_from(["n0", "n1", "n2", "n3_token_4", "v1_nchwc", ""])


@st.composite
def graph(draw: st.DrawFn) -> list[GraphNode]:
    values = ["x", "w"]
    nodes = []
    operators = ["Conv", "Relu", "QuantizeLinear", "DequantizeLinear", "Constant"]
    for index in range(draw(st.integers(0, 7))):
        inputs = draw(st.lists(st.sampled_from(values), max_size=3))
        operator = draw(st.sampled_from(operators))
        nodes.append(node(draw(NAMES), operator, " ".join(inputs), f"v{index}"))
        values.append(f"v{index}")
    return draw(st.permutations(nodes))


@given(graph(), graph())
def test_each_node_of_the_model_is_somewhere(model: list[GraphNode], ran: list[GraphNode]) -> None:
    found = find_fusions(model, ran, ["x"])
    assert len(found.fused) == len(ran)
    told = {name for names in found.fused for name in names} | set(found.removed)
    assert told == {n.label for n in model if n.operator != "Constant"}
