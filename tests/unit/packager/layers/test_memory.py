"""The greatest sum of live values, beside a slow computation that follows the definition."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from packager.layers.memory import Node, live_peak


def node(name: str, inputs: str, *outputs: tuple[str, int], in_place: bool = False) -> Node:
    return Node(name=name, inputs=tuple(inputs.split()), outputs=outputs, in_place=in_place)


def test_a_chain_holds_two_neighbours() -> None:
    chain = [node("a", "x w", ("p", 30)), node("b", "p", ("q", 50)), node("c", "q", ("y", 1))]
    found = live_peak(chain, {"x": 10}, ["y"])
    assert (found.bytes, found.at) == (80, "b")


def test_a_residual_is_held_until_it_is_added() -> None:
    block = [node("a", "x", ("p", 4)), node("b", "p", ("q", 4)), node("add", "q x", ("y", 4))]
    assert live_peak(block, {"x": 4}, ["y"]).bytes == 12


def test_a_view_needs_no_memory_and_keeps_what_it_shows() -> None:
    nodes = [
        node("a", "x", ("p", 8)),
        node("view", "p", ("v", 8), in_place=True),
        node("b", "v", ("y", 2)),
    ]
    assert live_peak(nodes, {"x": 8}, ["y"]).bytes == 16


def test_weights_do_not_count_and_an_empty_graph_needs_nothing() -> None:
    assert live_peak([node("a", "w", ("y", 3))], {}, ["y"]).bytes == 3
    assert live_peak([], {"x": 5}, ["x"]).bytes == 0


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Node], dict[str, int], list[str]]:
    given_bytes = {"x": draw(st.integers(0, 9)), "z": draw(st.integers(0, 9))}
    values, nodes = [*given_bytes], list[Node]()
    for index in range(draw(st.integers(1, 8))):
        inputs = draw(st.lists(st.sampled_from([*values, "weight"]), min_size=1, max_size=3))
        outputs = [
            (f"v{index}.{i}", draw(st.integers(0, 9))) for i in range(draw(st.integers(1, 2)))
        ]
        nodes.append(node(str(index), " ".join(inputs), *outputs))
        values += [name for name, _ in outputs]
    return nodes, given_bytes, draw(st.lists(st.sampled_from(values), max_size=2))


@given(graphs())
def test_the_peak_is_what_the_definition_says(
    graph: tuple[list[Node], dict[str, int], list[str]],
) -> None:
    nodes, given_bytes, kept = graph
    sizes = given_bytes | {value: size for n in nodes for value, size in n.outputs}
    sums = []
    for index, running in enumerate(nodes):
        made = {*given_bytes, *(v for n in nodes[: index + 1] for v, _ in n.outputs)}
        later = {v for n in nodes[index:] for v in n.inputs}
        needed = later | {v for v, _ in running.outputs} | set(kept)
        idle = {v for v in given_bytes if index == 0}  # the caller's inputs are there at first
        sums.append(sum(sizes[v] for v in made & (needed | idle)))
    found = live_peak(nodes, given_bytes, kept)
    assert found.bytes == max(sums)
    if found.bytes:
        assert sums[[n.name for n in nodes].index(found.at)] == found.bytes
