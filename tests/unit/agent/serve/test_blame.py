"""Which request is the cause when no answer comes in time."""

from __future__ import annotations

import json

import pytest

from agent.serve.blame import is_cause, samples_of
from agent.serve.frames import Asked


def asked(document: object, raw: bytes = b"") -> Asked:
    content = json.dumps(document).encode()
    return Asked(header_length=len(content) if raw else None, body=memoryview(content + raw))


@pytest.mark.parametrize(
    ("document", "samples"),
    [
        ({"inputs": [{"name": "x", "shape": [7, 4], "data": [1]}]}, 7),
        ({"inputs": [{"shape": [2, 4]}, {"shape": [9]}]}, 9),
        ({"inputs": [{"shape": []}]}, 1),
        ({"inputs": []}, 1),
        ({"inputs": [{"shape": ["x"]}]}, 1),
        ({}, 1),
        ([], 1),
    ],
)
def test_the_shapes_say_how_many_samples(document: object, samples: int) -> None:
    assert samples_of(asked(document)) == samples
    assert samples_of(asked(document, bytes(16))) == samples


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_request_is_one_sample(body: bytes) -> None:
    assert samples_of(Asked(header_length=None, body=memoryview(body))) == 1


@pytest.mark.parametrize(
    ("samples", "sample_s", "cause"),
    [(1, 0.0, False), (1, 100.0, False), (2, 0.0, True), (1000, 0.01, True), (1000, 1e-4, False)],
)
def test_many_samples_are_the_cause_by_what_each_takes(
    samples: int, sample_s: float, *, cause: bool
) -> None:
    assert is_cause(samples, sample_s, 3.0) == cause
