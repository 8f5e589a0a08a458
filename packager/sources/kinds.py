"""Finds the kind of a model by a file's first bytes, or by what a function returned.

Rules:
- This module imports, parses and unpickles nothing to find the kind.
- If a kind cannot be used, the error says what would work instead.

Source:
    The first bytes of the formats: FlatBuffers file identifier `TFL3` (TFLite schema), MLIR
    bytecode, ZIP, HDF5, pickle protocol 2 and later.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from packager.errors import ModelError
from wire.files import open_file

Kind = Literal["onnx", "tflite", "stablehlo", "function"]
"""Kind of what a user names; a function's result has a `MadeKind`."""

MadeKind = Literal["pytorch", "scikit-learn"]

TAKEN: Final = (
    "hand in .onnx, .tflite, .mlir (StableHLO), or module:callable that returns a PyTorch module "
    "or a scikit-learn estimator"
)
_KINDS: Final[dict[str, Kind]] = {
    ".onnx": "onnx",
    ".tflite": "tflite",
    ".lite": "tflite",
    ".mlir": "stablehlo",
    ".mlirbc": "stablehlo",
    ".stablehlo": "stablehlo",
}
_TORCH: Final = (
    "write a function that builds the module, loads the weights and returns (module, "
    "example_inputs), and name it as module:callable"
)
_KERAS: Final = (
    "export it with keras: model.export(path, format='onnx'), or to .tflite with "
    "tf.lite.TFLiteConverter"
)
_TENSORFLOW: Final = (
    "convert it with: python -m tf2onnx.convert --saved-model FOLDER --output m.onnx"
)
_PICKLE: Final = (
    "a build never unpickles a file; write a function that loads it and returns the estimator, "
    "and give module:callable"
)
_ENGINE: Final = "give the ONNX model that this engine was built from"
_COREML: Final = (
    "give the model that it was converted from; a Core ML model cannot be converted back"
)
_OPENVINO: Final = (
    "give the ONNX model that it was converted from; the build makes the OpenVINO variants"
)
_REMEDIES: Final = {
    ".pt": ("a PyTorch file", _TORCH),
    ".pth": ("a PyTorch file", _TORCH),
    ".ckpt": ("a checkpoint", _TORCH),
    ".pt2": ("an exported PyTorch program", _TORCH),
    ".ptl": ("a TorchScript file", _TORCH),
    ".pte": ("an ExecuTorch program", _TORCH),
    ".safetensors": ("weights without a graph", _TORCH),
    ".bin": ("weights without a graph", _TORCH),
    ".h5": ("a Keras or HDF5 file", _KERAS),
    ".hdf5": ("a Keras or HDF5 file", _KERAS),
    ".keras": ("a Keras file", _KERAS),
    ".pb": ("a TensorFlow graph", _TENSORFLOW),
    ".pkl": ("a pickle", _PICKLE),
    ".pickle": ("a pickle", _PICKLE),
    ".joblib": ("a pickle", _PICKLE),
    ".skops": ("a skops file", _PICKLE),
    ".mlmodel": ("a Core ML model", _COREML),
    ".mlpackage": ("a Core ML model", _COREML),
    ".engine": ("a TensorRT engine", _ENGINE),
    ".plan": ("a TensorRT engine", _ENGINE),
    ".trt": ("a TensorRT engine", _ENGINE),
    ".ort": ("ONNX Runtime's own format", "give the .onnx model that it was made from"),
    ".xml": ("an OpenVINO model", _OPENVINO),
    ".gguf": ("a llama.cpp model", "edgefleet does not build language models of this form"),
    ".py": ("a Python file", "give the file and the function, as file.py:callable"),
}
_MAGIC: Final[tuple[tuple[int, bytes, Kind], ...]] = (
    (4, b"TFL3", "tflite"),
    (0, b"ML\xefR", "stablehlo"),
)
_FOREIGN: Final = (
    (b"PK\x03\x04", "a ZIP archive, such as PyTorch and Keras write", _TORCH),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as Keras writes", _KERAS),
    (b"\x80\x02", "a pickle", _PICKLE),
    (b"\x80\x03", "a pickle", _PICKLE),
    (b"\x80\x04", "a pickle", _PICKLE),
    (b"\x80\x05", "a pickle", _PICKLE),
    (b"version https://git-lfs", "a pointer to a file in Git LFS", "fetch it with: git lfs pull"),
    (b"<!DOCTYPE", "a web page", "download the file itself; this is the page that shows it"),
    (b"<html", "a web page", "download the file itself; this is the page that shows it"),
)
_HEAD_BYTES: Final = 64


def source_kind(text: str) -> Kind:
    """Tell which kind of model a user named.

    Args:
        text: A path, or `module:callable`.

    Returns:
        The kind.

    Raises:
        ModelError: There is no such file, or its kind cannot be taken.
    """
    path = Path(text)
    if not path.exists():
        if _is_function(text):
            return "function"
        raise ModelError(f"there is no file {text[:200]!r}", remedy=TAKEN)
    suffix = path.suffix.lower()
    if suffix in _REMEDIES:
        what, remedy = _REMEDIES[suffix]
        raise ModelError(
            f"{path.name[:80]!r} is {what}, which a build cannot use directly", remedy=remedy
        )
    if path.is_dir():
        saved = (path / "saved_model.pb").exists()
        raise ModelError(f"{path.name[:80]!r} is a folder", remedy=_TENSORFLOW if saved else TAKEN)
    return _file_kind(path, suffix)


def made_kind(made: object) -> MadeKind:
    """Tell which kind of model a user's function returned; this runs in the step's process.

    Args:
        made: What it returned: a model, or a tuple whose first item is one.

    Returns:
        The kind.

    Raises:
        ModelError: It is none of those.
    """
    model: Any = made[0] if isinstance(made, tuple) and made else made
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    if ("torch", "Module") in bases:
        return "pytorch"
    if ("sklearn", "BaseEstimator") in bases:
        return "scikit-learn"
    remedy = "return (torch.nn.Module, example_inputs), or a fitted scikit-learn estimator"
    if type(model).__module__.startswith("jax"):
        remedy = "write jax.export's mlir_module_serialized to a .mlirbc file and hand that in"
    elif type(model).__module__.startswith(("keras", "tensorflow", "tf_keras")):
        remedy = _KERAS
    elif type(model).__module__.startswith("onnx"):
        remedy = "save it with onnx.save and hand in the .onnx file"
    raise ModelError(f"the function returned a {type(model).__name__[:80]}", remedy=remedy)


def _is_function(text: str) -> bool:
    place, _, name = text.rpartition(":")
    return bool(place) and all(part.isidentifier() for part in name.split("."))


def _file_kind(path: Path, suffix: str) -> Kind:
    try:
        with open_file(path) as file:
            head = file.read(_HEAD_BYTES)
    except OSError as exc:
        raise ModelError(f"{path.name[:80]!r} cannot be read: {exc.strerror}") from exc
    if not head:
        raise ModelError(
            f"{path.name[:80]!r} is empty", remedy="copy, download or export the file again"
        )
    for magic, what, remedy in _FOREIGN:
        if head.startswith(magic):
            raise ModelError(f"{path.name[:80]!r} is {what}", remedy=remedy)
    for offset, magic, kind in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return kind
    named = _KINDS.get(suffix)
    if named is None:
        raise ModelError(f"{path.name[:80]!r} is of an unknown kind", remedy=TAKEN)
    if named == "tflite":
        raise ModelError(
            f"{path.name[:80]!r} is not a TFLite model, because the mark TFL3 is missing",
            remedy="copy, download or convert the file again",
        )
    return named
