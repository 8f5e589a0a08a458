"""Where the tensors of a model's file are, for the formats that are known. Pure.

Rules:
- The end of the name says the format. An unknown or damaged file has no tensors, which costs size
  and nothing else.
- The tensors of a file may be described by another one: OpenVINO's `.bin` by the `.xml`, ONNX's
  external data by the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wire.delta.formats import onnx, openvino, safetensors, tflite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wire.delta.places import Place

_READERS = {".onnx": onnx.places, ".tflite": tflite.places, ".safetensors": safetensors.places}


def places(
    name: str,
    content: Any,  # noqa: ANN401 - bytes or a map
    siblings: Mapping[str, Any] | None = None,
) -> list[Place]:
    """Return the tensors of a file.

    Args:
        name: The file's name, without a directory.
        content: The file: bytes, or a map of it.
        siblings: The other files of its directory by their names, as far as they are at hand.

    Returns:
        Their places, unchecked: a damaged file may claim what it does not hold.
    """
    beside = siblings or {}
    stem, _, suffix = name.rpartition(".")
    reader = _READERS.get(f".{suffix}")
    if reader is not None:
        return reader(memoryview(content))
    xml = beside.get(f"{stem}.xml")
    if suffix == "bin" and xml is not None:
        return openvino.places(memoryview(xml))
    return [
        place
        for other, model in beside.items()
        if other.endswith(".onnx")
        for place in onnx.external_places(memoryview(model), name)
    ]
