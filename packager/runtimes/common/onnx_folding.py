"""Computes what follows from known shapes in a graph, before a compiler or converter reads it.

They want a constant where ONNX also allows nodes that compute one.
"""

from __future__ import annotations

from typing import Any

import onnx

from packager.errors import StepError
from packager.tools.quiet import tool


def folded(model: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Compute what depends on constants alone.

    Args:
        model: The model; not changed.

    Returns:
        A simpler copy; the model itself where the simplifier fails, or changes inputs or outputs.
    """
    import onnxslim  # takes seconds

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        with tool("onnxslim"):
            slim = onnxslim.slim(copy)
    except (StepError, SystemExit):
        return model
    return slim if _ends(slim) == _ends(model) else model


def _ends(model: Any) -> tuple[list[str], list[str]]:  # noqa: ANN401 - onnx is untyped
    return [v.name for v in model.graph.input], [v.name for v in model.graph.output]
