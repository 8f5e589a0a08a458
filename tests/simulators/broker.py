"""A real Mosquitto for tests: anonymous, on a loopback port of its own, killed by process id.

```
with running_broker() as broker:
    transport = MqttTransport(broker.address, client_id="test")
    broker.kill()      # as a power cut does
    broker.start()     # on the same port, with nothing remembered
```
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest

from examples.digits.box import free_port
from tests.simulators.patience import PATIENCE_S, until
from wire.broker_address import BrokerAddress

LOOPBACK = "127.0.0.1"
ATTEMPTS = 3
CONFIG = """\
listener {port} {host}
allow_anonymous true
set_tcp_nodelay true
persistence false
max_packet_size 300000
max_queued_messages 10000
log_dest stderr
{user}
"""


class RunningBroker:
    """An anonymous broker in a directory of its own.

    Args:
        directory: Where its configuration and log are written.
    """

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> BrokerAddress:
        """Where clients connect."""
        return BrokerAddress(host=LOOPBACK, port=self.port)

    @property
    def pid(self) -> int:
        """The process, which must be running."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What the broker wrote so far."""
        return (self._directory / "broker.log").read_text(errors="replace")

    def start(self) -> None:
        """Start, or start again on the same port, and wait until it accepts."""
        config = self._directory / "mosquitto.conf"
        # Started as root it would change to a user that may not exist here.
        config.write_text(CONFIG.format(port=self.port, host=LOOPBACK, user="user root"))
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [mosquitto_path(), "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if not self._wait_until_accepting():
            self.kill()
            raise RuntimeError(f"the test broker did not start: {self.log[-500:]}")

    def stop(self) -> None:
        """End it as a service manager does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay open and nothing answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen broker go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
        process.wait(PATIENCE_S)

    def _wait_until_accepting(self) -> bool:
        return until(self._accepts_or_ended, "the broker") == "accepts"

    def _accepts_or_ended(self) -> Literal["accepts", "ended", ""]:
        if self._process is None or self._process.poll() is not None:
            return "ended"
        try:
            socket.create_connection((LOOPBACK, self.port), timeout=PATIENCE_S).close()
        except OSError:
            return ""
        return "accepts"


@contextmanager
def running_broker() -> Iterator[RunningBroker]:
    """Run an anonymous broker for the length of a `with` block; skip where there is none."""
    if shutil.which("mosquitto", path=search_path()) is None:
        pytest.skip("Mosquitto is not installed")
    with tempfile.TemporaryDirectory(prefix="edgefleet-broker-") as directory:
        broker = _started(Path(directory))
        try:
            yield broker
        finally:
            broker.kill()


def _started(directory: Path) -> RunningBroker:
    for attempt in range(ATTEMPTS):
        broker = RunningBroker(directory)
        try:
            broker.start()
        except RuntimeError:  # another process took the port between the look and the start
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return broker
    raise AssertionError


def mosquitto_path() -> str:
    """Return the program's path; the caller has checked that there is one."""
    path = shutil.which("mosquitto", path=search_path())
    assert path is not None
    return path


def search_path() -> str:
    """Return where to look: Debian puts the broker where users' PATH often does not reach."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
