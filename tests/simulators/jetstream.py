"""A real NATS server with JetStream on loopback: Debian's package `nats-server`."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from controller.telemetry_settings import LogConfig
from examples.digits.box import free_port
from tests.simulators.patience import PATIENCE_S, until

PROGRAM = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
NO_SERVER = "nats-server is not installed"


class NatsServer:
    """A server that can be killed and started again, with what it has on disk.

    Args:
        directory: Where it keeps everything.
        **settings: Further ones of the server, such as `authorization`.
    """

    def __init__(self, directory: Path, **settings: Any) -> None:
        if PROGRAM is None:
            pytest.skip(NO_SERVER)
        self.port = free_port()
        self._log = directory / "nats.log"
        self._config = directory / "nats.conf"
        self._process: subprocess.Popen[bytes] | None = None
        jetstream = {"store_dir": str(directory / "jetstream"), "max_file": 64 * 1024 * 1024}
        written = {"listen": f"127.0.0.1:{self.port}", "jetstream": jetstream, **settings}
        self._config.write_text(json.dumps(written))  # JSON is the server's own format, too

    def config(self, **more: Any) -> LogConfig:
        """Return the settings of a controller for it."""
        settings: dict[str, Any] = {
            "servers": (f"nats://127.0.0.1:{self.port}",),
            "keep_bytes": 16 * 1024**2,
        }
        return LogConfig(**settings | more)

    def start(self) -> None:
        """Start it; returns when it listens."""
        assert PROGRAM is not None
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                [PROGRAM, "-c", str(self._config)], stdout=log, stderr=log
            )
        until(lambda: process.poll() is not None or self._listens(), "nats-server")
        assert process.poll() is None, self._log.read_text()

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)

    def pause(self) -> None:
        """Let it answer nothing, as a machine does that hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False
