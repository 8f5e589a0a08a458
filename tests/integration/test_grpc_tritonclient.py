"""An unmodified `tritonclient[grpc]`, in both its forms, makes every call that it has.

Rules:
- Every public method of both clients stands in `CALLS`, so that a new one is noticed.
- What is for inference works; what is not offered is one clear error that names the other way.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.grpc_endpoint.translation import NO_SHARED_MEMORY
from agent.serve.http import extensions
from agent.serve.http.repository_api import NOT_ALLOWED
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.grpc_rig import GrpcRig
from tests.simulators.packages import package
from tests.simulators.patience import PATIENCE_S
from tests.simulators.rig import DIGEST, Rig
from tests.simulators.triton import EVERY_TYPE, Array, all_types, samples

pytest.importorskip("grpc", reason="grpcio is not installed")
from tritonclient import grpc as triton
from tritonclient.grpc import aio, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

Ask = Callable[..., Any]
INFERENCE = {
    "async_infer",
    "async_stream_infer",
    "get_inference_statistics",
    "get_model_config",
    "get_model_metadata",
    "get_model_repository_index",
    "get_server_metadata",
    "infer",
    "is_model_ready",
    "is_server_live",
    "is_server_ready",
    "start_stream",
    "stop_stream",
    "stream_infer",
}
NOT_OFFERED: dict[str, tuple[tuple[Any, ...], str]] = {
    "load_model": (("all",), NOT_ALLOWED),
    "unload_model": (("all",), NOT_ALLOWED),
    "get_system_shared_memory_status": (("r",), NO_SHARED_MEMORY),
    "register_system_shared_memory": (("r", "/r", 64), NO_SHARED_MEMORY),
    "unregister_system_shared_memory": (("r",), NO_SHARED_MEMORY),
    "get_cuda_shared_memory_status": ((), NO_SHARED_MEMORY),
    "register_cuda_shared_memory": (("r", b"aGFuZGxl", 0, 64), NO_SHARED_MEMORY),
    "unregister_cuda_shared_memory": ((), NO_SHARED_MEMORY),
    "get_trace_settings": (("all",), extensions.NO_TRACES),
    "update_trace_settings": ((None, {"trace_rate": "1"}), extensions.NO_TRACES),
    "get_log_settings": ((), extensions.NO_LOG_SETTINGS),
    "update_log_settings": (({"log_info": True},), extensions.NO_LOG_SETTINGS),
}
ON_THE_CLIENT_ALONE = {"close", "plugin", "register_plugin", "unregister_plugin"}
CALLS = INFERENCE | set(NOT_OFFERED) | ON_THE_CLIENT_ALONE
SYNC_ALONE = {"async_infer", "async_stream_infer", "start_stream", "stop_stream"}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("rig"))
    chosen = all_types()
    package("1.0", [(chosen, b'{"seed": 3}')]).write_to(rig.directory)
    rig.server.switch_to(rig.directory, DIGEST, chosen)
    yield rig
    rig.stop()


@pytest.fixture(scope="module")
def served(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrpcRig]:
    served = GrpcRig(tmp_path_factory.mktemp("g"), rig.endpoint)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def expected(rig: Rig) -> Mapping[str, Array]:
    chosen = all_types()
    session = open_session(rig.directory / chosen.directory, chosen.info, Limits())
    return session.infer(samples())


@pytest.fixture(params=["sync", "asyncio"])
def ask(served: GrpcRig, request: pytest.FixtureRequest) -> Ask:
    """Calls a method by name, of either client."""

    def plain(name: str, *arguments: Any, **options: Any) -> Any:
        with triton.InferenceServerClient(served.address) as client:
            return getattr(client, name)(*arguments, **options)

    async def later(name: str, *arguments: Any, **options: Any) -> Any:
        async with aio.InferenceServerClient(served.address) as client:
            return await getattr(client, name)(*arguments, **options)

    def run(name: str, *arguments: Any, **options: Any) -> Any:
        return asyncio.run(later(name, *arguments, **options))

    return plain if request.param == "sync" else run


def tensors() -> list[Any]:
    inputs = []
    for name, array in samples().items():
        tensor = triton.InferInput(name, array.shape, name.removeprefix("in_"))
        inputs.append(tensor.set_data_from_numpy(array))
    return inputs


def check(result: Any, expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        given = result.as_numpy(name)
        assert given.dtype == array.dtype
        assert np.array_equal(given, array), name


@pytest.mark.parametrize("module", [triton, aio])
def test_every_method_is_accounted_for(module: Any) -> None:
    client = module.InferenceServerClient
    public = {name for name, _ in inspect.getmembers(client) if not name.startswith("_")}
    assert public == CALLS - (SYNC_ALONE if module is aio else {"stream_infer"})


def test_health(ask: Ask) -> None:
    assert ask("is_server_live")
    assert ask("is_server_ready")
    assert ask("is_model_ready", "digits")
    assert ask("is_model_ready", "digits", "1.0")
    assert not ask("is_model_ready", "digits", "2.0")
    assert not ask("is_model_ready", "other")
    assert not ask("is_model_ready", "a b/c?")


def test_before_a_model_serves(tmp_path_factory: pytest.TempPathFactory) -> None:
    rig = Rig(tmp_path_factory.mktemp("none"))
    served = GrpcRig(tmp_path_factory.mktemp("g"), rig.endpoint)
    with triton.InferenceServerClient(served.address) as client:
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert not client.is_model_ready("digits")
        assert client.get_model_repository_index(as_json=True) == {}
        assert client.get_inference_statistics(as_json=True) == {}
        for call in (client.get_model_metadata, client.get_model_config):
            with pytest.raises(InferenceServerException) as info:
                call("digits")
            assert info.value.status() == "StatusCode.UNAVAILABLE"
    served.stop()
    rig.stop()


def test_metadata(ask: Ask) -> None:
    about = ask("get_server_metadata", as_json=True)
    assert (about["name"], "binary_tensor_data" in about["extensions"]) == ("edgefleet", True)
    document = ask("get_model_metadata", "digits", "1.0", as_json=True)
    assert (document["name"], document["versions"]) == ("digits", ["1.0"])
    assert document["inputs"][0] == {"name": "in_BOOL", "datatype": "BOOL", "shape": ["-1", "2"]}


@pytest.mark.parametrize(
    "call", ["infer", "get_model_metadata", "get_model_config", "get_inference_statistics"]
)
@pytest.mark.parametrize(("name", "version"), [("other", ""), ("digits", "2.0")])
def test_an_unknown_model_is_named_as_triton_names_it(
    ask: Ask, call: str, name: str, version: str
) -> None:
    inputs = (tensors(),) if call == "infer" else ()
    with pytest.raises(InferenceServerException) as info:
        ask(call, name, *inputs, version)
    assert info.value.status() == "StatusCode.NOT_FOUND"
    assert info.value.message().startswith(f"Request for unknown model: '{name}'")
    assert version in info.value.message()


def test_the_configuration_of_the_model(ask: Ask) -> None:
    config = ask("get_model_config", "digits").config
    assert (config.name, config.platform, config.max_batch_size) == ("digits", "null", 0)
    kinds = [service_pb2.model__config__pb2.DataType.Name(t.data_type) for t in config.output]
    assert kinds == [f"TYPE_{name}" for name in EVERY_TYPE]
    assert list(config.input[-1].dims) == [-1, 2]
    assert config.parameters["device"].string_value == "dev-1"


def test_the_index_holds_the_model_that_serves(ask: Ask) -> None:
    index = ask("get_model_repository_index", as_json=True)
    assert index == {"models": [{"name": "digits", "version": "1.0", "state": "READY"}]}


def test_statistics_count_requests(ask: Ask) -> None:
    before = ask("get_inference_statistics").model_stats[0]
    ask("infer", "digits", tensors())
    with pytest.raises(InferenceServerException):
        ask("infer", "digits", tensors()[:1])
    for after in (
        ask("get_inference_statistics", "digits").model_stats[0],
        ask("get_inference_statistics", "digits", "1.0").model_stats[0],
    ):
        assert (after.name, after.version) == ("digits", "1.0")
        assert after.last_inference > 0
        assert after.inference_count == before.inference_count + 2
        assert after.execution_count == before.execution_count + 1
        for kind in ("success", "fail", "compute_infer"):
            now, then = getattr(after.inference_stats, kind), getattr(before.inference_stats, kind)
            assert now.count == then.count + 1
            assert now.ns > then.ns


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_each_type_goes_both_ways(
    ask: Ask, expected: Mapping[str, Array], compression: str | None
) -> None:
    result = ask("infer", "digits", tensors(), compression_algorithm=compression)
    check(result, expected)
    assert list(result.get_output("out_FP32").shape) == [2, 3]
    assert result.get_output("nothing") is None


def test_typed_contents_of_each_type_are_understood_but_half_precision_comes_raw(
    served: GrpcRig,
) -> None:
    request = service_pb2.ModelInferRequest(model_name="digits")
    fields = {"b": "bool", "i": "int", "u": "uint"}
    given = {name: array for name, array in samples().items() if name != "in_FP16"}
    for name, array in given.items():
        field = fields.get(array.dtype.kind, "fp32" if array.itemsize == 4 else "fp64")
        if array.dtype.kind in "iu" and array.itemsize == 8:
            field += "64"
        tensor = request.inputs.add(name=name, datatype=name.removeprefix("in_"), shape=array.shape)
        getattr(tensor.contents, f"{field}_contents").extend(array.ravel().tolist())
    with triton.InferenceServerClient(served.address) as client:
        stub = client._client_stub
        assert isinstance(stub, service_pb2_grpc.GRPCInferenceServiceStub)
        with pytest.raises(Exception, match="input 'in_FP16' is missing") as info:
            stub.ModelInfer(request)
        assert "INVALID_ARGUMENT" in str(info.value)
        half = request.inputs.add(name="in_FP16", datatype="FP16", shape=[2, 2])
        half.contents.fp32_contents.extend([0, 0, 1, 0])
        with pytest.raises(Exception, match="has no typed contents: send it in raw_input_contents"):
            stub.ModelInfer(request)


def test_the_objects_of_a_request_serve_again(ask: Ask, expected: Mapping[str, Array]) -> None:
    inputs = tensors()
    outputs = [triton.InferRequestedOutput(name) for name in expected]
    for _ in range(3):
        check(ask("infer", "digits", inputs, outputs=outputs), expected)


def test_some_outputs_in_another_order(ask: Ask, expected: Mapping[str, Array]) -> None:
    wanted = ["out_INT64", "out_BOOL", "out_FP16"]
    outputs = [triton.InferRequestedOutput(name) for name in wanted]
    result = ask("infer", "digits", tensors(), outputs=outputs)
    assert [output.name for output in result.get_response().outputs] == wanted
    check(result, {name: expected[name] for name in wanted})


def test_classes_are_texts(ask: Ask, expected: Mapping[str, Array]) -> None:
    outputs = [triton.InferRequestedOutput("out_FP32", class_count=2)]
    result = ask("infer", "digits", tensors(), outputs=outputs)
    best = expected["out_FP32"].argmax(axis=1)
    texts = result.as_numpy("out_FP32")
    assert [int(row[0].decode().split(":")[1]) for row in texts] == best.tolist()


def test_every_option_of_a_request(ask: Ask, expected: Mapping[str, Array]) -> None:
    result = ask(
        "infer",
        "digits",
        tensors(),
        model_version="1.0",
        request_id="request 7/\u00e9",
        sequence_id=9,
        sequence_start=True,
        sequence_end=True,
        priority=1,
        timeout=5_000_000,
        client_timeout=PATIENCE_S,
        headers={"x-trace": "a b c", "authorization": "Bearer not-needed"},
        parameters={"mine": "x", "number": 3, "flag": True},
    )
    check(result, expected)
    response = result.get_response()
    assert response.id == "request 7/\u00e9"
    assert (response.model_name, response.model_version) == ("digits", "1.0")
    parameters = {name: value.string_param for name, value in response.parameters.items()}
    assert parameters == {"variant": "all", "release": "digits:1.0", "device": "dev-1"}


def test_requests_side_by_side(served: GrpcRig, expected: Mapping[str, Array]) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(served.address) as client:
        for number in range(12):
            client.async_infer(
                "digits",
                tensors(),
                callback=lambda result, error: answers.put((result, error)),
                request_id=str(number),
            )
        found = set()
        for _ in range(12):
            result, error = answers.get(timeout=PATIENCE_S)
            assert error is None
            check(result, expected)
            found.add(result.get_response().id)
    assert found == {str(number) for number in range(12)}


def test_a_stream_answers_each_request_once_and_in_order(
    served: GrpcRig, expected: Mapping[str, Array]
) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(served.address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(8):
            name = "other" if number == 5 else "digits"
            client.async_stream_infer(
                name, tensors(), request_id=str(number), enable_empty_final_response=number == 3
            )
        for number in range(8):
            result, error = answers.get(timeout=PATIENCE_S)
            if number == 5:
                assert str(error).startswith("Request for unknown model: 'other'")
                continue
            assert error is None
            check(result, expected)
            response = result.get_response()
            assert response.id == str(number)
            assert ("triton_final_response" in response.parameters) == (number == 3)
        client.stop_stream()
        assert answers.empty()


def test_a_stream_of_the_asyncio_client(served: GrpcRig, expected: Mapping[str, Array]) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(4):
            yield {"model_name": "digits", "inputs": tensors(), "request_id": str(number)}

    async def run() -> list[str]:
        found = []
        async with aio.InferenceServerClient(served.address) as client:
            async for result, error in client.stream_infer(requests()):
                assert error is None
                check(result, expected)
                found.append(result.get_response().id)
        return found

    assert asyncio.run(run()) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("name", sorted(NOT_OFFERED))
def test_what_is_not_offered_says_what_to_do_instead(ask: Ask, name: str) -> None:
    arguments, reason = NOT_OFFERED[name]
    with pytest.raises(InferenceServerException) as info:
        ask(name, *arguments)
    assert info.value.status() == "StatusCode.UNIMPLEMENTED"
    assert info.value.message() == reason


def test_tensors_in_shared_memory_are_refused(served: GrpcRig) -> None:
    tensor = triton.InferInput("in_FP32", [2, 2], "FP32")
    tensor.set_shared_memory("region", 16)
    output = triton.InferRequestedOutput("out_FP32")
    output.set_shared_memory("region", 16)
    with triton.InferenceServerClient(served.address) as client:
        for inputs, outputs in (([tensor], None), (tensors(), [output])):
            with pytest.raises(
                InferenceServerException, match="gRPC offers no shared memory"
            ) as info:
                client.infer("digits", inputs, outputs=outputs)
            assert info.value.status() == "StatusCode.UNIMPLEMENTED"


def test_a_unix_socket_serves_the_same(
    rig: Rig, expected: Mapping[str, Array], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place: Path = tmp_path_factory.mktemp("u")
    socket = place / "g.sock"
    served = GrpcRig(place, rig.endpoint, address=f"unix:{socket}")
    with triton.InferenceServerClient(served.address) as client:
        check(client.infer("digits", tensors()), expected)
    assert socket.stat().st_mode & 0o777 == 0o660
    served.stop()
    assert not socket.exists()
