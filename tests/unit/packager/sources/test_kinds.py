"""Kinds of models: told by bytes and suffix; what cannot be taken is refused with what can."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.errors import ModelError
from packager.sources.kinds import made_kind, source_kind

TFLITE = b"\x1c\0\0\0TFL3" + bytes(64)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("m.onnx", b"\x08\x0a", "onnx"),
        ("M.ONNX", b"\x08\x0a", "onnx"),
        ("m.tflite", TFLITE, "tflite"),
        ("model", TFLITE, "tflite"),
        ("m.mlir", b"module @m {}", "stablehlo"),
        ("m.stablehlo", b"ML\xefR\x0d", "stablehlo"),
    ],
)
def test_files_are_told_by_bytes_and_suffix(
    tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert source_kind(str(path)) == kind


@pytest.mark.parametrize(
    "text", ["nets:make", "my.nets:make", "nets.py:make", "a/b/nets.py:Net.new"]
)
def test_functions_are_told_by_their_form(text: str) -> None:
    assert source_kind(text) == "function"


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("m.pt", b"PK\x03\x04", "module:callable"),
        ("m.pth", b"PK\x03\x04", "module:callable"),
        ("m.safetensors", b"....", "module:callable"),
        ("m.h5", b"\x89HDF\r\n\x1a\n", "format='onnx'"),
        ("m.keras", b"PK\x03\x04", "format='onnx'"),
        ("m.pb", b"\x08\x01", "tf2onnx"),
        ("m.pkl", b"\x80\x04", "a build never unpickles"),
        ("m.joblib", b"\x80\x04", "a build never unpickles"),
        ("m.mlmodel", b"\x08\x01", "Core ML"),
        ("m.engine", b"ftrt", "ONNX"),
        ("m.py", b"def make(): ...", "file.py:callable"),
        ("m.onnx", b"PK\x03\x04", "module:callable"),
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        ("m.onnx", b"<!DOCTYPE html>", "download the file itself"),
        ("m.onnx", b"", "again"),
        ("m.tflite", b"\x08\x0a", "again"),
        ("m.xyz", b"....", "hand in .onnx"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_what_would_work(
    tmp_path: Path, name: str, content: bytes, remedy: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        source_kind(str(path))
    assert remedy in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file"):
        source_kind(str(tmp_path / "m.onnx"))
    with pytest.raises(ModelError, match="is a folder"):
        source_kind(str(tmp_path))
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with pytest.raises(ModelError, match="tf2onnx"):
        source_kind(str(tmp_path))


@pytest.mark.parametrize("made", [None, (), {"x": 1}, "model.onnx"])
def test_what_is_no_model_is_refused(made: object) -> None:
    with pytest.raises(ModelError, match="the function returned a"):
        made_kind(made)
