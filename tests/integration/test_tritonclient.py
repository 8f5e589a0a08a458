"""An unmodified `tritonclient[http]`, in both its forms, makes every call that it has.

Rules:
- Every public method of both clients stands in `CALLS`, so that a new one is noticed.
- What is for inference works; what is not offered is one clear error that names the other way.
"""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from agent.serve.http import extensions
from agent.serve.http.repository_api import NOT_ALLOWED
from agent.serve.served import Alone
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.packages import package
from tests.simulators.patience import PATIENCE_S
from tests.simulators.rig import DIGEST, Rig
from tests.simulators.triton import EVERY_TYPE, Array, all_types, samples

Ask = Callable[..., Any]

INFERENCE = {
    "async_infer",
    "generate_request_body",
    "get_inference_statistics",
    "get_model_config",
    "get_model_metadata",
    "get_model_repository_index",
    "get_server_metadata",
    "infer",
    "is_model_ready",
    "is_server_live",
    "is_server_ready",
    "parse_response_body",
}
NOT_OFFERED: dict[str, tuple[tuple[Any, ...], str]] = {
    "load_model": (("all",), NOT_ALLOWED),
    "unload_model": (("all",), NOT_ALLOWED),
    "get_system_shared_memory_status": (("r",), extensions.NO_SHARED_MEMORY),
    "register_system_shared_memory": (("r", "/r", 64), extensions.NO_SHARED_MEMORY),
    "unregister_system_shared_memory": (("r",), extensions.NO_SHARED_MEMORY),
    "get_cuda_shared_memory_status": ((), extensions.NO_CUDA),
    "register_cuda_shared_memory": (("r", b"aGFuZGxl", 0, 64), extensions.NO_CUDA),
    "unregister_cuda_shared_memory": ((), extensions.NO_CUDA),
    "get_trace_settings": (("all",), extensions.NO_TRACES),
    "update_trace_settings": ((None, {"trace_rate": "1"}), extensions.NO_TRACES),
    "get_log_settings": ((), extensions.NO_LOG_SETTINGS),
    "update_log_settings": (({"log_info": True},), extensions.NO_LOG_SETTINGS),
}
ON_THE_CLIENT_ALONE = {"close", "plugin", "register_plugin", "unregister_plugin"}
CALLS = INFERENCE | set(NOT_OFFERED) | ON_THE_CLIENT_ALONE


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("rig"))
    chosen = all_types()
    package("1.0", [(chosen, b'{"seed": 3}')]).write_to(rig.directory)
    rig.server.switch_to(rig.directory, DIGEST, chosen)
    yield rig
    rig.stop()


@pytest.fixture(scope="module")
def expected(rig: Rig) -> Mapping[str, Array]:
    chosen = all_types()
    session = open_session(rig.directory / chosen.directory, chosen.info, Limits())
    return session.infer(samples())


@pytest.fixture(params=["sync", "asyncio"])
def ask(rig: Rig, request: pytest.FixtureRequest) -> Ask:
    """Calls a method by name, of either client."""

    def plain(name: str, *arguments: Any, **options: Any) -> Any:
        with triton.InferenceServerClient(rig.endpoint.address) as client:
            return getattr(client, name)(*arguments, **options)

    async def later(name: str, *arguments: Any, **options: Any) -> Any:
        async with aio.InferenceServerClient(rig.endpoint.address) as client:
            return await getattr(client, name)(*arguments, **options)

    def run(name: str, *arguments: Any, **options: Any) -> Any:
        call: Coroutine[Any, Any, Any] = later(name, *arguments, **options)
        return asyncio.run(call)

    return plain if request.param == "sync" else run


def tensors(*, binary: bool) -> list[triton.InferInput]:
    inputs = []
    for name, array in samples().items():
        tensor = triton.InferInput(name, array.shape, name.removeprefix("in_"))
        inputs.append(tensor.set_data_from_numpy(array, binary_data=binary))
    return inputs


def check(result: triton.InferResult, expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        given = result.as_numpy(name)
        assert given.dtype == array.dtype
        assert np.array_equal(given, array), name


@pytest.mark.parametrize("module", [triton, aio])
def test_every_method_is_accounted_for(module: Any) -> None:
    client = module.InferenceServerClient
    public = {name for name, _ in inspect.getmembers(client) if not name.startswith("_")}
    assert public == CALLS - ({"async_infer"} if module is aio else set())


def test_health(ask: Ask) -> None:
    assert ask("is_server_live")
    assert ask("is_server_ready")
    assert ask("is_model_ready", "digits")
    assert ask("is_model_ready", "digits", "1.0")
    assert not ask("is_model_ready", "digits", "2.0")
    assert not ask("is_model_ready", "other")
    assert not ask("is_model_ready", "a b")


def test_before_a_model_serves(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with triton.InferenceServerClient(rig.endpoint.address) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("digits")
        assert client.get_model_repository_index() == []
        assert client.get_inference_statistics() == {"model_stats": []}
        for call in (client.get_model_metadata, client.get_model_config):
            with pytest.raises(InferenceServerException) as info:
                call("digits")
            assert info.value.status() == "503"
    rig.stop()


def test_metadata(ask: Ask) -> None:
    assert ask("get_server_metadata")["extensions"]
    document = ask("get_model_metadata", "digits", "1.0")
    assert (document["name"], document["versions"]) == ("digits", ["1.0"])
    assert document["inputs"][0] == {"name": "in_BOOL", "datatype": "BOOL", "shape": [-1, 2]}


@pytest.mark.parametrize(
    "call", ["infer", "get_model_metadata", "get_model_config", "get_inference_statistics"]
)
@pytest.mark.parametrize(("name", "version"), [("other", ""), ("digits", "2.0")])
def test_an_unknown_model_is_named_as_triton_names_it(
    ask: Ask, call: str, name: str, version: str
) -> None:
    inputs = (tensors(binary=True),) if call == "infer" else ()
    with pytest.raises(InferenceServerException) as info:
        ask(call, name, *inputs, version)
    assert info.value.status() == "404"
    assert info.value.message().startswith(f"Request for unknown model: '{name}'")
    assert version in info.value.message()


def test_the_configuration_of_the_model(ask: Ask) -> None:
    document = ask("get_model_config", "digits")
    assert document == ask("get_model_config", "digits", "1.0")
    assert (document["name"], document["platform"]) == ("digits", "null")
    assert document["max_batch_size"] == 0
    assert [(t["name"], t["data_type"]) for t in document["output"]] == [
        (f"out_{name}", f"TYPE_{name}") for name in EVERY_TYPE
    ]
    assert document["input"][-1]["dims"] == [-1, 2]
    assert document["parameters"]["device"] == {"string_value": "dev-1"}
    with pytest.raises(InferenceServerException, match="version"):
        ask("get_model_config", "digits", "2.0")


def test_the_index_holds_the_model_that_serves(ask: Ask) -> None:
    ready = {"name": "digits", "version": "1.0", "state": "READY", "reason": ""}
    assert ask("get_model_repository_index") == [ready]


def test_statistics_count_requests(ask: Ask) -> None:
    before = ask("get_inference_statistics")["model_stats"][0]
    ask("infer", "digits", tensors(binary=True))
    with pytest.raises(InferenceServerException):
        ask("infer", "digits", tensors(binary=True)[:1])
    for after in (
        ask("get_inference_statistics", "digits")["model_stats"][0],
        ask("get_inference_statistics", "digits", "1.0")["model_stats"][0],
    ):
        assert (after["name"], after["version"]) == ("digits", "1.0")
        assert after["last_inference"] > 0
        assert after["inference_count"] == before["inference_count"] + 2
        assert after["execution_count"] == before["execution_count"] + 1
        for kind in ("success", "fail", "compute_infer"):
            now, then = after["inference_stats"][kind], before["inference_stats"][kind]
            assert now["count"] == then["count"] + 1
            assert now["ns"] > then["ns"]
    with pytest.raises(InferenceServerException):
        ask("get_inference_statistics", "other")


@pytest.mark.parametrize("raw_in", [True, False])
@pytest.mark.parametrize("raw_out", [True, False, None])
def test_each_type_goes_both_ways(
    ask: Ask, expected: Mapping[str, Array], raw_in: bool, raw_out: bool | None
) -> None:
    outputs = None
    if raw_out is not None:
        outputs = [triton.InferRequestedOutput(name, binary_data=raw_out) for name in expected]
    result = ask("infer", "digits", tensors(binary=raw_in), outputs=outputs)
    check(result, expected)
    assert result.get_output("out_FP32")["shape"] == [2, 3]
    assert result.get_output("nothing") is None


def test_the_objects_of_a_request_serve_again(ask: Ask, expected: Mapping[str, Array]) -> None:
    inputs = tensors(binary=True)
    outputs = [triton.InferRequestedOutput(name) for name in expected]
    for _ in range(3):
        check(ask("infer", "digits", inputs, outputs=outputs), expected)


def test_some_outputs_in_another_order(ask: Ask, expected: Mapping[str, Array]) -> None:
    wanted = ["out_INT64", "out_BOOL", "out_FP16"]
    outputs = [triton.InferRequestedOutput(name, binary_data=name != "out_BOOL") for name in wanted]
    result = ask("infer", "digits", tensors(binary=True), outputs=outputs)
    assert [output["name"] for output in result.get_response()["outputs"]] == wanted
    check(result, {name: expected[name] for name in wanted})


def test_every_option_of_a_request(ask: Ask, expected: Mapping[str, Array]) -> None:
    result = ask(
        "infer",
        "digits",
        tensors(binary=True),
        model_version="1.0",
        request_id="request 7/\u00e9",
        sequence_id=9,
        sequence_start=True,
        sequence_end=True,
        priority=1,
        timeout=5_000_000,
        headers={"X-Trace": "a b c", "Authorization": "Bearer not-needed"},
        query_params={"a": 1, "b": ["c", "d e"]},
        parameters={"mine": "x", "number": 3, "flag": True},
    )
    check(result, expected)
    response = result.get_response()
    assert response["id"] == "request 7/\u00e9"
    assert (response["model_name"], response["model_version"]) == ("digits", "1.0")
    assert response["parameters"]["variant"] == "all"
    assert response["parameters"]["release"] == "digits:1.0"
    assert response["parameters"]["device"] == "dev-1"


@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("wanted", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compression(
    ask: Ask,
    expected: Mapping[str, Array],
    sent: str | None,
    wanted: str | None,
    binary: bool,
) -> None:
    result = ask(
        "infer",
        "digits",
        tensors(binary=binary),
        outputs=[triton.InferRequestedOutput(name, binary_data=binary) for name in expected],
        request_compression_algorithm=sent,
        response_compression_algorithm=wanted,
    )
    check(result, expected)


def test_requests_side_by_side(rig: Rig, expected: Mapping[str, Array]) -> None:
    with triton.InferenceServerClient(rig.endpoint.address, concurrency=4) as client:
        begun = [
            client.async_infer(
                "digits",
                tensors(binary=True),
                request_id=str(number),
                request_compression_algorithm="gzip",
                response_compression_algorithm="deflate",
            )
            for number in range(12)
        ]
        for number, request in enumerate(begun):
            result = request.get_result(timeout=PATIENCE_S)
            assert result.get_response()["id"] == str(number)
            check(result, expected)

    async def many() -> list[Any]:
        async with aio.InferenceServerClient(rig.endpoint.address, conn_limit=4) as client:
            calls = (client.infer("digits", tensors(binary=True)) for _ in range(12))
            return list(await asyncio.gather(*calls))

    for result in asyncio.run(many()):
        check(result, expected)


@pytest.mark.parametrize("module", [triton, aio])
@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
def test_bodies_made_and_read_apart_from_the_client(
    rig: Rig, expected: Mapping[str, Array], module: Any, coding: str
) -> None:
    kind = module.InferenceServerClient
    body, json_size = kind.generate_request_body(tensors(binary=True), request_id="r")
    headers = {"Inference-Header-Content-Length": str(json_size), "Accept-Encoding": coding}
    if coding != "identity":
        headers["Content-Encoding"] = coding
        body = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    connection = rig.client()
    connection.request("POST", "/v2/models/digits/infer", body=body, headers=headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    result = kind.parse_response_body(
        content,
        header_length=int(response.headers["Inference-Header-Content-Length"]),
        content_encoding=response.headers["Content-Encoding"],
    )
    assert response.headers["Content-Encoding"] == (None if coding == "identity" else coding)
    check(result, expected)


@pytest.mark.parametrize("name", sorted(NOT_OFFERED))
def test_what_is_not_offered_says_what_to_do_instead(ask: Ask, name: str) -> None:
    arguments, way = NOT_OFFERED[name]
    with pytest.raises(InferenceServerException) as info:
        ask(name, *arguments)
    assert info.value.message() == way
    assert info.value.status() == "501"


def wrong_type() -> dict[str, Any]:
    tensor = triton.InferInput("in_FP32", [1, 2], "FP64")
    return {"inputs": [tensor.set_data_from_numpy(np.zeros((1, 2)))]}


def wrong_shape() -> dict[str, Any]:
    tensor = triton.InferInput("in_FP32", [1, 3], "FP32")
    return {"inputs": [tensor.set_data_from_numpy(np.zeros((1, 3), np.float32))]}


def texts(*, binary: bool) -> dict[str, Any]:
    tensor = triton.InferInput("in_FP32", [1, 2], "BYTES")
    array = np.array([[b"a", b"b"]], np.object_)
    return {"inputs": [tensor.set_data_from_numpy(array, binary_data=binary)]}


def shared_input() -> dict[str, Any]:
    tensor = triton.InferInput("in_FP32", [1, 2], "FP32")
    return {"inputs": [tensor.set_shared_memory("region", 8)]}


@pytest.mark.parametrize(
    "options",
    [
        wrong_type(),
        wrong_shape(),
        texts(binary=True),
        texts(binary=False),
        shared_input(),
        {"inputs": []},
        {"inputs": tensors(binary=True) * 2},
        {"inputs": tensors(binary=True), "outputs": [triton.InferRequestedOutput("none")]},
        {"inputs": tensors(binary=True), "request_id": "x" * 5000},
        {"inputs": tensors(binary=True), "headers": {"Content-Encoding": "br"}},
    ],
)
def test_what_is_wrong_is_one_clear_error(ask: Ask, rig: Rig, options: dict[str, Any]) -> None:
    pid = rig.pid
    with pytest.raises(InferenceServerException) as info:
        ask("infer", "digits", **options)
    assert info.value.status() in {"400", "415"}
    assert info.value.message()
    assert rig.pid == pid


@pytest.mark.parametrize(("model", "version"), [("other", ""), ("digits", "2.0"), ("a/b c", "")])
def test_another_model_or_version_is_unknown(ask: Ask, model: str, version: str) -> None:
    with pytest.raises(InferenceServerException) as info:
        ask("infer", model, tensors(binary=True), model_version=version)
    assert info.value.status() == "404"


def test_plugins_of_the_client_add_headers(tmp_path: Path) -> None:
    class Bearer(triton.InferenceServerClientPlugin):  # type: ignore[misc]  # it has no types
        def __call__(self, request: Any) -> None:
            request.headers["Authorization"] = "Bearer s3cret"

    from agent.serve.http.endpoint import Endpoint

    rig = Rig(tmp_path)
    endpoint = Endpoint(Alone(rig.server.router), token="s3cret")
    endpoint.start()
    with triton.InferenceServerClient(endpoint.address) as client:
        with pytest.raises(InferenceServerException, match="token"):
            client.get_server_metadata()
        client.register_plugin(Bearer())
        assert client.plugin() is not None
        assert json.dumps(client.get_server_metadata())
        client.unregister_plugin()
        with pytest.raises(InferenceServerException, match="token"):
            client.get_server_metadata()
    endpoint.stop()
    rig.stop()
