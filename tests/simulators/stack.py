"""A controller and a broker as users start them, and devices that do as they are told.

```
with running_stack() as stack:
    stack.ok("device", "list")
```
"""

from __future__ import annotations

import base64
import io
import json
import os
import pty
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from controller.app.home import CA_FILE, CONFIG_FILE, RELEASE_KEY_FILE, offline_directory
from controller.broker.install import locate
from controller.cli import main
from examples.digits.box import free_port
from telemetry.device.recorder import Recorder
from tests.simulators.packages import PROFILE
from tests.simulators.patience import PATIENCE_S, until
from wire import topics
from wire.broker_address import BrokerAddress
from wire.clock import SystemClock
from wire.codec import to_json, to_msgpack
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    NAMED_MODELS,
    ONE_RELEASE,
    DesiredModels,
    DesiredState,
    desired_from_json,
)
from wire.enrolling import EnrolReply, EnrolRequest
from wire.enrolment import enrol_proof, enrol_username
from wire.installs import InstallOutcome, InstallReport, ReleaseRef
from wire.messages import decode_message
from wire.mqtt import MqttTransport
from wire.presence import Hello, Presence, ServedModel
from wire.simulation import Plan
from wire.telemetry import TelemetryBatch
from wire.transport import Connection, Received
from wire.trust.envelope import SigningKey
from wire.trust.root import encode_key, trust_from_bytes

ROOT = Path(__file__).parents[2]
CLOCK = SystemClock()


@dataclass
class Done:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(**changes: str) -> dict[str, str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith("FLEET_")}
    return base | {"PYTHONDONTWRITEBYTECODE": "1", "TZ": "UTC", "COLUMNS": "80"} | changes


def fleet(*arguments: str, **changes: str) -> Done:
    """Run `fleet` and return what it said."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "controller.cli", *arguments],
        env=environment(**changes), cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


class TerminalText(io.StringIO):
    """Text in memory that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def fleet_here(*arguments: str, terminal: bool = False) -> Done:
    """Run `fleet` in this process: the same entry, without a second's start for each command."""
    out, err = TerminalText() if terminal else io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


def fleet_on_terminal(*arguments: str, columns: int = 200, **changes: str) -> Done:
    """Run `fleet` in a process of its own whose output is a terminal of that width."""
    parent, child = pty.openpty()
    termios.tcsetwinsize(child, (50, columns))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "controller.cli", *arguments],
        env=environment(TERM="xterm-256color", COLUMNS=str(columns), **changes), cwd=ROOT,
        stdin=subprocess.DEVNULL, stdout=child, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        os.close(child)
        shown = b""
        try:
            while piece := os.read(parent, 4096):
                shown += piece
        except OSError:  # how Linux says that nobody writes to a terminal any more
            pass
        finally:
            os.close(parent)
        _out, err = process.communicate(timeout=PATIENCE_S)
    return Done(process.returncode, shown.decode(), err.decode())


@dataclass
class Stack:
    """A broker and a controller, each a process of its own, started by the command line."""

    home: Path
    api_port: int
    broker_port: int
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def broker(self) -> BrokerAddress:
        """Where clients connect: over TLS, as by default."""
        return BrokerAddress(port=self.broker_port, ca_file=str(self.home / CA_FILE))

    @property
    def release_key(self) -> Path:
        """The key that signs packages."""
        return offline_directory(self.home) / RELEASE_KEY_FILE

    def run(self, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.home.parent / "stack.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "controller.cli", *arguments, str(self.home)],
                env=environment(), cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start(self) -> None:
        self.run("broker", "run")
        self.run("controller", "run")
        until(self.is_healthy, lambda: f"a controller: {self.log}", step_s=0.05)

    def is_healthy(self) -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.api_port}/v1/health", trust_env=False)
        except httpx.TransportError:
            return False
        return bool(answer.json().get("broker_connected"))

    @property
    def log(self) -> str:
        return (self.home.parent / "stack.log").read_text(errors="replace")[-3000:]

    def stop(self) -> list[int]:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(PATIENCE_S) for process in self.processes]
        self.processes.clear()
        return codes

    def fleet(self, *arguments: str) -> Done:
        return fleet_here(*arguments, "--home", str(self.home))

    def ok(self, *arguments: str) -> Done:
        done = self.fleet(*arguments)
        assert done.code == 0, done.err
        return done


def simulated(stack: Stack, devices: int, **options: Any) -> Plan:
    """Return a plan for so many simulated devices that enrol with a new token.

    Args:
        stack: Their controller and broker, which run.
        devices: How many.
        options: Other fields of the plan.
    """
    usual: dict[str, Any] = {
        "prefix": "sim",
        "numbers": (0, devices),
        "seed": 1,
        "labels": {"simulated": "true"},
        "profile": PROFILE,
        "trust": (stack.home / "trust.json").read_text(),
        "token": stack.ok("token", "create", "--uses", str(devices)).out.strip(),
        "host": "127.0.0.1",
        "port": stack.broker_port,
        "ca_file": str(stack.home / "ca.pem"),
        "faults": {},
    }
    return Plan(**(usual | options))


def shared(one: Stack, folder: Path, database_url: str) -> Stack:
    """Let a second controller share the fleet of one; neither runs yet.

    Args:
        one: The first one, whose fleet is made.
        folder: For the files of the second.
        database_url: The PostgreSQL database of the fleet. Each connects to it with the name of its
            folder.

    Returns:
        The second one, which has the broker of the first.
    """
    two = Stack(home=folder / "home", api_port=free_port(), broker_port=one.broker_port)
    # The second has the files of the first, and the same two folders that controllers write.
    folders = ("blobs", "metadata")
    shutil.copytree(one.home, two.home, ignore=shutil.ignore_patterns(*folders))
    for name in folders:
        (two.home / name).symlink_to(one.home / name)
    for stack in (one, two):
        path = stack.home / CONFIG_FILE
        text = path.read_text().replace("[broker]\n", '[broker]\nshare = "both"\n')
        text = text.replace(f"port = {one.api_port}\n", f"port = {stack.api_port}\n")
        named = f"{database_url}&application_name={stack.home.parent.name}"
        path.write_text(text.replace(database_url, named))
    return two


class Puppet:
    """A device that enrols over MQTT and reports what it is told to.

    With `desired_form=2` it has several models; without, it is an agent of before.
    """

    def __init__(
        self,
        stack: Stack,
        name: str,
        token: str,
        outcome: InstallOutcome,
        *,
        runtimes: tuple[str, ...] = PROFILE.runtimes,
        desired_form: int = ONE_RELEASE,
    ) -> None:
        self.name = name
        self.desired_form = desired_form
        self.revision = 0
        self.actives: dict[str, ReleaseRef] = {}
        """The models of one that has several."""

        self.unloaded: set[str] = set()
        """Those of them that a client has unloaded."""

        self.runtimes = runtimes
        self.peer_url: str | msgspec.UnsetType = msgspec.UNSET
        self.outcome: InstallOutcome = outcome
        self.is_away = False
        self._stack = stack
        self._trust = trust_from_bytes((stack.home / "trust.json").read_bytes())
        self._inbox: queue.Queue[Received | Connection] = queue.Queue()
        self._enrol(token)
        self.transport = self._connect(name, name, f"password of {name}")
        self.transport.subscribe(topics.all_down(name))
        self.transport.start(self._on_message, self._on_connection)

    def _connect(self, client_id: str, username: str, password: str) -> MqttTransport:
        return MqttTransport(
            self._stack.broker,
            client_id=client_id,
            username=username,
            password=password,
        )

    def _enrol(self, token: str) -> None:
        key, _seed = SigningKey.generate()
        password = f"password of {self.name}"
        proof = key.sign(enrol_proof(self.name, token, password))
        request = EnrolRequest(
            device=self.name,
            token=token,
            public_key=encode_key(key.public_key),
            password=password,
            signature=base64.b64encode(proof).decode(),
            profile=PROFILE,
            labels={"site": "berlin"},
        )
        transport = self._connect(f"enrol-{self.name}", enrol_username(token), token)
        transport.subscribe(topics.enrol_reply(self.name))
        transport.start(self._inbox.put, self._inbox.put)
        try:
            assert self._next(Connection).up
            transport.publish(topics.enrol_request(self.name), to_json(request))
            reply = decode_message(self._next(Received).payload, EnrolReply)
            assert reply.accepted, reply.reason
        finally:
            transport.close()

    def _next(self, kind: type) -> Any:
        while True:
            item = self._inbox.get(timeout=PATIENCE_S)
            if isinstance(item, kind):
                return item

    def leave(self) -> None:
        """Say that the device is offline, as its last will does, and hear nothing more."""
        self.is_away = True
        gone = Presence(device=self.name, online=False, boot_id="b")
        self.transport.publish(topics.up(self.name, "presence"), to_json(gone))

    def come_back(self) -> None:
        """Say hello, as on a new connection."""
        self.is_away = False
        self._on_connection(Connection(up=True, refused=False))

    def _on_connection(self, connection: Connection) -> None:
        if connection.up:
            hello = Hello(
                device=self.name, boot_id="b", agent_version="1", profile=PROFILE,
                runtimes=self.runtimes, peer_url=self.peer_url, revision=self.revision,
                release=None, variant=None,
            )  # fmt: skip
            if self.desired_form >= NAMED_MODELS:
                models = tuple(
                    ServedModel(
                        name=name,
                        revision=0,
                        release=ref.digest,
                        variant=None if name in self.unloaded else "best",
                    )
                    for name, ref in self.actives.items()
                )
                hello = msgspec.structs.replace(hello, models=models, desired_form=NAMED_MODELS)
            self.transport.publish(topics.up(self.name, "hello"), to_json(hello))

    def _on_message(self, received: Received) -> None:
        if self.is_away or not received.topic.endswith("/desired"):
            return
        payload = self._trust.unseal(
            received.payload, role="director", payload_type=DESIRED_PAYLOAD_TYPE
        )
        if self.desired_form >= NAMED_MODELS:
            self._take(desired_from_json(payload))
            return
        desired = decode_message(payload, DesiredState)
        if desired.release is not None:
            self._report(desired.revision, desired.release)

    def _take(self, desired: DesiredModels) -> None:
        """Do what an agent with several models does."""
        is_new, self.revision = desired.revision != self.revision, desired.revision
        self.actives = {name: ref for name, ref in self.actives.items() if desired.model(name)}
        for model in desired.models:
            if model.release is not None:
                if self.outcome == "succeeded":
                    self.actives[model.name] = model.release
                self._report(model.revision, model.release, model.name)
        if is_new and all(model.revision != desired.revision for model in desired.models):
            self._on_connection(Connection(up=True, refused=False))

    def _report(
        self, revision: int, release: ReleaseRef, model: str | msgspec.UnsetType = msgspec.UNSET
    ) -> None:
        worked = self.outcome == "succeeded"
        report = InstallReport(
            device=self.name,
            revision=revision,
            model=model,
            digest=release.digest,
            phase="idle" if worked else "probing",
            outcome=self.outcome,
            active=release.digest if worked else None,
            variant="best" if worked else None,
            error_code="" if worked else "agent.probe",
            detail="" if worked else "golden test failed\x1b[2J",
            at_s=CLOCK.now_s(),
        )
        self.transport.publish(topics.up(self.name, "report"), to_json(report))

    def send_telemetry(self, **attributes: str) -> None:
        recorder = Recorder(CLOCK)
        for value in range(1, 101):
            recorder.observe(
                "inference_latency_ms", float(value), {"variant": "best", **attributes}
            )
        recorder.event(
            "switch", "headroom 0.91 is above 0.85",
            {
                "variant": "small",
                "inputs": {"headroom": 0.91},
                "verdicts": {"best": "not the cheapest while hot"},
            },
        )  # fmt: skip
        recorder.event("install", "active", {})
        points, events = recorder.drain()
        batch = TelemetryBatch(
            device=self.name, boot_id="b", sequence=1, points=points, events=events
        )
        self.transport.publish(topics.up(self.name, "telemetry"), to_msgpack(batch))


@contextmanager
def running_stack(settings: str = "", *, only_passwords: bool = False) -> Iterator[Stack]:
    """Run a broker and a controller for the length of a `with` block.

    Args:
        settings: What else stands in `controller.toml`.
        only_passwords: Be a directory from before devices had certificates.
    """
    if locate(Path("/nowhere")) is None:
        pytest.skip("Mosquitto is not installed")
    with tempfile.TemporaryDirectory(prefix="edgefleet-cli-") as directory:
        home = Path(directory) / "home"
        stack = Stack(home=home, api_port=free_port(), broker_port=free_port())
        made = fleet(
            "init", str(home), "--api-port", str(stack.api_port),
            "--broker-port", str(stack.broker_port), "--device-port", str(free_port()),
        )  # fmt: skip
        assert made.code == 0, made.err
        made_settings = (home / CONFIG_FILE).read_text()
        if only_passwords:
            made_settings = made_settings.partition("[device_certificates]")[0]
        # Puppets have passwords.
        made_settings = made_settings.replace("accept_passwords = false", "accept_passwords = true")
        (home / CONFIG_FILE).write_text(made_settings + settings)
        try:
            stack.start()
            yield stack
        finally:
            for process in stack.processes:
                process.kill()
                process.wait(PATIENCE_S)
