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

from benchmarks.programs import program

ROOT: Final = Path(__file__).resolve().parents[2]


class Crowd:
    """Client processes that all ask at once, each on one connection.

    Args:
        port: Of the server.
        requests: Files, what each of them sends.
    """

    def __init__(self, port: int, requests: list[Path]) -> None:
        self._clients = [
            subprocess.Popen(
                [sys.executable, "-I", "-S", program("client"), str(port), str(file)],
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
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,  # the kernel shares processors among sessions: all servers have one
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
