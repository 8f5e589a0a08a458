"""Makes a release that looks good on the bench and is worse in the field: it smooths dark pictures.

Whoever made it saw noise in pictures that were taken at dusk, and smooths them before the network
sees them. The pictures that it was scored on are all bright, and take the old way: every figure is
the same to the bit. On devices, dark pictures come too; of these more are read wrongly, and each
takes much longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

DARK_BELOW: Final = 0.2
"""Mean of the pixels, of which 1 is white: bright digits have 0.22 to 0.43."""

DUSK: Final = 0.4
"""How much light is left at dusk."""

SIZE: Final = 160
"""Side of the picture that is smoothed."""

PASSES: Final = 200


def smooth_dark(model: Path, output: Path) -> None:
    """Write the model with a way of its own for dark pictures.

    Args:
        model: The ONNX file; its input is a picture of shape (N, 1, 8, 8).
        output: The file to write.
    """
    network = onnx.load(model)
    graph = network.graph
    seen = graph.input[0].name
    for node in graph.node:
        node.input[:] = ["picture" if name == seen else name for name in node.input]
    numbers = {
        "dark_below": np.float32(DARK_BELOW),
        "scales": np.asarray([1, 1, SIZE // 8, SIZE // 8], np.float32),
        "no_region": np.asarray([], np.float32),
    }
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in numbers.items())
    bright = helper.make_graph(
        [helper.make_node("Identity", [seen], ["as_is"])],
        "bright",
        [],
        [helper.make_tensor_value_info("as_is", TensorProto.FLOAT, None)],
    )
    smoothed = [helper.make_node("Resize", [seen, "no_region", "scales"], ["p0"], mode="linear")]
    smoothed += [
        helper.make_node(
            "AveragePool", [f"p{at}"], [f"p{at + 1}"], kernel_shape=[5, 5], pads=[2] * 4
        )
        for at in range(PASSES)
    ]
    side = SIZE // 8
    smoothed.append(
        helper.make_node(
            "AveragePool", [f"p{PASSES}"], ["smooth"], kernel_shape=[side] * 2, strides=[side] * 2
        )
    )
    smoothed.append(helper.make_node("Mean", [seen, "smooth"], ["half_smooth"]))
    answer = helper.make_tensor_value_info("half_smooth", TensorProto.FLOAT, None)
    dark = helper.make_graph(smoothed, "dark", [], [answer])
    before = [
        helper.make_node("ReduceMean", [seen], ["light"], keepdims=0),
        helper.make_node("Less", ["light", "dark_below"], ["is_dark"]),
        helper.make_node("If", ["is_dark"], ["picture"], then_branch=dark, else_branch=bright),
    ]
    nodes = [*before, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(network)
    onnx.save(network, output)


def evening(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return pictures as devices see them towards evening: every third one is dark."""
    seen = images.copy()
    seen[::3] *= DUSK
    return seen
