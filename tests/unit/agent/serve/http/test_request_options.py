"""What a client asks beside its tensors is read from its request, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.serve.http.inference_api import (
    MAX_JSON_BYTES,
    TIMEOUT_HEADER,
    Options,
    request_options,
)
from wire.errors import WireFormatError


def read(document: object, header: str | None = None) -> Options:
    headers = {} if header is None else {TIMEOUT_HEADER: header}
    return request_options(headers, memoryview(json.dumps(document).encode()))


@pytest.mark.parametrize(
    ("parameters", "header", "expected"),
    [
        ({}, None, (0, None)),
        ({"priority": 1}, None, (1, None)),
        ({"priority": 2**63 - 1}, None, (2**63 - 1, None)),
        ({"timeout": 1500}, None, (0, 0.0015)),
        ({"timeout": 0}, None, (0, None)),
        ({}, "250", (0, 0.25)),
        ({"timeout": 100_000, "priority": 3}, "250", (3, 0.1)),
        ({"timeout": 500_000, "sequence_id": "x", "deep": {"priority": []}}, "250", (0, 0.25)),
    ],
)
def test_triton_s_parameters_and_the_header(
    parameters: dict[str, Any], header: str | None, expected: tuple[int, float | None]
) -> None:
    inputs = [{"name": "priority", "data": ["timeout"], "parameters": {"timeout": "x"}}]
    assert read({"inputs": inputs, "parameters": parameters}, header)[:2] == expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"deferrable": True}, Options(deferrable=True)),
        ({"deferrable": True, "durable": True}, Options(deferrable=True, durable=True)),
        ({"deferrable": False, "durable": False}, Options()),
        (
            {"deferrable": True, "timeout": 60_000_000, "priority": 3},
            Options(priority=3, timeout_s=60.0, deferrable=True),
        ),
    ],
)
def test_whether_a_request_may_wait(parameters: dict[str, Any], expected: Options) -> None:
    assert read({"parameters": parameters}) == expected


@pytest.mark.parametrize(
    "parameters",
    [{"deferrable": 1}, {"deferrable": "true"}, {"deferrable": None}, {"durable": True}],
)
def test_a_wish_to_wait_that_is_none_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(WireFormatError):
        read({"parameters": parameters})


@pytest.mark.parametrize("value", [-1, 1.5, "1", None, True, [], 10**400])
@pytest.mark.parametrize("name", ["priority", "timeout"])
def test_what_is_no_wish_is_refused(name: str, value: object) -> None:
    with pytest.raises(WireFormatError):
        read({"parameters": {name: value}})


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "1e3", "x", "1" * 10, "٣"])
def test_a_malformed_header_is_refused(text: str) -> None:
    with pytest.raises(WireFormatError):
        read({}, text)


@pytest.mark.parametrize(
    "content",
    [
        b'{"priority"',
        b'{"parameters": {"priority": 3}',
        b'{"priority"\xff',
        b'{"x": ' * 5_000 + b'"priority"',
        b" " * MAX_JSON_BYTES + b'{"parameters": {"priority": 3}}',
    ],
)
def test_what_is_no_json_is_left_to_the_worker(content: bytes) -> None:
    assert request_options({}, memoryview(content)) == Options()


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: b'{"timeout"' + b))
def test_any_body_is_read_or_refused(content: bytes) -> None:
    try:
        options = request_options({}, memoryview(content))
    except WireFormatError:
        return
    assert options.priority >= 0
    assert options.timeout_s is None or options.timeout_s > 0
