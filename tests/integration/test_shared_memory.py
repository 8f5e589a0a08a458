"""Tensors in POSIX shared memory: an unmodified `tritonclient`, and clients that mean harm."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as shm

from agent.serve.deferred.queue import DeferredQueue
from agent.serve.deferred.settings import DeferredSettings
from agent.serve.deferred.store import DeferredStore
from agent.serve.http.shared_memory import Regions, SharedMemoryApi
from runtime_adapters.protocol import Tensor
from tests.simulators.packages import variant
from tests.simulators.patience import PATIENCE_S, finished
from tests.simulators.rig import CLOCK, INPUT, Rig
from tests.simulators.shared_memory import NEEDS_ROOT, STRANGER, Shared, asking, named, shared

MOST = 1024 * 1024
OUTPUT_BYTES = 16
"""Of one sample, as of the input."""

STRANGER_ASKS = """
import os, socket, sys
os.setuid(int(sys.argv[1]))  # who may not read Python's library: nothing is imported from here on
with socket.socket() as sock:
    sock.connect(("127.0.0.1", int(sys.argv[2])))
    sock.sendall(sys.stdin.buffer.read())
    while block := sock.recv(65536):
        sys.stdout.buffer.write(block)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "package", offers={"shared_memory": SharedMemoryApi(Regions(MOST))})
    rig.use(variant("first"))
    yield rig
    rig.stop()


def ask(
    rig: Rig, path: str, body: bytes = b"", *, method: str = "POST", **headers: str
) -> tuple[int, Any]:
    client = rig.client()
    client.request(method, path, body=body, headers=headers)
    response = client.getresponse()
    content = response.read()
    client.close()
    return response.status, json.loads(content) if content else None


def infer(rig: Rig, body: bytes) -> tuple[int, Any]:
    return ask(rig, "/v2/models/digits/infer", body)


def register(rig: Rig, name: str, memory: Shared, size: int, offset: int = 0) -> None:
    wanted = {"key": memory.key, "offset": offset, "byte_size": size}
    path = f"/v2/systemsharedmemory/region/{name}/register"
    assert ask(rig, path, json.dumps(wanted).encode()) == (200, None)


def output(memory: Shared, offset: int = 0) -> Tensor:
    content = memory.read()[offset : offset + OUTPUT_BYTES]
    return np.frombuffer(content, np.float32).reshape(1, 4)


@pytest.fixture
def memory(rig: Rig) -> Iterator[Shared]:
    """An object with the input at 0 and room for the output at 16, which is registered as `io`."""
    with shared(64) as made:
        made.write(INPUT.tobytes())
        register(rig, "io", made, 64)
        yield made


def test_tritonclient_puts_its_tensors_into_shared_memory(rig: Rig) -> None:
    key = f"edgefleet-test-{secrets.token_hex(8)}"
    region = shm.create_shared_memory_region("in and out", key, 64)
    try:
        shm.set_shared_memory_region(region, [INPUT])
        tensor = triton.InferInput("x", [1, 4], "FP32")
        tensor.set_shared_memory("in and out", 16)
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("in and out", 32, offset=32)
        with triton.InferenceServerClient(rig.endpoint.address) as client:
            assert "system_shared_memory" in client.get_server_metadata()["extensions"]
            client.register_system_shared_memory("in and out", key, 64)
            told = {"name": "in and out", "key": key, "offset": 0, "byte_size": 64}
            assert client.get_system_shared_memory_status() == [told]
            assert client.get_system_shared_memory_status("in and out") == [told]
            result = client.infer("digits", [tensor], outputs=[wanted])
            described = result.get_output("y")
            assert described["parameters"] == {
                "shared_memory_region": "in and out",
                "shared_memory_byte_size": OUTPUT_BYTES,
                "shared_memory_offset": 32,
            }
            given: Tensor = shm.get_contents_as_numpy(
                region, np.float32, described["shape"], offset=32
            )
            assert np.array_equal(given, rig.expected("first"))
            del given  # it keeps the memory open
            client.unregister_system_shared_memory("in and out")
            client.unregister_system_shared_memory("never registered")
            client.unregister_system_shared_memory()
            assert client.get_system_shared_memory_status() == []
            with pytest.raises(InferenceServerException, match="no shared memory region"):
                client.infer("digits", [tensor], outputs=[wanted])
    finally:
        shm.destroy_shared_memory_region(region)


def test_the_other_tritonclient_does_so_too(rig: Rig, memory: Shared) -> None:
    async def run() -> Any:
        async with aio.InferenceServerClient(rig.endpoint.address) as client:
            await client.register_system_shared_memory("io", memory.key, 64)
            tensor = triton.InferInput("x", [1, 4], "FP32")
            tensor.set_shared_memory("io", 16)
            result = await client.infer("digits", [tensor])
            return result.as_numpy("y")

    assert np.array_equal(asyncio.run(run()), rig.expected("first"))


def test_regions_outlive_a_switch_and_a_worker(rig: Rig, memory: Shared) -> None:
    rig.use(variant("second"))
    assert infer(rig, asking(named("io", 16), named("io", 16, 16)))[0] == 200
    assert np.array_equal(output(memory, 16), rig.expected("second"))
    memory.write(bytes(48), 16)
    os.kill(rig.pid, signal.SIGKILL)
    assert infer(rig, asking(named("io", 16), named("io", 16, 16)))[0] == 200
    assert np.array_equal(output(memory, 16), rig.expected("second"))


def test_a_region_begins_where_it_was_registered(rig: Rig, memory: Shared) -> None:
    register(rig, "behind", memory, 48, 16)
    memory.write(INPUT.tobytes(), 24)
    status, answer = infer(rig, asking(named("behind", 16, 8)))
    assert status == 200
    assert answer["outputs"][0]["data"] == rig.expected("first").ravel().tolist()


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (asking(named("other", 16)), "there is no shared memory region 'other'"),
        (asking(None, named("other", 16)), "there is no shared memory region 'other'"),
        (asking(named("io", 16, 49)), "bytes 49 to 65 are not within"),
        (asking(named("io", 16, -1)), "is not a number of bytes"),
        (asking(named("io", 16) | {"shared_memory_offset": "8"}), "is not a number of bytes"),
        (asking(named("io", 16) | {"shared_memory_byte_size": 1.5}), "is not a number of bytes"),
        (asking(named("io", 16) | {"shared_memory_byte_size": True}), "is not a number of bytes"),
        (asking({"shared_memory_region": "io"}), "is not a number of bytes"),
        (asking({"shared_memory_region": ["io"]}), "there is no shared memory region"),
        (asking(named("io", 2**62, 2**62)), "are not within"),
        (asking(named("io", 15)), "input 'x' needs 16 bytes, and its place"),
        (asking(named("io", 64)), "input 'x' needs 16 bytes, and its place"),
        (asking(named("io", 16), tensor={"shape": [2, 4]}), "input 'x' needs 32 bytes"),
        (asking(named("io", 16), tensor={"data": [1, 2, 3, 4]}), "both raw and in the JSON"),
        (asking(named("io", 16) | {"binary_data_size": 16}), "both raw and in shared memory"),
        (asking(None, named("io", 15)), "output 'y' needs 16 bytes, and its place"),
        (asking(None, named("io", 16, 49)), "bytes 49 to 65 are not within"),
        (asking(None, named("io", 16) | {"classification": 1}), "only as it is"),
        (
            asking(named("io", 16), parameters={"deferrable": True}),
            "a deferrable request cannot use shared memory",
        ),
    ],
)
def test_what_is_wrong_is_one_clear_line(rig: Rig, memory: Shared, body: bytes, fault: str) -> None:
    before, pid = memory.read(), rig.pid
    status, answer = infer(rig, body)
    assert (status, list(answer)) == (400, ["error"])
    assert fault in answer["error"]
    assert (memory.read(), rig.pid) == (before, pid)


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (b"", "not a valid RegisterRequest"),
        (b"{}", "key"),
        (b'{"key": "/none", "byte_size": 8}', "cannot open shared memory '/none'"),
        (b'{"key": "/../etc/passwd", "byte_size": 8}', "no name of POSIX shared memory"),
        (b'{"key": "/a", "byte_size": 0}', "byte_size"),
        (b'{"key": "/a", "byte_size": 8, "offset": -1}', "offset"),
        (b'{"key": "/a", "byte_size": 1000000000000}', "a region may have 1048576 bytes"),
        (b'{"key": "%s", "byte_size": 8}' % (b"a" * 5000), "too long"),
    ],
)
def test_what_cannot_be_registered_is_one_clear_line(rig: Rig, wanted: bytes, fault: str) -> None:
    status, answer = ask(rig, "/v2/systemsharedmemory/region/io/register", wanted)
    assert status == 400
    assert fault in answer["error"]
    assert "\n" not in answer["error"]
    assert ask(rig, "/v2/systemsharedmemory/status", method="GET") == (200, [])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "region/io/register", 405),
        ("POST", "region/io/status", 405),
        ("GET", "region/none/status", 404),
        ("POST", "register", 404),
        ("GET", "region/a/b/status", 404),
    ],
)
def test_other_paths_are_refused(rig: Rig, method: str, path: str, status: int) -> None:
    body = b"{}" if method == "POST" else b""
    assert ask(rig, f"/v2/systemsharedmemory/{path}", body, method=method)[0] == status


def test_memory_that_was_made_anew_is_registered_again(rig: Rig, memory: Shared) -> None:
    memory.make(64)
    status, answer = infer(rig, asking(named("io", 16)))
    assert status == 400
    assert "is not the one that was registered; register it again" in answer["error"]
    register(rig, "io", memory, 64)
    assert infer(rig, asking(named("io", 16)))[0] == 200


def test_memory_that_is_gone_or_shorter_is_one_clear_line(rig: Rig, memory: Shared) -> None:
    os.truncate(memory.path, 8)
    for body in (asking(named("io", 16)), asking(None, named("io", 16))):
        status, answer = infer(rig, body)
        assert status == 400
        assert "has become shorter than its region" in answer["error"]
    assert memory.path.stat().st_size == 8  # the output made it no longer
    memory.path.unlink()
    status, answer = infer(rig, asking(named("io", 16)))
    assert status == 400
    assert "cannot open shared memory" in answer["error"]


def test_a_client_that_changes_the_size_all_the_time_ends_no_worker(rig: Rig) -> None:
    rows = MOST // 2 // OUTPUT_BYTES
    pid, stop = rig.pid, threading.Event()
    with shared(MOST) as memory:
        register(rig, "io", memory, MOST)

        def change() -> None:
            while not stop.is_set():
                for size in (0, 5000, MOST):
                    os.truncate(memory.path, size)

        body = asking(
            named("io", MOST // 2), named("io", MOST // 2, MOST // 2), tensor={"shape": [rows, 4]}
        )
        thread = threading.Thread(target=change)
        thread.start()
        try:
            answers = [infer(rig, body) for _ in range(200)]
        finally:
            stop.set()
            finished(thread)
        assert {status for status, _ in answers} <= {200, 400}
        assert {a["error"].split("'")[2] for status, a in answers if status == 400} == {
            " has become shorter than its region; do not change its size while it is registered"
        }
        assert rig.pid == pid
        assert infer(rig, body)[0] == 200


def test_memory_that_the_agent_may_only_read_takes_no_output(rig: Rig, memory: Shared) -> None:
    if os.getuid() == 0:
        pytest.skip("root may write everything")
    memory.path.chmod(0o400)
    assert infer(rig, asking(named("io", 16)))[0] == 200
    status, answer = infer(rig, asking(None, named("io", 16)))
    assert status == 400
    assert "permission denied" in answer["error"]


def test_a_page_in_a_browser_reaches_no_memory(rig: Rig, memory: Shared) -> None:
    path = "/v2/systemsharedmemory/region/page/register"
    wanted = json.dumps({"key": memory.key, "byte_size": 8}).encode()
    for found in (
        ask(rig, path, wanted, Origin="https://panel.example"),
        ask(rig, "/v2/models/digits/infer", asking(named("io", 16)), Origin="null"),
    ):
        assert found == (403, {"error": "pages in a browser may use no shared memory"})


@pytest.mark.skipif(os.getuid() != 0, reason=NEEDS_ROOT)
def test_another_user_reaches_only_memory_of_its_own(rig: Rig, memory: Shared) -> None:
    def as_stranger(path: str, body: bytes = b"", method: str = "POST") -> tuple[int, str]:
        request = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        done = subprocess.run(
            [sys.executable, "-c", STRANGER_ASKS, str(STRANGER), str(rig.port)],
            input=request, capture_output=True, timeout=PATIENCE_S, check=True,
        )  # fmt: skip
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), content.decode()

    path = "/v2/systemsharedmemory/"
    assert as_stranger(f"{path}status", method="GET") == (200, "[]")
    status, answer = as_stranger("/v2/models/digits/infer", asking(named("io", 16)))
    assert (status, "there is no shared memory region" in answer) == (400, True)
    wanted = json.dumps({"key": memory.key, "byte_size": 64}).encode()
    status, answer = as_stranger(f"{path}region/io/register", wanted)
    assert (status, "does not belong to the client's user" in answer) == (400, True)
    assert as_stranger(f"{path}unregister")[0] == 200
    assert infer(rig, asking(named("io", 16)))[0] == 200  # it forgot nothing of ours
    os.chown(memory.path, STRANGER, STRANGER)
    assert as_stranger(f"{path}region/io/register", wanted)[0] == 200
    assert as_stranger("/v2/models/digits/infer", asking(named("io", 16)))[0] == 200
    status, answer = infer(rig, asking(named("io", 16)))
    assert (status, "does not belong" in answer["error"]) == (400, True)


def test_a_client_on_a_unix_socket_uses_its_memory_too(rig: Rig, tmp_path: Path) -> None:
    from agent.serve.http.endpoint import Endpoint
    from agent.serve.served import Alone

    path = tmp_path / "s"
    endpoint = Endpoint(
        Alone(rig.server.router), unix_path=path, shared_memory=SharedMemoryApi(Regions(MOST))
    )
    endpoint.start()
    try:
        with shared(64) as memory:
            memory.write(INPUT.tobytes())
            wanted = json.dumps({"key": memory.key, "byte_size": 64}).encode()
            for target, body in (
                ("/v2/systemsharedmemory/region/io/register", wanted),
                ("/v2/models/digits/infer", asking(named("io", 16))),
            ):
                client = http.client.HTTPConnection("x")
                client.sock = socket.socket(socket.AF_UNIX)
                client.sock.connect(str(path))
                client.request("POST", target, body=body)
                assert client.getresponse().status == 200
                client.close()
    finally:
        endpoint.stop()


def test_a_deferrable_request_cannot_use_it_even_where_there_is_a_queue(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "package")
    rig.endpoint.stop()
    store = DeferredStore(tmp_path / "deferred", 1000, rig.recorder)
    rig = Rig(
        tmp_path / "other",
        offers={
            "shared_memory": SharedMemoryApi(Regions(MOST)),
            "deferred": DeferredQueue(DeferredSettings(), store, rig.recorder, CLOCK),
        },
    )
    status, answer = infer(rig, asking(named("io", 16), parameters={"deferrable": True}))
    rig.stop()
    assert (status, "cannot use shared memory" in answer["error"]) == (400, True)


def test_where_it_is_off_it_is_not_offered(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    status, answer = ask(rig, "/v2/systemsharedmemory/status", method="GET")
    assert status == 501
    assert "set shared_memory_bytes" in answer["error"]
    rig.use(variant("first"))
    assert infer(rig, asking(named("io", 16)))[0] == 400
    assert "system_shared_memory" not in ask(rig, "/v2", method="GET")[1]["extensions"]
    rig.stop()
