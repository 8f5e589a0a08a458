"""The descriptors of the gRPC messages are what `protoc` makes of the files beside them.

`python -m tests.packaging.test_grpc_protocol` makes them anew.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

DIRECTORY = Path(__file__).parents[2] / "agent" / "grpc_endpoint" / "protocol"
FILES = ("grpc_service.proto", "model_config.proto", "health.proto")


def compiled() -> bytes:
    """Return what `protoc` makes of the files."""
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out"
        options = [f"-I{DIRECTORY}", f"--descriptor_set_out={out}", "--include_imports"]
        assert protoc.main(["protoc", *options, *FILES]) == 0
        return out.read_bytes()


def test_the_descriptors_are_those_of_the_files() -> None:
    pb2 = pytest.importorskip("google.protobuf.descriptor_pb2", reason="protobuf is not installed")
    kept = pb2.FileDescriptorSet.FromString((DIRECTORY / "descriptors.binpb").read_bytes())
    assert kept == pb2.FileDescriptorSet.FromString(compiled())


@pytest.mark.parametrize("name", FILES)
def test_each_file_names_its_licence(name: str) -> None:
    head = (DIRECTORY / name).read_text()[:2000]
    assert "Redistribution and use" in head or "Apache License, Version 2.0" in head


if __name__ == "__main__":
    (DIRECTORY / "descriptors.binpb").write_bytes(compiled())
