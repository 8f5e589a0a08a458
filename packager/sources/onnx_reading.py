"""Reads the graph of an ONNX model from its file, as the file has it.

Rules:
- This module only reads the user's file.
- Whether the weights are inside or in other files makes no difference here.

Source:
    ONNX, docs/IR.md and docs/Versioning.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

from packager.errors import ModelError
from packager.fault_text import one_line
from packager.sources.onnx_external import MAX_MODEL_BYTES
from packager.sources.onnx_graph import check_texts

NEWEST_IR: Final = 10
"""ONNX Runtime 1.20, the oldest that devices may have, reads up to this version of the format."""


def read_graph(path: Path) -> Any:  # noqa: ANN401 - onnx is untyped
    """Read a model as its file has it, without external data, and check that it is one.

    Args:
        path: The model.

    Returns:
        The model.

    Raises:
        ModelError: Not a model, empty, or over what a protocol buffer can hold.
    """
    again = "copy, download or export the file again"
    try:
        size = path.stat().st_size
        if size > MAX_MODEL_BYTES:
            raise ModelError(
                f"the model is over {MAX_MODEL_BYTES} bytes",
                remedy="export it with external data, or with weights in fewer bits",
            )
        model = onnx.ModelProto.FromString(path.read_bytes())
    except DecodeError as exc:
        raise ModelError("the file is not an ONNX model, or is truncated", remedy=again) from exc
    except OSError as exc:
        raise ModelError(f"the model cannot be read: {exc.strerror}") from exc
    if size == 0:
        raise ModelError("the model's file is empty", remedy=again)
    if not model.graph.node:
        raise ModelError(
            "the model's graph is empty", remedy="export a model that computes something"
        )
    check_texts(model)
    _lower_unknown_ir(model)
    return model


def _lower_unknown_ir(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Lower a format version that is newer than the checker's, if the model uses nothing new.

    Raises:
        ModelError: The model has parts that only the newer format knows.
    """
    if model.ir_version <= onnx.IR_VERSION:
        return
    size = model.ByteSize()
    model.DiscardUnknownFields()
    if model.ByteSize() != size:
        raise ModelError(
            f"the model's format is version {model.ir_version}, and version {onnx.IR_VERSION} "
            "does not have some of its parts",
            remedy=f"export the model in version {NEWEST_IR} of the format",
        )
    model.ir_version = onnx.IR_VERSION


def inlined(model: Any) -> Any:  # noqa: ANN401 - onnx is untyped
    """Put the bodies of a model's own functions where they are called.

    Args:
        model: The model.

    Returns:
        A copy, or the model itself where it has no functions.

    Raises:
        ModelError: The functions cannot be inlined.
    """
    if not model.functions:
        return model
    import onnx.inliner

    try:
        return onnx.inliner.inline_local_functions(model)
    except Exception as exc:
        raise ModelError(
            f"the functions that the model defines cannot be inlined: {one_line(exc)}",
            remedy="export the model without functions",
        ) from exc
