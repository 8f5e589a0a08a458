"""The servers that are measured and the clients that ask them, each a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]

SERVER: Final = """
import json, sys
from pathlib import Path
from agent.serve.http.endpoint import Endpoint
from agent.serve.model_server import ModelServer
from agent.serve.settings import Mode, ServingSettings
from telemetry.device.recorder import Recorder
from wire.clock import SystemClock
from wire.package.manifest import manifest_from_bytes

clock, package = SystemClock(), Path(sys.argv[1])
settings = ServingSettings(mode=Mode(max_batch=int(sys.argv[2])))
server = ModelServer(Recorder(clock), clock, settings=settings)
variant = manifest_from_bytes((package / "manifest.json").read_bytes()).variants[0]
server.switch_to(package, "d" * 64, variant)
endpoint = Endpoint(server.router)
endpoint.start()
print(endpoint.address.rpartition(":")[2], flush=True)
sys.stdin.read()
endpoint.stop()
server.stop()
"""

FASTAPI: Final = """
import socket, sys
import numpy as np, onnxruntime, uvicorn
from fastapi import FastAPI, Request, Response

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
(model_input,) = session.get_inputs()
shape = [1, *model_input.shape[1:]]
app = FastAPI()

@app.post("/infer")
async def infer(request: Request) -> Response:
    array = np.frombuffer(await request.body(), np.float32).reshape(shape)
    (output,) = session.run(None, {model_input.name: array})
    return Response(output.tobytes(), media_type="application/octet-stream")

sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
sock.bind(("127.0.0.1", 0))
print(sock.getsockname()[1], flush=True)
# Ours keeps a silent connection for 75 s, uvicorn by default for 5, less than another's round.
config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_keep_alive=75)
uvicorn.Server(config).run([sock])
"""

CLIENT: Final = """
import json, socket, sys, time

request = open(sys.argv[2], "rb").read()
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

def received():
    block = sock.recv(1 << 18)
    if not block:
        raise SystemExit("the server closed the connection")
    return block

def ask():
    sock.sendall(request)
    data = received()
    end = data.find(b"\\r\\n\\r\\n")
    while end < 0:
        data += received()
        end = data.find(b"\\r\\n\\r\\n")
    head = data[:end].lower()
    if not head.startswith(b"http/1.1 200"):
        raise SystemExit(data[:500])
    length = int(head.partition(b"content-length: ")[2].partition(b"\\r\\n")[0])
    missing = end + 4 + length - len(data)
    while missing > 0:
        missing -= len(received())

for line in sys.stdin:
    end_s, taken = time.perf_counter() + float(line), []
    while (start_s := time.perf_counter()) < end_s:
        ask()
        taken.append(time.perf_counter() - start_s)
    print(json.dumps(taken), flush=True)
"""


class Crowd:
    """Client processes that all ask at once, each on one connection.

    Args:
        port: Of the server.
        requests: Files, what each of them sends.
    """

    def __init__(self, port: int, requests: list[Path]) -> None:
        self._clients = [
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", CLIENT, str(port), str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for file in requests
        ]

    def __enter__(self) -> Self:
        self.ask(0.5)  # warm up
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.communicate()

    def ask(self, duration_s: float) -> list[float]:
        """Ask without a pause.

        Args:
            duration_s: For how long.

        Returns:
            The seconds that each answer took.

        Raises:
            RuntimeError: The server refused a request.
        """
        for client in self._clients:
            if client.stdin is None:
                raise RuntimeError("a client without an input")
            print(duration_s, file=client.stdin, flush=True)
        taken: list[float] = []
        for client in self._clients:
            line = client.stdout.readline() if client.stdout else ""
            if not line:
                raise RuntimeError("a client ended: the server refused it")
            taken += json.loads(line)
        return taken


@contextlib.contextmanager
def server(command: list[str]) -> Iterator[int]:
    """Run a server that prints its port and ends with its input.

    Raises:
        RuntimeError: It does not start.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError("a server did not start")
        time.sleep(0.5)  # uvicorn listens a moment after it has its port
        try:
            yield int(line)
        finally:
            if process.stdin:
                process.stdin.close()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.terminate()
