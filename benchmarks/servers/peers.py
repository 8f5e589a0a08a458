"""Model servers of others, unmodified, each in an environment of its own.

EDGEFLEET_SERVING_PEERS names the folder of the environments. One that is not there is made, with
the version that is named here, and the ONNX Runtime that we measure with.

Rules:
- A peer that cannot be installed or does not start is left out, and the row says why.
- Each runs as its documentation shows, with its defaults, but without logs of requests, and gets
  its tensors in the quickest way that its HTTP interface has.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import onnxruntime

from benchmarks.programs import program
from benchmarks.programs.client import ask
from examples.digits.box import free_port

VARIABLE: Final = "EDGEFLEET_SERVING_PEERS"
INSTALL_S: Final = 900.0
START_S: Final = 60.0


class Peer(NamedTuple):
    """A model server."""

    name: str
    requirement: str
    further: tuple[str, ...]
    """What it needs beside that to start at all."""

    program: str
    kind: str
    """Form of the requests, as `benchmarks.serving` makes them."""


PEERS: Final = (
    Peer("LitServe", "litserve==0.2.19", (), "litserve_endpoint", "lit"),
    Peer("MLServer", "mlserver==1.7.1", ("uvloop<0.22",), "mlserver_endpoint", "base64"),
    Peer("KServe", "kserve==0.21.0", (), "kserve_endpoint", "raw"),
)


class NotInstalledError(Exception):
    """A peer cannot be measured; the text says why."""


def interpreter(peer: Peer) -> Path:
    """Return the interpreter of a peer's environment, which is made if it is not there.

    Args:
        peer: The peer.

    Raises:
        NotInstalledError: There is no place for it, or it cannot be installed.
    """
    place = os.environ.get(VARIABLE, "")
    if not place:
        raise NotInstalledError(f"name a folder for its environment with {VARIABLE}")
    folder = Path(place) / f"serving-{peer.requirement}"
    python, done = folder / "bin" / "python", folder / "installed"
    if not done.is_file():
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        runtime = f"onnxruntime=={onnxruntime.__version__}"
        install = [str(python), "-m", "pip", "install", "-q"]
        _run([*install, peer.requirement, *peer.further, runtime])
        done.touch()
    return python


@contextlib.contextmanager
def serving(peer: Peer, model: Path, request: bytes) -> Iterator[int]:
    """Serve a model with a peer; yield its port.

    Args:
        peer: The peer.
        model: The ONNX file.
        request: A whole request, which it must answer before it counts as started.

    Raises:
        NotInstalledError: It is not there, or does not start.
    """
    python, port = interpreter(peer), free_port()
    with subprocess.Popen(
        [str(python), "-P", program(peer.program), str(model), str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        cwd=model.parent,
        start_new_session=True,  # some start further processes
    ) as process:
        try:
            _wait(process, port, request)
            yield port
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], port: int, request: bytes) -> None:
    """Wait until a server answers.

    Raises:
        NotInstalledError: It ended, or did not answer in time.
    """
    end_s, why = time.monotonic() + START_S, "it did not listen"
    while process.poll() is None and time.monotonic() < end_s:
        try:
            with socket.create_connection(("127.0.0.1", port), START_S) as sock:
                ask(sock, request)
                return
        except (OSError, SystemExit) as exc:
            why = str(exc)
            time.sleep(0.2)
    raise NotInstalledError(f"it did not start: {why[:200]}")


def _run(command: list[str]) -> None:
    """Run a step of an installation.

    Raises:
        NotInstalledError: It failed.
    """
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as exc:
        lines = (getattr(exc, "stderr", None) or str(exc)).strip().splitlines()
        raise NotInstalledError(f"it cannot be installed: {lines[-1][:200]}") from exc
