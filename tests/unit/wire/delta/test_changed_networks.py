"""What exporters and pruning make of a network: named, ordered or zeroed anew, little is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.simulators.deltas import applied, of_files
from wire.delta import formats
from wire.delta.encode import encode
from wire.delta.pairing import pairs
from wire.delta.places import Pair, Place

RANDOM = np.random.default_rng(23)
SIDE = 128
LAYERS = [RANDOM.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(5)]
LAYER_BYTES = LAYERS[0].nbytes
FIRST, *OTHERS = LAYERS


def numbered(count: int, start: int = 10) -> list[str]:
    return [f"onnx::MatMul_{start + number}" for number in range(count)]


def network(
    layers: Sequence[Any], names: Sequence[str] | None = None, *, version: str = "1"
) -> bytes:
    """Return a network of layers, one behind the other."""
    names = names or numbered(len(layers))
    nodes = [
        helper.make_node("MatMul", [f"x{place}", name], [f"x{place + 1}"])
        for place, name in enumerate(names)
    ]
    stored = [numpy_helper.from_array(w, name) for w, name in zip(layers, names, strict=True)]
    return model(nodes, stored, [value("x0")], value(f"x{len(names)}"), version)


def branches(then: Any, otherwise: Any, *, version: str = "1") -> bytes:
    """Return a network whose branches use one name for different weights."""

    def branch(weights: Any) -> Any:
        node = helper.make_node("MatMul", ["x", "w"], ["o"])
        stored = [numpy_helper.from_array(weights, "w")]
        return helper.make_graph([node], "branch", [], [value("o")], stored)

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch(then), else_branch=branch(otherwise)
    )
    given = [value("x"), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    return model([node], [], given, value("y"), version)


def value(name: str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE])


def model(nodes: list[Any], stored: list[Any], given: list[Any], made: Any, version: str) -> bytes:
    graph = helper.make_graph(nodes, "g", given, [made], stored)
    return bytes(helper.make_model(graph, producer_version=version).SerializeToString())


def moved(weights: Any, size: float = 1e-4) -> Any:
    """Return weights that a fine-tuning has moved a little."""
    return (weights * (1 + size * RANDOM.standard_normal(weights.shape))).astype(weights.dtype)


def pruned(weights: Any, share: float = 0.5) -> Any:
    """Return weights of which the smallest are zero."""
    small = np.abs(weights) < np.quantile(np.abs(weights), share)
    return np.where(small, weights.dtype.type(0), weights)


def permuted(weights: Any) -> Any:
    return weights[RANDOM.permutation(len(weights))]


def size_of(old: bytes, new: bytes) -> int:
    """Return the size of the delta in bytes, and check what it makes."""
    delta = of_files("m.onnx", old, new)
    assert applied(old, delta) == new
    return len(delta)


def test_both_branches_may_use_one_name() -> None:
    old = branches(FIRST, LAYERS[1])
    assert size_of(old, branches(FIRST, LAYERS[1], version="2")) < 300
    changed = branches(moved(FIRST), moved(LAYERS[1]))
    assert size_of(old, changed) < 0.6 * size_of(b"", changed)


def test_a_layer_more_in_front_is_sent_and_no_other() -> None:
    old, new = network(OTHERS), network(LAYERS)
    assert size_of(old, new) < LAYER_BYTES + 500
    assert size_of(new, old) < 500


def test_a_layer_more_in_front_of_layers_that_moved() -> None:
    old, after = network(OTHERS), [moved(layer) for layer in OTHERS]
    by_name = size_of(old, network(after))
    assert size_of(old, network([FIRST, *after])) < by_name + LAYER_BYTES + 1000


def test_layers_under_other_names_in_another_order_are_not_sent() -> None:
    new = network([LAYERS[place] for place in (2, 0, 4, 1, 3)], list("vwxyz"))
    assert size_of(network(LAYERS), new) < 500


def test_layers_that_moved_are_found_under_other_names_in_another_order() -> None:
    by_name = size_of(network(LAYERS), network([moved(layer) for layer in LAYERS]))
    shuffled = network([moved(LAYERS[place]) for place in (2, 0, 4, 1, 3)], list("vwxyz"))
    assert size_of(network(LAYERS), shuffled) < by_name + 1000


def test_output_channels_in_another_order_are_not_sent() -> None:
    new = network([permuted(layer) for layer in LAYERS])
    assert size_of(network(LAYERS), new) < 6 * SIDE * len(LAYERS)


def test_narrow_channels_in_another_order_are_not_sent() -> None:
    kernels = RANDOM.standard_normal((1024, 3, 3)).astype(np.float32)
    assert size_of(network([kernels]), network([permuted(kernels)])) < 0.2 * kernels.nbytes


def test_channels_that_were_trained_are_sent_alone() -> None:
    new = FIRST.copy()
    new[5:9] = RANDOM.standard_normal((4, SIDE))
    new[40:70] = permuted(new[40:70])
    assert size_of(network(LAYERS), network([new, *OTHERS])) < 4 * SIDE * 4 + 700


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_weights_that_are_set_to_zero_cost_little(kind: Any, share: float) -> None:
    """Which of the weights are zero takes a bit for each; their values are in the old file."""
    layer = FIRST.astype(kind)
    old = network([layer, *OTHERS])
    size = size_of(old, network([pruned(layer, share), *OTHERS]))
    assert size < (0.35 if kind is np.float32 else 0.6) * layer.nbytes


def test_large_tensors_that_have_nothing_in_common_cost_what_they_hold() -> None:
    old = RANDOM.standard_normal((600, 600)).astype(np.float32)
    new = RANDOM.standard_normal((600, 600)).astype(np.float32)
    assert size_of(network([old]), network([new])) < 1.01 * len(network([new]))


def found(old: bytes, new: bytes) -> list[Pair]:
    return pairs(old, new, formats.places("m.onnx", old), formats.places("m.onnx", new))


def test_what_a_tensor_holds_counts_before_its_name() -> None:
    shifted = found(network(OTHERS), network(LAYERS))
    assert [pair.likeness for pair in shifted] == ["same"] * 4
    assert all(pair.new.name != pair.old.name for pair in shifted)
    close = found(network(LAYERS), network([moved(layer) for layer in LAYERS]))
    assert {pair.likeness for pair in close} == {"near"}
    zeroed = found(network(LAYERS), network([pruned(FIRST), *OTHERS]))
    assert [pair.likeness for pair in zeroed] == ["far", "same", "same", "same", "same"]
    assert all(pair.new.name == pair.old.name for pair in (*close, *zeroed))


@pytest.mark.parametrize("kind", ["i1", "u1"])
def test_integers_that_moved_by_one_are_near_whether_they_have_a_sign(kind: str) -> None:
    codes = np.clip(20 * RANDOM.standard_normal(4096) + 128 * (kind == "u1"), -127, 254)
    old = codes.astype(kind)
    content = (old + RANDOM.integers(-1, 2, old.size).astype(kind)).astype(kind).tobytes()
    place = [Place("w", "i1", (4096,), 0, 4096)]
    assert [pair.likeness for pair in pairs(old.tobytes(), content, place, place)] == ["near"]


def test_any_number_of_tensors_with_one_name_and_content_is_paired() -> None:
    count = 1000
    old, new = RANDOM.bytes(64) * count, RANDOM.bytes(64) * count
    places = [Place("w", "f4", (16,), 64 * number, 64) for number in range(count)]
    assert len(pairs(old, new, places, places)) == count
    delta = encode(old, new, old_places=places, new_places=places)
    assert applied(old, delta) == new


def test_rows_without_end_do_not_fill_the_delta() -> None:
    rows = RANDOM.standard_normal((20, 1000, 32)).astype(np.float32)
    old, new = rows.tobytes(), np.stack([permuted(each) for each in rows]).tobytes()
    size = rows[0].nbytes
    places = [Place(str(n), "f4", (1000, 32), size * n, size) for n in range(len(rows))]
    delta = encode(old, new, old_places=places, new_places=places)
    assert applied(old, delta) == new
    assert len(delta) < 0.1 * len(new)
