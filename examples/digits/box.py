"""A whole fleet on one machine: broker, controller, agents and simulated boards, as processes.

The demo uses it, and so do the acceptance tests.

Rules:
- Every process is started through the commands that a user types, logs to its own file, and is
  ended by its own process id.
- Nothing is written outside the working directory; ports are free ones on loopback.
- A simulated board is a directory in sysfs's form. Its temperature follows the processor time that
  the agent's worker really uses, scaled to a board that is slower than this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from agent.app.control import SOCKET_FILE, ask
from controller.app.home import CA_FILE, RELEASE_KEY_FILE, offline_directory, read_home
from examples.digits.board import Board
from wire.errors import FleetError

BIN = Path(sys.executable).parent
STEP_S = 0.25
COMMAND_S = 1500.0
"""Ends a command that hangs; a build on a busy machine takes minutes."""

END_S = 60.0
"""A process that was told to end has this long."""

PORTS = range(20_000, 32_000)
_turns = itertools.count(random.SystemRandom().randrange(len(PORTS)))


class BoxError(Exception):
    """A process of the box did not do what it should."""


class EndedError(BoxError):
    """A process that is waited for has ended: waiting longer is of no use."""


def free_port() -> int:
    """Return a TCP port on loopback that nobody uses now.

    Below the range from which Linux gives ports to outgoing connections: one from within it may be
    gone before a server binds it. Each process goes through the ports in turn, from a place of its
    own: so none is given twice, and another that does the same is rarely at the same place before
    a server has bound what was given.

    Raises:
        BoxError: None was found.
    """
    for _ in range(100):
        port = PORTS[next(_turns) % len(PORTS)]
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port
    raise BoxError("no free TCP port on loopback")


@dataclass
class Device:
    """One agent of the box."""

    name: str
    profile: Path
    config: Path
    port: int
    board: Board
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def control(self) -> Path:
        """The agent's control socket."""
        return self.config.parent / "state" / SOCKET_FILE

    @property
    def url(self) -> str:
        """The address of its inference endpoint."""
        return f"http://127.0.0.1:{self.port}"


class Box:
    """A fleet on one machine.

    Args:
        root: An empty directory for everything.
        agents: Folder of the `fleet-agent` that devices run.
    """

    def __init__(self, root: Path, agents: Path = BIN) -> None:
        self.root = root
        self.home = root / "controller"
        self.logs = root / "logs"
        self.logs.mkdir(parents=True)
        self.devices: dict[str, Device] = {}
        self._agents = agents
        self._commands: dict[str, list[str]] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stop_boards = threading.Event()
        self._boards = threading.Thread(target=self._move_boards, daemon=True)
        self._boards.start()

    def fleet(self, *arguments: str | Path, check: bool = True) -> str:
        """Run a `fleet` command and return what it printed.

        Args:
            *arguments: The command line.
            check: Refuse a status other than 0.

        Returns:
            Standard output.

        Raises:
            BoxError: The command failed.
        """
        done = subprocess.run(
            [BIN / "fleet", *map(str, arguments)],
            capture_output=True, text=True, check=False, env=self.environment, timeout=COMMAND_S,
        )  # fmt: skip
        if check and done.returncode != 0:
            words = " ".join(map(str, arguments))
            raise BoxError(f"`fleet {words}` ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def fleet_json(self, *arguments: str | Path) -> Any:  # noqa: ANN401 - any JSON value
        """Run a `fleet` command with --json and return the value."""
        return json.loads(self.fleet(*arguments, "--json"))

    def api(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        """Ask the controller's API, which costs less than starting a command for each look.

        Args:
            path: Such as `/v1/devices`.

        Returns:
            The answer.

        Raises:
            BoxError: No answer, or a refusal.
        """
        where = read_home(self.home)
        request = urllib.request.Request(  # noqa: S310 - always the box's own address
            where.api_url + path,
            headers={"Authorization": f"Bearer {where.token_file.read_text().strip()}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - as above
                return json.load(response)
        except OSError as exc:
            raise BoxError(f"GET {path}: {exc}") from exc

    def until_connected(self) -> None:
        """Wait until the controller answers and has its broker, which may have to be fetched.

        Raises:
            BoxError: It has not in three minutes.
            EndedError: One of them has ended instead.
        """

        def connected() -> bool:
            for name in ("broker", "controller"):
                if self.pid(name) is None:
                    raise EndedError(f"the {name} has ended: {self.log_tail(name, 1)}")
            return bool(self.api("/v1/health")["broker_connected"])

        until("the controller and its broker", connected, 180)

    def status(self, device: str) -> dict[str, Any]:
        """Ask an agent how it is.

        Args:
            device: Its name.

        Returns:
            What `fleet-agent status --json` prints.

        Raises:
            BoxError: It does not answer.
        """
        try:
            answer = ask(self.devices[device].control, "status")
        except FleetError as exc:
            raise BoxError(f"{device}: {exc}") from exc
        return dict(answer)

    def show(self, *arguments: str | Path) -> int:
        """Print a `fleet` command and run it on this terminal; return its status."""
        print(f"\n$ fleet {' '.join(self._short(word) for word in arguments)}", flush=True)
        command: list[str | Path] = [BIN / "fleet", *map(str, arguments)]
        done = subprocess.run(command, check=False, env=self.environment, timeout=COMMAND_S)
        return done.returncode

    def _short(self, word: str | Path) -> str:
        return str(word).replace(f"{self.root}/", "").replace(f"{Path.cwd()}/", "")

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every command: as the service units set it."""
        return os.environ | {
            "FLEET_HOME": str(self.home),
            "PYTHONSAFEPATH": "1",
            "MALLOC_ARENA_MAX": "1",
            "XDG_STATE_HOME": str(self.root / "state"),
        }

    @property
    def release_key(self) -> Path:
        """The key that signs packages."""
        return offline_directory(self.home) / RELEASE_KEY_FILE

    def initialize(self) -> None:
        """Make the controller's home: keys, certificates, trust root, database, broker settings."""
        ports = {"--api-port": free_port(), "--broker-port": free_port()}
        ports["--device-port"] = self.device_port = free_port()
        words = [str(word) for pair in ports.items() for word in pair]
        self.fleet("init", self.home, *words)
        self.broker_port = ports["--broker-port"]
        self._commands["broker"] = [str(BIN / "fleet"), "broker", "run", str(self.home)]
        self._commands["controller"] = [str(BIN / "fleet"), "controller", "run", str(self.home)]

    def add_device(self, name: str, profile: Path, token: str, labels: dict[str, str]) -> Device:
        """Prepare a device: its state directory, its board and its configuration."""
        directory = self.root / "devices" / name
        directory.mkdir(parents=True)
        (directory / "token").touch(mode=0o600)
        (directory / "token").write_text(token)
        board = Board(directory / "sysfs")
        port = free_port()
        config = directory / "agent.toml"
        lines = [
            f"device = {json.dumps(name)}",
            f"state_dir = {json.dumps(str(directory / 'state'))}",
            f"profile = {json.dumps(str(profile))}",
            f"trust = {json.dumps(str(self.home / 'root.json'))}",
            f"token_file = {json.dumps(str(directory / 'token'))}",
            f"sysfs_root = {json.dumps(str(board.root))}",
            "sense_interval_s = 0.5",
            "telemetry_interval_s = 1.0",
            "confirm_s = 1.0",
            "[broker]",
            f"port = {self.broker_port}",
            f"ca_file = {json.dumps(str(self.home / CA_FILE))}",
            "[endpoint]",
            f"port = {port}",
            "[labels]",
            *(f"{key} = {json.dumps(value)}" for key, value in labels.items()),
        ]
        config.write_text("\n".join(lines) + "\n")
        self._commands[name] = [str(self._agents / "fleet-agent"), "run", "--config", str(config)]
        device = Device(name, profile, config, port, board, labels)
        self.devices[name] = device
        return device

    def set_command(self, name: str, command: list[str]) -> None:
        """Let a device run another program than `fleet-agent`."""
        self._commands[name] = command

    def start(self, name: str) -> None:
        """Start a process of the box; a device's as its unit does."""
        optimized = {"PYTHONOPTIMIZE": "2"} if name in self.devices else {}
        with (self.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment | optimized,
            )  # fmt: skip

    def kill(self, name: str) -> None:
        """End a process at once, as a power cut would: SIGKILL."""
        process = self._running.pop(name)
        process.kill()
        process.wait(timeout=END_S)

    def pid(self, name: str) -> int | None:
        """Return the process id, or None when it does not run."""
        process = self._running.get(name)
        return process.pid if process is not None and process.poll() is None else None

    def log_tail(self, name: str, lines: int = 5) -> str:
        """Return the last lines of a log."""
        path = self.logs / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def stop(self) -> list[str]:
        """End everything, politely first.

        Returns:
            What was found running afterwards and had to be ended; empty when all went well.
        """
        self._stop_boards.set()
        self._boards.join()
        family = {
            name: [psutil.Process(p.pid), *psutil.Process(p.pid).children(recursive=True)]
            for name, p in self._running.items()
            if p.poll() is None
        }
        devices = [name for name in self._running if name not in {"broker", "controller"}]
        for group in (devices, ["controller"], ["broker"]):
            ending = [self._running[name] for name in group if self.pid(name) is not None]
            for process in ending:
                process.send_signal(signal.SIGTERM)
            for process in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=END_S)
        left = [(name, p) for name, group in family.items() for p in group if p.is_running()]
        left = [(name, p) for name, p in left if p.status() != psutil.STATUS_ZOMBIE]
        for _name, process_left in left:
            with contextlib.suppress(psutil.Error):
                process_left.kill()
        return [f"{name} (pid {p.pid})" for name, p in left]

    def _move_boards(self) -> None:
        while not self._stop_boards.wait(STEP_S):
            for name, device in list(self.devices.items()):
                device.board.step(self.pid(name), STEP_S)


def until(what: str, true: Any, timeout_s: float) -> None:  # noqa: ANN401 - any callable
    """Wait until a condition holds.

    Args:
        what: Named when it does not come true.
        true: Called again and again; its errors mean not yet.
        timeout_s: How long.

    Raises:
        BoxError: It did not come true in time.
        EndedError: What is waited for has ended.
    """
    end = time.monotonic() + timeout_s
    fault = ""
    while time.monotonic() < end:
        try:
            if true():
                return
            fault = ""
        except EndedError:
            raise
        except (BoxError, OSError, LookupError, ValueError) as exc:
            fault = f": {exc}"
        time.sleep(0.2)
    raise BoxError(f"waited {timeout_s:.0f} s for {what}{fault}")


@contextlib.contextmanager
def stopping(box: Box) -> Iterator[Box]:
    """Stop a box whatever happens."""
    try:
        yield box
    finally:
        box.stop()
