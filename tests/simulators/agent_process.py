"""An agent as a process with a board of files; the test plays the controller at a real broker."""

from __future__ import annotations

import http.client
import json
import queue
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pytest

from agent.app.config import AgentConfig
from agent.app.config_file import load_config
from agent.app.control import SOCKET_FILE, ask
from runtime_adapters.golden import save_golden
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.simulators.broker import RunningBroker, running_broker
from tests.simulators.chunk_server import ChunkServer
from tests.simulators.packages import (
    DIRECTOR_KEY,
    PROFILE,
    RELEASE_KEY,
    TRUST,
    SignedPackage,
    desired,
    enrol_reply_to,
    package,
    variant,
)
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.repository import Repository
from wire.codec import to_json
from wire.enrolling import EnrolRequest
from wire.installs import InstallReport
from wire.messages import M, decode_message
from wire.metadata import MetadataFile, split
from wire.mqtt import MqttTransport
from wire.package.golden import Golden, Tolerance
from wire.package.index import CHUNK_BYTES, asset_uri
from wire.package.processing import Postprocessing
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant
from wire.policy import PolicySpec
from wire.presence import Hello
from wire.telemetry import Event, TelemetryAck, TelemetryBatch
from wire.topics import ALL_UP, ENROL_REQUESTS, down, enrol_reply, parse_up
from wire.transport import Received
from wire.trust.envelope import SigningKey

DEVICE = "dev-1"
TOKEN = "token-of-this-test"
POLICY = PolicySpec(kind="rules", dwell_s=0.2)
MODELS = {"best": b'{"seed": 1}', "small": b'{"seed": 2}'}
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Controller:
    """The other side of the broker, as far as a device sees it."""

    def __init__(self, broker: RunningBroker) -> None:
        self.transport = MqttTransport(broker.address, client_id="controller")
        self.chunks = ChunkServer(self.transport)
        self.heard: list[Received] = []
        self.enrolments: list[EnrolRequest] = []
        self.events: list[Event] = []
        self.key = DIRECTOR_KEY
        """Signs the answers to enrolments."""

        self.metadata: tuple[MetadataFile, ...] | msgspec.UnsetType = msgspec.UNSET
        """Goes with answers to enrolments and greetings; unset where devices have a trust file."""

        self._queue: queue.Queue[Received] = queue.Queue()
        self.transport.subscribe(ALL_UP)
        self.transport.subscribe(ENROL_REQUESTS)
        self.transport.start(self._hear, lambda _c: None)

    def _hear(self, received: Received) -> None:
        if received.topic.endswith("/request"):
            request = decode_message(received.payload, EnrolRequest)
            self.enrolments.append(request)
            is_known = request.token == TOKEN
            reply = enrol_reply_to(
                received.payload, accepted=is_known, key=self.key, metadata=self.metadata
            )
            self.transport.publish(enrol_reply(request.device), reply)
            return
        kind = parse_up(received.topic).kind
        if kind == "chunk_request":
            self.chunks.hear(received)
        elif kind == "hello":
            self._tell_metadata()
        elif kind == "telemetry":
            batch = decode_message(received.payload, TelemetryBatch, packed=True)
            self.events += batch.events
            ack = TelemetryAck(boot_id=batch.boot_id, sequences=(batch.sequence,))
            self.transport.publish(down(DEVICE, "telemetry_ack"), to_json(ack))
        self.heard.append(received)

    def all(self, kind: str, message: type[M]) -> list[M]:
        return [
            decode_message(r.payload, message)
            for r in list(self.heard)
            if parse_up(r.topic).kind == kind
        ]

    def desire(self, revision: int, wanted: SignedPackage | None, **how: Any) -> None:
        if wanted is not None:
            self.chunks.add(*wanted.blobs)
        _, envelope = desired(revision, wanted, policy=POLICY, **how)
        assert self.transport.publish(down(DEVICE, "desired"), envelope)

    def _tell_metadata(self) -> None:
        """Send a greeting device what it may lack."""
        if self.metadata is not msgspec.UNSET:
            for message in split(self.metadata):
                self.transport.publish(down(DEVICE, "metadata"), to_json(message))

    def outcome(self, revision: int) -> InstallReport:
        def find() -> InstallReport | None:
            reports = self.all("report", InstallReport)
            done = [r for r in reports if r.revision == revision and r.outcome != "running"]
            return done[-1] if done else None

        return until(find, f"the outcome of revision {revision}")

    def event(self, kind: str, fits: Callable[[Event], bool] = lambda _e: True) -> Event:
        return until(
            lambda: next((e for e in self.events if e.kind == kind and fits(e)), None),
            f"an event {kind}",
        )


class Listening(Protocol):
    """A broker, or what looks like one."""

    @property
    def port(self) -> int: ...


class At(NamedTuple):
    """Where the device looks for its broker."""

    port: int


class Device:
    """An agent process with its files and a board whose sensors are files."""

    def __init__(self, directory: Path, broker: Listening) -> None:
        self.directory = directory
        self.sysfs, self.procfs = directory / "sys", directory / "proc"
        self.set_temperature_c(40)
        self.procfs.mkdir()
        (self.procfs / "meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable: 3000000 kB\n")
        (self.procfs / "loadavg").write_text("0.10 0.10 0.10 1/100 1000\n")
        (directory / "trust.json").write_bytes(TRUST.to_bytes())
        (directory / "token").write_text(f"{TOKEN}\n")
        (directory / "profile.toml").write_text(
            f'name = "{PROFILE.name}"\narchitecture = "x86_64"\nruntimes = ["null"]\n'
            f"memory_bytes = {PROFILE.memory_bytes}\nstorage_bytes = {PROFILE.storage_bytes}\n"
        )
        self.config_path = directory / "agent.toml"
        self.config_path.write_text(
            f'device = "{DEVICE}"\nstate_dir = "state"\nprofile = "profile.toml"\n'
            'trust = "trust.json"\ntoken_file = "token"\nsysfs_root = "sys"\nprocfs_root = "proc"\n'
            "sense_interval_s = 0.1\ntelemetry_interval_s = 0.2\nconfirm_s = 0.5\n"
            f'[broker]\nhost = "127.0.0.1"\nport = {broker.port}\n[endpoint]\nport = 0\n'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def set_route(self, interface: str | None) -> None:
        """Let the default route go by an interface, or by none."""
        table = self.procfs / "net"
        table.mkdir(exist_ok=True)
        lines = ["Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"]
        if interface is not None:
            lines.append(f"{interface}\t00000000\t010200C0\t0003\t0 0 0\t00000000\t0 0 0")
        (table / "route.new").write_text("\n".join(lines) + "\n")
        (table / "route.new").replace(table / "route")

    @property
    def config(self) -> AgentConfig:
        return load_config(self.config_path)

    def set_runtimes(self, *names: str) -> None:
        """Write other runtimes into the profile."""
        path = self.directory / "profile.toml"
        path.write_text(path.read_text().replace('["null"]', json.dumps(names)))

    def set_temperature_c(self, temperature_c: float) -> None:
        zone = self.sysfs / "class/thermal/thermal_zone0"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "type").write_text("cpu-thermal\n")
        (zone / "temp").write_text(f"{int(temperature_c * 1000)}\n")

    def start(self) -> None:
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agent", "run", "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    def end(self, how: signal.Signals) -> int:
        process, self.process = self.process, None
        assert process is not None
        process.send_signal(how)
        return process.wait(PATIENCE_S)

    @property
    def log(self) -> list[dict[str, Any]]:
        lines = (self.directory / "log").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def reasons(self, action: str) -> list[str]:
        return [line["reason"] for line in self.log if line["action"] == action]

    def ask(self, command: str, **arguments: Any) -> Any:
        return ask(self.config.state_dir / SOCKET_FILE, command, arguments)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "agent", *arguments, "--config", str(self.config_path)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def infer(self, address: str = "") -> tuple[dict[str, str], np.ndarray[Any, Any]]:
        """Ask for an inference; return the response's parameters and the output."""
        host, _, port = (address or self.ask("status")["endpoint"]).rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        tensor = {"name": "x", "datatype": "FP32", "shape": [3, 4], "data": X.ravel().tolist()}
        connection.request("POST", "/v2/models/digits/infer", json.dumps({"inputs": [tensor]}))
        response = connection.getresponse()
        body = json.loads(response.read())
        connection.close()
        assert response.status == 200, body
        output = body["outputs"][0]
        return body["parameters"], np.array(output["data"]).reshape(output["shape"])


@pytest.fixture
def anonymous_broker() -> Iterator[RunningBroker]:
    """Run a broker."""
    with running_broker() as broker:
        yield broker


@pytest.fixture
def controller(anonymous_broker: RunningBroker) -> Iterator[Controller]:
    """Connect a controller."""
    controller = Controller(anonymous_broker)
    yield controller
    controller.transport.close()


@pytest.fixture
def device(tmp_path: Path, anonymous_broker: RunningBroker) -> Iterator[Device]:
    """Make a device that is not started."""
    device = Device(tmp_path, anonymous_broker)
    yield device
    if device.process is not None:
        device.end(signal.SIGKILL)


def null_package(
    version: str,
    *,
    name: str = "digits",
    wrong: bool = False,
    names: tuple[str, ...] = ("best", "small"),
    padding_bytes: int = 0,
    key: SigningKey = RELEASE_KEY,
    more_outputs: tuple[TensorSpec, ...] = (),
    postprocessing: dict[str, Postprocessing] | None = None,
) -> SignedPackage:
    """Make a package of null variants with golden samples from the null runtime itself.

    The better one takes longer, though not as long as it declares. Each can bring
    so many bytes more, which no other package has. The variants can have more outputs than `y`,
    and declare what becomes of them.
    """
    pairs, assets = [], {}
    for which, content in [(each, MODELS[each]) for each in names]:
        accuracy, latency_ms = (0.99, 40.0) if which == "best" else (0.90, 5.0)
        options = {"delay_ms": "4"} if which == "best" else {}
        outputs = reference(_answering(variant(which), more_outputs), content)
        files = save_golden({"x": X}, outputs)
        if padding_bytes:
            files["padding.bin"] = random.Random(version + which).randbytes(padding_bytes)
        asset = asset_uri(files)
        assets[asset] = files
        golden = Golden(
            asset=asset,
            samples=3,
            tolerances=dict.fromkeys(outputs, Tolerance(absolute=1e-5, relative=1e-4)),
        )
        made = variant(
            which,
            accuracy=accuracy,
            latency_ms=latency_ms,
            golden=golden,
            options=options | ({"wrong": "1"} if wrong and which == "best" else {}),
        )
        pairs.append((_answering(made, more_outputs, postprocessing), content))
    return package(version, pairs, name=name, assets=assets, key=key, chunk_bytes=CHUNK_BYTES)


def _answering(
    made: Variant,
    more_outputs: tuple[TensorSpec, ...],
    postprocessing: dict[str, Postprocessing] | None = None,
) -> Variant:
    info = msgspec.structs.replace(
        made.info,
        outputs=(*made.info.outputs, *more_outputs),
        postprocessing=postprocessing or msgspec.UNSET,
    )
    return msgspec.structs.replace(made, info=info)


def reference(
    made: Any, content: bytes, values: np.ndarray[Any, Any] = X
) -> dict[str, np.ndarray[Any, Any]]:
    """Return what a null model answers."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "model.json").write_bytes(content)
        session = open_session(Path(directory), made.info, Limits())
        return session.infer({"x": values})


FIRST = null_package("1.0.0")


@pytest.fixture
def serving(device: Device, controller: Controller) -> Device:
    """Return a device that is enrolled and serves the first package."""
    bring_to_serve(device, controller)
    return device


def bring_to_serve(device: Device, controller: Controller) -> None:
    """Start a device, let it enrol, and let it install the first package."""
    device.start()
    until(lambda: controller.all("hello", Hello), "a hello")
    controller.desire(1, FIRST)
    assert controller.outcome(1).outcome == "succeeded"


def bring_listed(device: Device, controller: Controller, fleet: Repository) -> None:
    """Start a device that believes the metadata of a fleet; let it install the first package."""
    fleet.write_root(device.directory / "root.json")
    config = device.config_path.read_text()
    device.config_path.write_text(config.replace('"trust.json"', '"root.json"'))
    fleet.list_package(FIRST)
    controller.metadata = fleet.files()
    bring_to_serve(device, controller)
