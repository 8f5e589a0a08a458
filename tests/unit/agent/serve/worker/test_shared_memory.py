"""Tensors that lie in shared memory, as the worker reads and writes them."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.serve.regions import Region, region_of
from agent.serve.worker.inference_protocol import InferenceProtocol
from agent.serve.worker.shared_memory import Place, read, write
from runtime_adapters.errors import InputError
from runtime_adapters.texts import raw_from_texts
from tests.simulators.shared_memory import Shared, named, shared
from wire.package.tensors import Datatype, TensorSpec


def region(memory: Shared, size: int, offset: int = 0) -> Region:
    return region_of(name="io", key=memory.key, offset=offset, byte_size=size, user=os.getuid())


def protocol(datatype: Datatype) -> InferenceProtocol:
    return InferenceProtocol(
        inputs=[TensorSpec(name="x", datatype=datatype, shape=(-1,))],
        outputs=[TensorSpec(name="y", datatype=datatype, shape=(-1,))],
        model_name="digits",
        model_version="1",
        parameters={},
    )


def decoded(
    memory: Shared, datatype: Datatype, shape: list[int], size: int, **more: Any
) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": named("io", size)}
    body = json.dumps({"inputs": [tensor | more]}).encode()
    found = region(memory, len(memory.read()))
    return protocol(datatype).decode(memoryview(body), None, [found]).inputs


def test_texts_are_read_and_written_with_their_lengths() -> None:
    raw = raw_from_texts(["a", "", "größer"])
    with shared(100) as memory:
        memory.write(raw)
        assert decoded(memory, "BYTES", [3], len(raw))["x"].tolist() == ["a", "", "größer"]
        wanted = {"name": "y", "parameters": named("io", 60, 40)}
        tensor = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
        body = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
        made = protocol("BYTES")
        request = made.decode(memoryview(body), None, [region(memory, 100)])
        outputs = {"y": np.array(["x", "größer"], np.object_)}
        headers, answer = made.encode(request, outputs)
        written = raw_from_texts(["x", "größer"])
        assert headers == {"Content-Type": "application/json"}
        assert json.loads(answer)["outputs"] == [
            {
                "name": "y",
                "datatype": "BYTES",
                "shape": [2],
                "parameters": named("io", len(written), 40),
            }
        ]
        assert memory.read()[40 : 40 + len(written)] == written
        with pytest.raises(InputError, match="output 'y' needs"):
            made.encode(request, {"y": np.array(["x" * 60], np.object_)})


@pytest.mark.parametrize(
    "raw",
    [
        b"\1\0\0\0a" + b"\0" * 4,
        b"\xff\xff\xff\xffa",
        b"\2\0\0\0\xff\xff",
        b"\1\0",
    ],
)
def test_what_are_no_texts_is_refused(raw: bytes) -> None:
    with shared(100) as memory:
        memory.write(raw)
        with pytest.raises(InputError):
            decoded(memory, "BYTES", [1], len(raw))


def test_a_bool_that_is_neither_is_refused() -> None:
    with shared(4) as memory:
        memory.write(b"\0\1\2\1")
        with pytest.raises(InputError, match="neither 0 nor 1"):
            decoded(memory, "BOOL", [4], 4)


def test_what_the_client_changes_afterwards_changes_nothing() -> None:
    with shared(4) as memory:
        memory.write(b"\1\2\3\4")
        array = decoded(memory, "UINT8", [4], 4)["x"]
        memory.write(b"\0" * 4)
        os.truncate(memory.path, 0)
        assert array.tolist() == [1, 2, 3, 4]


def test_a_shape_of_more_than_the_region_takes_no_memory() -> None:
    with shared(4) as memory, pytest.raises(InputError, match="needs 2147483647 bytes"):
        decoded(memory, "UINT8", [2**31 - 1], 4)


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=1, max_size=50), st.integers(0, 20), st.integers(0, 20))
def test_what_is_written_is_read_and_nothing_else_changes(
    content: bytes, begins: int, offset: int
) -> None:
    with shared(100) as memory:
        before = memory.read()
        place = Place(region(memory, 80, begins), offset, len(content))
        write(place, memoryview(content))
        assert bytes(read(place)) == content
        at = begins + offset
        after = memory.read()
        assert after[:at] + after[at + len(content) :] == before[: len(before) - len(content)]
