"""What casync sends to a device that has one version of a file and wants the next.

casync cuts a file into chunks where its content says so, and packs each by Zstandard. A store has
the chunks as files; a device fetches the index and those chunks that its own file lacks, over HTTP.
A file of some hundred kilobytes is a handful of chunks.

Source:
    casync(1); chunks of 64 KiB on average, which is its default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = "casync"
LIMIT_S: Final = 300.0


def is_installed() -> bool:
    """Tell whether this machine has casync."""
    return shutil.which(PROGRAM) is not None


def sent_bytes(old: bytes, new: bytes) -> int:
    """Bring the next version of a file to a device that has the old one.

    Args:
        old: What the device has.
        new: What it is to have.

    Returns:
        What the store sent, with the index and the heads of its answers.

    Raises:
        SystemExit: Another file arrived.
    """
    with tempfile.TemporaryDirectory(prefix="casync-") as folder:
        served, device = Path(folder) / "served", Path(folder) / "device"
        served.mkdir()
        device.mkdir()
        (Path(folder) / "new").write_bytes(new)
        (device / "old").write_bytes(old)
        store = f"--store={served / 'store.castr'}"
        _run("make", store, str(served / "new.caibx"), str(Path(folder) / "new"))
        with _serving(served) as server:
            url = f"http://127.0.0.1:{server.server_port}"
            seed = f"--seed={device / 'old'}"
            target = str(device / "new")
            _run("extract", f"--store={url}/store.castr", seed, f"{url}/new.caibx", target)
        if (device / "new").read_bytes() != new:
            raise SystemExit("casync brought another file than it should")
        return server.sent_bytes


def _run(*arguments: str) -> None:
    subprocess.run(
        [PROGRAM, *arguments],
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
        env=os.environ | {"NO_PROXY": "*", "no_proxy": "*"},
    )


class _Counted:
    """A stream to a client that counts what goes through."""

    def __init__(self, stream: Any, server: _Server) -> None:  # noqa: ANN401 - of http.server
        self._stream = stream
        self._server = server

    def write(self, content: bytes) -> int:
        with self._server.lock:
            self._server.sent_bytes += len(content)
        return int(self._stream.write(content))

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a stream has
        return getattr(self._stream, name)


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.wfile = _Counted(self.wfile, self.server)  # type: ignore[assignment]

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 - its name there
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    def __init__(self, root: Path) -> None:
        self.lock = threading.Lock()
        self.sent_bytes = 0
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(root)))


@contextmanager
def _serving(root: Path) -> Iterator[_Server]:
    with _Server(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
