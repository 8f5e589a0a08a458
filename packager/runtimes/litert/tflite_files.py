"""Puts TFLite files that our tools wrote into one form: plain names, one signature, no metadata.

Rules:
- Only files that our own tools wrote are read here; a user's file goes through `sources.tflite`.
- Inputs and outputs are called as they are declared, in the tensors and in the signature.
- No metadata: `reduced_precision_support` would let a device compute in half precision unasked.
- Equal models give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

SIGNATURE: Final = "serving_default"
"""TensorFlow's name of the first signature, which quantizers expect."""


def read(path: Path) -> Any:  # noqa: ANN401 - generated code is untyped
    """Read a file as an object that can be changed."""
    return flatbuffer_utils.read_model_from_bytearray(path.read_bytes())


def write(model: Any, target: Path) -> None:  # noqa: ANN401 - generated code is untyped
    """Write a model."""
    target.write_bytes(bytes(flatbuffer_utils.convert_object_to_bytearray(model)))


def inputs_of(model: Any) -> list[str]:  # noqa: ANN401 - generated code is untyped
    """Return the names of the inputs, in order."""
    main = model.subgraphs[0]
    return [_text(main.tensors[index].name) for index in main.inputs]


def outputs_of(model: Any) -> list[str]:  # noqa: ANN401 - generated code is untyped
    """Return the names of the outputs, in order."""
    main = model.subgraphs[0]
    return [_text(main.tensors[index].name) for index in main.outputs]


def normalize(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:  # noqa: ANN401
    """Name inputs and outputs, and give the model one signature with these names.

    Args:
        model: The model, which is changed.
        inputs: A name for each input, in the model's order.
        outputs: A name for each output, in the model's order.
    """
    main = model.subgraphs[0]
    main.name = b"main"
    model.description = b""
    model.metadata = None
    model.metadataBuffer = None
    ends = list(zip([*main.inputs, *main.outputs], [*inputs, *outputs], strict=True))
    named = {index: name.encode() for index, name in ends}
    taken = set(named.values())
    for index, tensor in enumerate(main.tensors):
        if index in named:
            tensor.name = named[index]
        elif tensor.name in taken:  # such as the int8 tensor that a float output is computed from
            tensor.name += f":{index}".encode()
    signature = schema.SignatureDefT()
    signature.signatureKey = SIGNATURE.encode()
    signature.subgraphIndex = 0
    signature.inputs = [_mapped(*pair) for pair in zip(inputs, main.inputs, strict=True)]
    signature.outputs = [_mapped(*pair) for pair in zip(outputs, main.outputs, strict=True)]
    model.signatureDefs = [signature]


def copy_shapes(source: Any, model: Any) -> None:  # noqa: ANN401 - generated code is untyped
    """Give inputs and outputs the shapes of another model, with the sizes that may vary.

    Args:
        source: The other model, with as many inputs and outputs.
        model: The model, which is changed.
    """
    ours, theirs = model.subgraphs[0], source.subgraphs[0]
    ends = zip([*ours.inputs, *ours.outputs], [*theirs.inputs, *theirs.outputs], strict=True)
    for index, other in ends:
        tensor, original = ours.tensors[index], theirs.tensors[other]
        tensor.shape, tensor.hasRank = original.shape, original.hasRank
        tensor.shapeSignature = original.shapeSignature


def _mapped(name: str, index: int) -> Any:  # noqa: ANN401 - generated code is untyped
    entry = schema.TensorMapT()
    entry.name = name.encode()
    entry.tensorIndex = int(index)
    return entry


def _text(name: bytes | str | None) -> str:
    return name.decode() if isinstance(name, bytes) else name or ""
