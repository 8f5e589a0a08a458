"""An agent as a process that serves others of its site, and one that fetches from another."""

from __future__ import annotations

import http.client
import signal
from pathlib import Path

import msgspec
import pytest

from examples.digits.box import free_port
from tests.simulators.agent_process import (
    DEVICE,
    FIRST,
    Controller,
    Device,
    bring_to_serve,
    null_package,
)
from tests.simulators.broker import RunningBroker
from tests.simulators.packages import DIRECTOR_KEY, desired
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.peers import Neighbour
from wire.clock import SystemClock
from wire.codec import to_json
from wire.delivery import SOURCES_PAYLOAD_TYPE, BlobSources, SourceRequest, Sources
from wire.desired import DESIRED_PAYLOAD_TYPE
from wire.messages import decode_message
from wire.mqtt import MqttTransport
from wire.presence import Hello
from wire.topics import down, up
from wire.transport import Received
from wire.trust.envelope import seal
from wire.trust.peer_links import peer_path

pytestmark = pytest.mark.broker


def test_it_tells_where_it_serves_and_gives_each_file_of_its_package(
    device: Device, controller: Controller
) -> None:
    port = free_port()
    with device.config_path.open("a") as file:
        file.write(f'[peers]\nlisten = "0.0.0.0:{port}"\n')
    bring_to_serve(device, controller)
    told = {hello.peer_url for hello in controller.all("hello", Hello)}
    assert told == {f"http://127.0.0.1:{port}"}
    until_s = int(SystemClock().now_s()) + 600
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    for entry in FIRST.index.files:
        link = peer_path(
            DIRECTOR_KEY, device="dev-2", peer=DEVICE, sha256=entry.sha256, until_s=until_s
        )
        connection.request("GET", link)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, FIRST.files[entry.path])
    connection.close()
    log = (device.directory / "log").read_text()
    assert '"listening": "0.0.0.0' in log
    assert "signature=" not in log
    assert device.end(signal.SIGTERM) == 0
    controller.heard.clear()
    device.config_path.write_text(device.config_path.read_text().partition("[peers]")[0])
    device.start()
    hello = until(lambda: controller.all("hello", Hello), "a hello")[0]
    assert hello.peer_url is msgspec.UNSET


def test_it_fetches_from_a_neighbour_what_messages_would_bring_too(
    device: Device, controller: Controller, anonymous_broker: RunningBroker, tmp_path: Path
) -> None:
    text = device.config_path.read_text()
    device.config_path.write_text(f'{text}[delivery]\nsources = ["local", "peer", "mqtt"]\n')
    made = null_package("2.0.0", padding_bytes=512 * 1024)
    large = {entry.sha256 for entry in made.index.files if entry.size_bytes >= 512 * 1024}
    director = MqttTransport(anonymous_broker.address, client_id="director")
    with Neighbour(tmp_path / "neighbour").running() as neighbour:
        neighbour.put(made)

        def answer(received: Received) -> None:
            request = decode_message(received.payload, SourceRequest)
            known = tuple(
                BlobSources(sha256=each, peers=(neighbour.url(each, DEVICE),))
                for each in request.blobs
            )
            sources = Sources(device=DEVICE, nonce=request.nonce, blobs=known, valid_s=60.0)
            signed = seal(to_json(sources), payload_type=SOURCES_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
            director.publish(down(DEVICE, "sources"), signed)

        director.subscribe(up(DEVICE, "source_request"))
        director.start(answer, lambda _connection: None)
        device.start()
        until(lambda: controller.all("hello", Hello), "a hello")
        controller.chunks.add(*made.blobs)
        state, _ = desired(1, made)
        state = msgspec.structs.replace(state, has_sources=True)
        envelope = seal(to_json(state), payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
        controller.transport.publish(down(DEVICE, "desired"), envelope)
        outcome = controller.outcome(1)
    director.close()
    assert outcome.outcome == "succeeded"
    assert isinstance(outcome.bytes_by_source, dict)
    assert outcome.bytes_by_source["peer"] >= len(large) * 512 * 1024
    assert not large & {sha256 for sha256, _ in controller.chunks.sent}
