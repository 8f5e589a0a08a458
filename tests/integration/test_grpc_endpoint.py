"""The gRPC process over real workers: bounds, faults, security, health, and its life."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from agent.serve.answered import Listener
from agent.serve.frames import Reply
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.tls import server_tls
from agent.serve.pool import Prepared
from agent.serve.routes import InferenceCall
from agent.serve.served import Alone
from agent.serve.settings import ServingSettings
from runtime_adapters.installed import installed_runtimes
from tests.models import DIGITS
from tests.simulators.certificates import Authority
from tests.simulators.grpc_rig import GrpcRig, is_running, peak_bytes
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.rig import DIGEST, INPUT, Rig
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant

grpc: Any = pytest.importorskip("grpc", reason="grpcio is not installed")
triton: Any = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
pb: Any = triton.service_pb2

TOKEN = "secret of this test"
SERVICE = "/inference.GRPCInferenceService/"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"
MIB = 1024 * 1024


class Noting:
    """Answers with a refusal, and notes what it was asked."""

    active: Prepared | None = None
    kept: Prepared | None = None
    is_idle = True
    is_ready = True

    def __init__(self, reply: Reply) -> None:
        self.calls: list[InferenceCall] = []
        self._reply = reply

    def listen(self, listener: Listener) -> None:
        """Tell nobody."""

    def handle(self, call: InferenceCall) -> Reply:
        self.calls.append(call)
        return self._reply


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = Rig(tmp_path_factory.mktemp("rig"))
    rig.use(variant("first"))
    yield rig
    rig.stop()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path."""
    return tmp_path_factory.mktemp("g")


@pytest.fixture
def serve(rig: Rig, place: Path) -> Iterator[Callable[..., GrpcRig]]:
    """Starts a gRPC process, in front of the rig's endpoint by default."""
    begun = []

    def start(endpoint: Endpoint | None = None, **changes: Any) -> GrpcRig:
        begun.append(GrpcRig(place, endpoint or rig.endpoint, **changes))
        return begun[-1]

    yield start
    for served in begun:
        served.stop()


def request(values: Any = INPUT, **fields: Any) -> Any:
    made = pb.ModelInferRequest(model_name="digits", **fields)
    made.inputs.add(name="x", datatype="FP32", shape=values.shape)
    made.raw_input_contents.append(values.tobytes())
    return made


def typed(**contents: Any) -> Any:
    made = pb.ModelInferRequest(model_name="digits")
    tensor = made.inputs.add(name="x", datatype="FP32", shape=INPUT.shape)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return made


def call(address: str, method: str, content: bytes = b"", **options: Any) -> bytes:
    with grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel:
        answer: bytes = channel.unary_unary(method)(content, timeout=PATIENCE_S, **options)
        return answer


def infer(address: str, message: Any, **options: Any) -> Any:
    content = message if isinstance(message, bytes) else message.SerializeToString()
    return pb.ModelInferResponse.FromString(
        call(address, f"{SERVICE}ModelInfer", content, **options)
    )


def refused(address: str, message: Any, **options: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as info:
        infer(address, message, **options)
    return info.value.code().name, info.value.details()


def trailing(error: Any) -> dict[str, str]:
    return dict(error.trailing_metadata())


def test_typed_and_raw_contents_are_answered_alike(rig: Rig, serve: Callable[..., GrpcRig]) -> None:
    address = serve().address
    expected = rig.expected("first").tobytes()
    assert list(infer(address, request()).raw_output_contents) == [expected]
    answer = infer(address, typed(fp32_contents=INPUT.ravel().tolist()))
    assert list(answer.raw_output_contents) == [expected]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\xff\xff", "not a protocol buffer of this call"),
        (b"\x2a\x05ab", "not a protocol buffer of this call"),
        (b"\x0a\x02\xff\xfe", "not a protocol buffer of this call"),
        (b"", "the name of the model is empty"),
        (typed(), "has 0 values in fp32_contents, which is not what its shape [1, 4] holds"),
        (typed(fp32_contents=[1.0] * 5), "has 5 values in fp32_contents"),
        (typed(int_contents=[1] * 4), "is FP32, whose contents belong into fp32_contents"),
        (typed(fp32_contents=[1.0] * 4, int_contents=[1]), "whose contents belong into"),
        (request(np.zeros((1, 3), np.float32)), "has shape [1, 3], but the model declares [-1, 4]"),
        (request(np.zeros((1, 4), np.float64)), "needs 16 raw bytes, 32 are announced"),
        (pb.ModelInferRequest(model_name="digits"), "input 'x' is missing"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_in_one_line(
    serve: Callable[..., GrpcRig], message: Any, reason: str
) -> None:
    code, told = refused(serve().address, message)
    assert (code, reason in told, "\n" in told) == ("INVALID_ARGUMENT", True, False), told


def test_contents_of_two_kinds_and_of_other_counts_are_refused(
    serve: Callable[..., GrpcRig],
) -> None:
    address, both, more = serve().address, request(), request()
    both.inputs[0].contents.fp32_contents.extend([1.0] * 4)
    more.raw_input_contents.append(b"")
    unknown = request()
    unknown.parameters["p"].SetInParent()
    later = request()
    later.parameters["deferrable"].bool_param = True
    wrong = request()
    wrong.inputs[0].datatype = "FP8"
    assert refused(address, both)[0] == "INVALID_ARGUMENT"
    assert "typed contents beside raw_input_contents" in refused(address, both)[1]
    assert "there are 2 raw_input_contents for 1 inputs" in refused(address, more)[1]
    assert refused(address, unknown)[0] == "INVALID_ARGUMENT"
    assert refused(address, wrong) == (
        "INVALID_ARGUMENT",
        "input 'x' is FP8, but the model declares FP32",
    )
    assert refused(address, later)[0] == "UNIMPLEMENTED"
    assert infer(address, request(id="after")).id == "after"


@pytest.mark.parametrize("compression", ["NoCompression", "Gzip"])
def test_a_message_above_its_bound_is_refused_and_takes_no_memory(
    serve: Callable[..., GrpcRig], compression: str
) -> None:
    served = serve(max_message_bytes=MIB)
    infer(served.address, request())
    before = peak_bytes(served.pid)
    large = request(np.zeros((16 * MIB, 4), np.float32))
    how = getattr(grpc.Compression, compression)
    code, told = refused(served.address, large, compression=how)
    assert code == "RESOURCE_EXHAUSTED"
    assert "larger than max" in told
    assert peak_bytes(served.pid) - before < 32 * MIB
    infer(served.address, request())


def test_a_message_that_would_grow_when_it_is_parsed_is_refused_before(
    serve: Callable[..., GrpcRig],
) -> None:
    served = serve()
    before = peak_bytes(served.pid)
    code, told = refused(served.address, b"\x2a\x00" * (8 * MIB))  # empty tensors
    assert (code, "over 4096 tensors" in told) == ("RESOURCE_EXHAUSTED", True)
    code, told = refused(served.address, typed(int64_contents=[0] * (17 * MIB)))
    assert (code, "send large tensors there" in told) == ("RESOURCE_EXHAUSTED", True)
    assert peak_bytes(served.pid) - before < 128 * MIB


def test_a_body_above_the_bound_of_the_endpoint_is_refused(rig: Rig, place: Path) -> None:
    served = GrpcRig(place, rig.endpoint, max_message_bytes=128 * MIB)
    code, told = refused(served.address, request(np.zeros((5 * MIB, 4), np.float32)))
    served.stop()
    assert (code, told) == ("RESOURCE_EXHAUSTED", f"the body is over {64 * MIB} bytes")


def test_no_more_calls_than_allowed_go_on_at_once(serve: Callable[..., GrpcRig]) -> None:
    address = serve(calls=1).address
    with grpc.insecure_channel(address) as channel:
        watch = channel.unary_stream(WATCH)(b"", timeout=PATIENCE_S)
        assert next(watch) == SERVING
        with pytest.raises(grpc.RpcError) as info:
            channel.unary_unary(CHECK)(b"", timeout=PATIENCE_S)
        assert info.value.code().name == "RESOURCE_EXHAUSTED"
        watch.cancel()
        until(lambda: _checks(channel), "the place of the call that was cancelled")


def _checks(channel: Any) -> bool:
    try:
        channel.unary_unary(CHECK)(b"", timeout=PATIENCE_S)
    except grpc.RpcError:
        return False
    return True


def test_the_deadline_and_the_parameters_of_a_call_reach_the_router(
    serve: Callable[..., GrpcRig],
) -> None:
    busy = Reply.refusal(503, "the queue is full", {"Retry-After": "7"})
    router = Noting(msgspec.structs.replace(busy, headers=busy.headers))
    endpoint = Endpoint(Alone(router))
    endpoint.start()
    served = serve(endpoint)
    message = request()
    message.model_version = "1.0"
    message.parameters["priority"].uint64_param = 3
    with pytest.raises(grpc.RpcError) as info:
        infer(served.address, message)
    assert (info.value.code().name, info.value.details()) == ("UNAVAILABLE", "the queue is full")
    assert trailing(info.value) == {"retry-after": "7"}
    message.parameters["timeout"].int64_param = 2_000_000
    refused(served.address, message)
    endpoint.stop()
    first, second = router.calls
    assert (first.model, first.version, first.priority) == ("digits", "1.0", 3)
    assert first.timeout_s is not None
    assert PATIENCE_S - 60 < first.timeout_s <= PATIENCE_S
    assert second.timeout_s == 2.0


def test_a_deadline_that_passes_in_the_queue_is_told(place: Path) -> None:
    rig = Rig(place / "package", settings=ServingSettings(infer_timeout_s=60.0))
    rig.use(variant("first", options={"delay_ms": "1500"}))
    served = GrpcRig(place, rig.endpoint)
    address = served.address
    slow = [threading.Thread(target=infer, args=(address, request())) for _ in range(2)]
    for thread in slow:
        thread.start()
    until(lambda: rig.server.active is not None and rig.server.active.waiting, "a queue")
    hasty = request()
    hasty.parameters["timeout"].int64_param = 20_000
    code, told = refused(address, hasty)
    for thread in slow:
        finished(thread)
    served.stop()
    rig.stop()
    assert (code, "deadline" in told) == ("DEADLINE_EXCEEDED", True), told


def test_a_client_that_gives_up_frees_its_connection(serve: Callable[..., GrpcRig]) -> None:
    release = threading.Event()

    class Slow(Noting):
        def handle(self, call: InferenceCall) -> Reply:
            self.calls.append(call)
            release.wait(PATIENCE_S)
            return self._reply

    router = Slow(Reply.refusal(503, "late"))
    endpoint = Endpoint(Alone(router))
    endpoint.start()
    address = serve(endpoint, calls=2).address
    with grpc.insecure_channel(address) as channel:
        for number in range(1, 6):  # more than may go on at once
            begun = channel.unary_unary(f"{SERVICE}ModelInfer").future(
                request().SerializeToString(), timeout=PATIENCE_S
            )
            until(lambda: len(router.calls) >= number, "the request")  # noqa: B023
            begun.cancel()
            until(lambda: _checks(channel), "its place")
    release.set()
    endpoint.stop()


def test_the_health_is_told_in_grpcs_own_words(place: Path) -> None:
    rig = Rig(place / "package")
    served = GrpcRig(place, rig.endpoint)
    address, name = served.address, b"\x0a\x1e" + b"inference.GRPCInferenceService"
    with grpc.insecure_channel(address) as channel:
        watch = channel.unary_stream(WATCH)(b"", timeout=PATIENCE_S)
        assert next(watch) == NOT_SERVING
        assert call(address, CHECK) == NOT_SERVING
        rig.use(variant("first"))
        assert next(watch) == SERVING
        assert call(address, CHECK) == SERVING
        assert call(address, CHECK, name) == SERVING
        watch.cancel()
    with pytest.raises(grpc.RpcError) as info:
        call(address, CHECK, b"\x0a\x01x")
    assert info.value.code().name == "NOT_FOUND"
    served.stop()
    rig.stop()


def test_only_clients_with_the_token_may_ask_for_more_than_the_health(
    rig: Rig, serve: Callable[..., GrpcRig]
) -> None:
    endpoint = Endpoint(Alone(rig.server.router), token=TOKEN)
    endpoint.start()
    address = serve(endpoint, token=TOKEN, max_message_bytes=MIB).address
    for shown in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}):
        metadata = tuple(shown.items())
        assert refused(address, request(), metadata=metadata)[0] == "UNAUTHENTICATED"
    # It is told before its message is read: a large one is not.
    large = request(np.zeros((MIB, 4), np.float32))
    assert refused(address, large)[0] == "UNAUTHENTICATED"
    for method in ("ServerLive", "ServerReady"):
        assert call(address, SERVICE + method) == b"\x08\x01"
    assert call(address, CHECK) == SERVING
    with triton.InferenceServerClient(address) as client:
        client.register_plugin(_Token())
        tensor = triton.InferInput("x", INPUT.shape, "FP32").set_data_from_numpy(INPUT)
        assert client.infer("digits", [tensor]).as_numpy("y").shape == (1, 4)
    endpoint.stop()


class _Token:
    def __call__(self, request: Any) -> None:
        request.headers["authorization"] = f"Bearer {TOKEN}"


def test_the_token_stands_on_no_command_line_and_in_no_environment(
    rig: Rig, serve: Callable[..., GrpcRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_AGENT", TOKEN)
    served = serve(token=TOKEN)
    for file in ("cmdline", "environ"):
        assert TOKEN.encode() not in Path(f"/proc/{served.pid}/{file}").read_bytes()


def test_with_certificates_only_clients_that_have_one_are_heard(
    rig: Rig, serve: Callable[..., GrpcRig], tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server, client, foreign = (
        authority.issue("server"), authority.issue("client"), stranger.issue("client"),
    )  # fmt: skip
    tls = server_tls(server.cert_file, server.key_file, authority.ca_file)
    endpoint = Endpoint(Alone(rig.server.router), tls=tls)
    endpoint.start()
    served = serve(
        endpoint,
        cert_file=str(server.cert_file),
        key_file=str(server.key_file),
        client_ca_file=str(authority.ca_file),
    )
    root = authority.ca_file.read_bytes()

    def ask(*pair: bytes) -> Any:
        credentials = grpc.ssl_channel_credentials(root, *pair)
        with grpc.secure_channel(served.address, credentials) as channel:
            return channel.unary_unary(f"{SERVICE}ServerReady")(b"", timeout=PATIENCE_S)

    assert ask(client.key_file.read_bytes(), client.cert_file.read_bytes()) == b"\x08\x01"
    for pair in ((), (foreign.key_file.read_bytes(), foreign.cert_file.read_bytes())):
        with pytest.raises(grpc.RpcError) as info:
            ask(*pair)
        assert info.value.code().name == "UNAVAILABLE"
    with pytest.raises(grpc.RpcError):
        call(served.address, f"{SERVICE}ServerReady")
    endpoint.stop()


def test_a_process_that_is_killed_is_started_again(serve: Callable[..., GrpcRig]) -> None:
    served = serve()
    first = served.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: served.events.reasons, "an event")
    second = until(lambda: served.pid != first and served.pid, "another process")
    infer(served.address, request())
    assert is_running(second)
    assert len(served.events.reasons) == 1
    assert "its process was ended by SIGKILL" in served.events.reasons[0]


def test_only_the_supervisor_ends_the_process(serve: Callable[..., GrpcRig]) -> None:
    served = serve()
    pid = served.pid
    os.kill(pid, signal.SIGTERM)  # as a service manager does to all at once
    infer(served.address, request())
    assert (served.pid, is_running(pid), served.events.reasons) == (pid, True, [])


def test_a_stop_ends_the_process_and_removes_the_private_socket(rig: Rig, place: Path) -> None:
    endpoint = Endpoint(Alone(rig.server.router))
    endpoint.start()
    served = GrpcRig(place, endpoint)
    pid = served.pid
    assert (place / "private.sock").stat().st_mode & 0o777 == 0o600
    served.stop()
    served.stop()
    endpoint.stop()
    assert not is_running(pid)
    assert not list(place.iterdir())
    assert served.keeper.address == ""


def test_an_address_that_is_taken_is_one_event_and_served_when_it_is_free(
    serve: Callable[..., GrpcRig],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        served = serve(address=f"127.0.0.1:{port}")
        reason = until(lambda: served.events.reasons, "an event")[0]
    assert reason == f"gRPC is not served on 127.0.0.1:{port}: address already in use"
    infer(served.address, request())
    assert len(served.events.reasons) == 1


def test_without_grpcio_one_event_names_what_to_install(
    serve: Callable[..., GrpcRig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "grpc").mkdir()
    (tmp_path / "grpc" / "__init__.py").write_text(
        "raise ModuleNotFoundError('no grpc', name='grpc')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    served = serve()
    reason = until(lambda: served.events.reasons, "an event")[0]
    assert reason == (
        "gRPC is not served on 127.0.0.1:0: grpc is not installed; pip install 'edgefleet[grpc]'"
    )
    until(lambda: not served.keeper.is_trying, "the end of all attempts")


def test_a_private_socket_that_cannot_be_made_is_one_event(
    serve: Callable[..., GrpcRig], place: Path
) -> None:
    (place / "private.sock").write_text("a file of somebody")
    served = serve()
    assert "cannot listen on" in served.events.reasons[0]
    assert (place / "private.sock").read_text() == "a file of somebody"


def onnx_variant(name: str, inputs: TensorSpec, output: TensorSpec) -> Variant:
    plain = variant(name)
    info = msgspec.structs.replace(
        plain.info,
        runtime="onnxruntime",
        model_file="model.onnx",
        inputs=(inputs,),
        outputs=(output,),
    )
    return msgspec.structs.replace(plain, info=info)


def use(rig: Rig, chosen: Variant, content: bytes) -> None:
    package("1.0", [(chosen, content)]).write_to(rig.directory)
    rig.server.switch_to(rig.directory, DIGEST, chosen)


@pytest.mark.skipif("onnxruntime" not in installed_runtimes(), reason="no ONNX Runtime")
def test_real_models_take_images_and_texts(place: Path) -> None:
    rig = Rig(place / "package", settings=ServingSettings())
    served = GrpcRig(place, rig.endpoint)
    model = onnx.load(str(DIGITS))
    named = [
        (value.name, tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim))
        for value in (model.graph.input[0], model.graph.output[0])
    ]
    specs = [TensorSpec(name=name, datatype="FP32", shape=shape) for name, shape in named]
    use(rig, onnx_variant("digits", *specs), DIGITS.read_bytes())
    image = np.random.default_rng(0).random([abs(n) for n in specs[0].shape], np.float32)
    with triton.InferenceServerClient(served.address) as client:
        tensor = triton.InferInput(specs[0].name, image.shape, "FP32").set_data_from_numpy(image)
        scores = client.infer("digits", [tensor]).as_numpy(specs[1].name)
        assert np.isfinite(scores).all()

        words = TensorSpec(name="word", datatype="BYTES", shape=(-1, 1))
        score = TensorSpec(name="score", datatype="FP32", shape=(-1, 1))
        use(rig, onnx_variant("words", words, score), word_scores())
        texts = np.array([["größe"], ["bread"], ["?"]], np.object_)
        tensor = triton.InferInput("word", texts.shape, "BYTES").set_data_from_numpy(texts)
        given = client.infer("digits", [tensor]).as_numpy("score")
        assert given.ravel().tolist() == [1.5, 2.5, -1.0]
        message = pb.ModelInferRequest(model_name="digits")
        typed_texts = message.inputs.add(name="word", datatype="BYTES", shape=[2, 1])
        typed_texts.contents.bytes_contents.extend([b"bread", "größe".encode()])
        answer = infer(served.address, message)
        assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [2.5, 1.5]
        typed_texts.contents.bytes_contents[0] = b"\xff"
        assert refused(served.address, message)[0] == "INVALID_ARGUMENT"
    served.stop()
    rig.stop()


def word_scores() -> bytes:
    """Return a model that knows the scores of two words."""
    node = helper.make_node(
        "LabelEncoder", ["word"], ["score"], domain="ai.onnx.ml",
        keys_strings=["größe", "bread"], values_floats=[1.5, 2.5], default_float=-1.0,
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "words",
        [helper.make_tensor_value_info("word", TensorProto.STRING, [None, 1])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, [None, 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    content: bytes = helper.make_model(
        graph, opset_imports=opsets, ir_version=8
    ).SerializeToString()
    return content
