"""Each call has its request over HTTP, and each status its name in gRPC."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.grpc_endpoint.documents import CALLS, Asked, answer_of, asked, model_path
from agent.grpc_endpoint.statuses import RefusedCallError, check, code_of, trailing

NOTHING = memoryview(b"")


def test_each_call_asks_for_its_path() -> None:
    model = {"name": "a b/c", "version": "1.0"}
    path = "/v2/models/a%20b%2Fc/versions/1.0"
    repository = {"model_name": "m"}
    expected: dict[str, tuple[dict[str, Any], Asked]] = {
        "ServerLive": ({}, Asked("GET", "/v2/health/live")),
        "ServerReady": ({}, Asked("GET", "/v2/health/ready")),
        "ModelReady": (model, Asked("GET", f"{path}/ready")),
        "ServerMetadata": ({}, Asked("GET", "/v2")),
        "ModelMetadata": (model, Asked("GET", path)),
        "ModelConfig": (model, Asked("GET", f"{path}/config")),
        "ModelStatistics": (model, Asked("GET", f"{path}/stats")),
        "RepositoryIndex": (
            {"ready": True},
            Asked("POST", "/v2/repository/index", b'{"ready":true}'),
        ),
        "RepositoryModelLoad": (
            repository,
            Asked("POST", "/v2/repository/models/m/load", b"{}"),
        ),
        "RepositoryModelUnload": (
            repository,
            Asked("POST", "/v2/repository/models/m/unload", b"{}"),
        ),
        "TraceSetting": (repository, Asked("GET", "/v2/models/m/trace/setting")),
        "LogSettings": ({}, Asked("GET", "/v2/logging")),
    }
    assert tuple(expected) == tuple(name for name in CALLS if "SharedMemory" not in name)
    for name, (fields, request) in expected.items():
        assert asked(name, fields) == request, name
    assert asked("ModelStatistics", {}) == Asked("GET", "/v2/models/stats")
    assert asked("TraceSetting", {}) == Asked("GET", "/v2/trace/setting")
    given = repository | {"parameters": {"config": {"string_param": "{}"}}}
    assert json.loads(asked("RepositoryModelLoad", given).body) == {"parameters": {"config": "{}"}}


def test_no_client_reaches_the_memory_of_the_agent() -> None:
    names = [name for name in CALLS if "SharedMemory" in name]
    assert len(names) == 6
    for name in names:
        with pytest.raises(RefusedCallError, match="gRPC offers no shared memory") as info:
            asked(name, {"name": "r"})
        assert info.value.code == "UNIMPLEMENTED"


@given(st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_no_name_leaves_its_place_in_the_path(name: str, version: str) -> None:
    path = model_path(name, version)
    assert path.isascii()
    assert path.isprintable()
    assert not set(path) & set(" ?#")
    assert path.count("/") == (5 if version else 3)


def test_a_model_without_a_name_is_refused() -> None:
    for name in ("ModelReady", "ModelConfig", "RepositoryModelLoad"):
        with pytest.raises(RefusedCallError, match="the name of the model is empty"):
            asked(name, {})


@pytest.mark.parametrize(
    ("call", "status", "document", "fields"),
    [
        ("ServerReady", 200, {"ready": True}, {"ready": True}),
        ("ServerReady", 503, {"error": "x"}, {"ready": False}),
        ("ModelReady", 404, {"error": "x"}, {"ready": False}),
        ("ModelConfig", 200, {"name": "m"}, {"config": {"name": "m"}}),
        ("RepositoryIndex", 200, [{"name": "m"}], {"models": [{"name": "m"}]}),
        ("ModelMetadata", 200, {"name": "m"}, {"name": "m"}),
    ],
)
def test_a_document_becomes_the_fields_of_the_answer(
    call: str, status: int, document: object, fields: dict[str, Any]
) -> None:
    body = memoryview(json.dumps(document).encode())
    assert answer_of(call, status, {}, body) == fields
    assert answer_of("RepositoryModelLoad", 200, {}, NOTHING) == {}


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (404, "NOT_FOUND"),
        (405, "INVALID_ARGUMENT"), (408, "UNAVAILABLE"), (413, "RESOURCE_EXHAUSTED"),
        (415, "INVALID_ARGUMENT"), (431, "INVALID_ARGUMENT"), (500, "INTERNAL"),
        (501, "UNIMPLEMENTED"), (503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED"),
        (599, "INTERNAL"), (302, "INTERNAL"),
    ],
)  # fmt: skip
def test_each_status_has_one_code(status: int, code: str) -> None:
    assert code_of(status) == code


def test_a_refusal_keeps_its_line_and_its_headers() -> None:
    headers = {"retry-after": "3", "edgefleet-advice": "sampling=0.60", "date": "today"}
    with pytest.raises(RefusedCallError) as info:
        check(503, headers, memoryview(b'{"error": "two\\nlines"}'))
    assert (info.value.code, info.value.message) == ("UNAVAILABLE", "two lines")
    assert info.value.metadata == trailing(headers)
    assert info.value.metadata == {"retry-after": "3", "edgefleet-advice": "sampling=0.60"}
    with pytest.raises(RefusedCallError, match="the endpoint answered with status 500"):
        check(500, {}, memoryview(b"<html>"))
    check(200, {}, NOTHING)
