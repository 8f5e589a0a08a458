"""The controller as a process has it: threads, sockets, a real broker."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from controller.app.logs import JsonFormatter
from controller.app.run import REPLACED_STATUS, run
from controller.app.service import Controller
from controller.config import BrokerConfig, ControllerConfig, load_config
from controller.errors import ListenError, SettingsError, StorageError
from controller.services.enrolment import MAX_REQUEST_BYTES
from examples.digits.box import free_port
from tests.simulators.broker import RunningBroker, running_broker
from tests.simulators.controller_fleet import API_TOKEN, MemoryAccess, make_home
from tests.simulators.packages import PROFILE, TRUST, two_variants
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.transport import MemoryHub
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.desired import DESIRED_PAYLOAD_TYPE, DesiredState
from wire.enrolling import EnrolReply, EnrolRequest
from wire.enrolment import enrol_proof
from wire.files import lock
from wire.installs import InstallReport
from wire.messages import decode_message
from wire.mqtt import MqttTransport
from wire.presence import Hello
from wire.transport import Received
from wire.trust.envelope import SigningKey

ONE = two_variants("1")


def home(directory: Path, port: int) -> ControllerConfig:
    config = make_home(directory, f"sqlite:///{directory / 'control.db'}")
    return msgspec.structs.replace(config, broker=BrokerConfig(host="127.0.0.1", port=port))


@contextmanager
def started(config: ControllerConfig) -> Iterator[tuple[Controller, httpx.Client]]:
    controller = Controller(config, MemoryAccess())
    controller.start()
    host, port = controller.api_address
    headers = {"Authorization": f"Bearer {API_TOKEN}"}
    try:
        with httpx.Client(base_url=f"http://{host}:{port}", headers=headers) as api:
            yield controller, api
    finally:
        controller.stop()
    assert not [t for t in threading.enumerate() if t.name in {"api", "inbox", "ticker"}]


def connected(api: httpx.Client) -> bool:
    answer: bool = api.get("/v1/health").json()["broker_connected"]
    return answer


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with running_broker() as made:
        yield made


@pytest.mark.broker
def test_a_release_reaches_a_device_over_a_real_broker(
    broker: RunningBroker, tmp_path: Path
) -> None:
    got: list[Received] = []
    device = MqttTransport(broker.address, client_id="cam-1")
    device.subscribe(topics.all_down("cam-1"))
    device.subscribe(topics.enrol_reply("cam-1"))
    up = threading.Event()
    device.start(got.append, lambda connection: up.set() if connection.up else None)

    def last(topic: str) -> bytes:
        until(lambda: [r for r in got if r.topic == topic], f"nothing came on {topic}")
        return [r for r in got if r.topic == topic][-1].payload

    with started(home(tmp_path, broker.port)) as (_, api):
        assert up.wait(PATIENCE_S)
        until(lambda: connected(api), "no broker")
        token = api.post("/v1/tokens", json={}).json()["token"]
        key, password = SigningKey(b"k" * 32), "a password of the device"
        request = EnrolRequest(
            device="cam-1",
            token=token,
            public_key=base64.b64encode(key.public_key).decode(),
            password=password,
            signature=base64.b64encode(key.sign(enrol_proof("cam-1", token, password))).decode(),
            profile=PROFILE,
        )
        device.publish(topics.enrol_request("cam-1"), to_json(request))
        reply = decode_message(last(topics.enrol_reply("cam-1")), EnrolReply)
        assert reply.accepted
        hello = Hello(
            device="cam-1",
            boot_id="b",
            agent_version="1",
            profile=PROFILE,
            revision=0,
            release=None,
            variant=None,
        )
        device.publish(topics.up("cam-1", "hello"), to_json(hello))
        for blob in ONE.blobs:
            api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob).raise_for_status()
        body = {"envelope_sha256": ONE.ref.envelope_sha256}
        api.post("/v1/releases", json=body).raise_for_status()
        rollout = api.post("/v1/rollouts", json={"release": "digits:1"}).json()["id"]
        payload = TRUST.unseal(
            last(topics.down("cam-1", "desired")),
            role="director",
            payload_type=DESIRED_PAYLOAD_TYPE,
        )
        assert decode_message(payload, DesiredState).release == ONE.ref
        report = InstallReport(
            device="cam-1",
            revision=1,
            digest=ONE.digest,
            phase="idle",
            outcome="succeeded",
            active=ONE.digest,
        )
        device.publish(topics.up("cam-1", "report"), to_json(report))
        url = f"/v1/rollouts/{rollout}"
        until(lambda: api.get(url).json()["state"] == "succeeded", "the rollout did not end")
    device.close()


@pytest.mark.broker
def test_a_broker_that_comes_and_goes(
    broker: RunningBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker.kill()
    with started(home(tmp_path, broker.port)) as (_, api):
        until(lambda: "cannot reach the broker" in caplog.text, "it did not say that there is none")
        assert api.get("/v1/health").json()["status"] == "degraded"
        assert api.get("/v1/devices").json() == []
        broker.start()
        until(lambda: connected(api), "it did not connect")
        broker.kill()
        until(lambda: not connected(api), "it did not notice")
        broker.start()
        until(lambda: connected(api), "it did not come back")
    assert "connected with the broker" in caplog.text
    assert "lost the broker" in caplog.text


def test_a_large_request_to_enrol_is_dropped_before_it_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = MemoryHub()
    controller = Controller(home(tmp_path, free_port()), MemoryAccess(), connect=hub.connect)
    controller.start()
    try:
        topic = topics.enrol_request("cam-1")
        hub.deliver(Received(topic, bytes(MAX_REQUEST_BYTES + 1)))
        hub.deliver(Received(topic, b"of a size that may wait"))
        until(lambda: "EnrolRequest" in caplog.text, lambda: f"what comes last: {caplog.text}")
    finally:
        controller.stop()
    assert f"over {MAX_REQUEST_BYTES} bytes" not in caplog.text


def test_a_slow_client_does_not_keep_it_from_stopping(tmp_path: Path) -> None:
    with started(home(tmp_path, free_port())) as (controller, _):
        slow = socket.create_connection(controller.api_address)
        slow.sendall(b"POST /v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n")
        slow.sendall(f"Authorization: Bearer {API_TOKEN}\r\n\r\n".encode())
    slow.close()


def test_an_occupied_port_is_one_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = home(tmp_path, free_port())
        api = msgspec.structs.replace(config.api, port=port)
        with pytest.raises(ListenError) as caught:
            Controller(msgspec.structs.replace(config, api=api), MemoryAccess())
    assert str(port) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_one_clear_error(tmp_path: Path) -> None:
    config = home(tmp_path, free_port())
    (tmp_path / "file").write_text("")
    under_a_file = str(tmp_path / "file" / "x")
    replace = msgspec.structs.replace
    for broken, kind in (
        (replace(config, director_key_file=str(tmp_path / "none")), SettingsError),
        (replace(config, trust_file=str(tmp_path / "none")), SettingsError),
        (replace(config, data_dir=under_a_file), StorageError),
        (replace(config, blobs_dir=under_a_file), StorageError),
    ):
        with pytest.raises(kind) as caught:
            Controller(broken, MemoryAccess())
        assert "\n" not in str(caught.value)


def test_the_log_holds_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with started(home(tmp_path, free_port())) as (_, api):
        token = api.post("/v1/tokens", json={}).json()["token"]
        api.get("/v1/devices", headers={"Authorization": "Bearer guessed-secret"})
    lines = [JsonFormatter().format(record) for record in caplog.records]
    for line in lines:
        json.loads(line)
    for secret in (token, API_TOKEN, "guessed-secret"):
        assert secret not in "\n".join(lines)


PROGRAM = """
import sys
from pathlib import Path
from controller.broker.access import OpenAccess
from controller.config import (load_config)
from controller.app.run import run
sys.exit(run(load_config(Path(sys.argv[1])), lambda config: OpenAccess()))
"""


@contextmanager
def process(directory: Path, broker_port: int) -> Iterator[subprocess.Popen[str]]:
    """Run a controller as a process that listens."""
    directory.mkdir(exist_ok=True)
    home(directory, broker_port)
    (directory / "controller.toml").write_text(
        f'database_url = "sqlite:///{directory}/control.db"\n[api]\nport = 0\n'
        f"[broker]\nport = {broker_port}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(directory / "controller.toml")],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as made:
        try:
            yield made
        finally:
            made.kill()


def until_it_says(running: subprocess.Popen[str], *words: str) -> None:
    """Read a controller's log until it has said all of these, in any order."""
    assert running.stderr is not None
    left = set(words)
    for line in running.stderr:
        left -= {word for word in left if word in json.loads(line)["message"]}
        if not left:
            return
    raise AssertionError(f"it ended and did not say {left}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_ends_when_told(tmp_path: Path, number: signal.Signals) -> None:
    with process(tmp_path, free_port()) as running:
        until_it_says(running, "listens")
        running.send_signal(number)
        _, rest = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, rest
    assert "Traceback" not in rest


@pytest.mark.broker
def test_of_two_controllers_with_one_key_the_first_ends(
    broker: RunningBroker, tmp_path: Path
) -> None:
    with process(tmp_path / "first", broker.port) as first:
        until_it_says(first, "connected with the broker")
        with process(tmp_path / "copy", broker.port) as copy:
            until_it_says(copy, "connected with the broker")
            _, rest = first.communicate(timeout=PATIENCE_S)
            assert first.returncode == REPLACED_STATUS, rest
            assert "another controller with the same director's key has connected" in rest
            copy.send_signal(signal.SIGTERM)
            _, rest = copy.communicate(timeout=PATIENCE_S)
    assert (copy.returncode, "another controller" in rest) == (0, False)


def test_a_second_controller_on_one_directory_is_refused(tmp_path: Path) -> None:
    home(tmp_path, free_port())
    (tmp_path / "controller.toml").write_text(
        f'database_url = "sqlite:///{tmp_path}/control.db"\n[api]\nport = 0\n'
        f"[broker]\nport = {free_port()}\n"
    )
    config = load_config(tmp_path / "controller.toml")
    held = lock(Path(config.data_dir))
    assert held is not None
    with held, pytest.raises(StorageError, match="another controller uses the data directory"):
        run(config, lambda _config: MemoryAccess())
