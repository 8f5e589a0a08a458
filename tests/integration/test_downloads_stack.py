"""A controller and a broker as users start them: a device asks over MQTT and downloads over TLS."""

from __future__ import annotations

import http.client
import ssl
import tarfile
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from examples.digits.box import free_port
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Puppet, Stack, fleet_here, running_stack
from tests.simulators.stack_devices import publish
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.delivery import SOURCES_PAYLOAD_TYPE, SourceRequest, Sources
from wire.messages import decode_message
from wire.transport import Received
from wire.trust.envelope import SigningKey

pytestmark = pytest.mark.broker
SETTINGS = """
[downloads]
port = {port}
cert_file = "broker/server.pem"
key_file = "broker/server.pem"
"""


class AskingPuppet(Puppet):
    """A device that asks for sources when it is told to."""

    def __init__(self, stack: Stack, name: str, token: str) -> None:
        self.envelopes: list[bytes] = []
        super().__init__(stack, name, token, "succeeded")

    def _on_message(self, received: Received) -> None:
        if topics.down_kind(received.topic) == "sources":
            self.envelopes.append(received.payload)
        super()._on_message(received)

    def ask(self, *blobs: str) -> Sources:
        request = SourceRequest(device=self.name, nonce="n", blobs=blobs)
        self.transport.publish(topics.up(self.name, "source_request"), to_json(request))
        until(lambda: self.envelopes, "an answer")
        payload = self._trust.unseal(
            self.envelopes[-1], role="director", payload_type=SOURCES_PAYLOAD_TYPE
        )
        return decode_message(payload, Sources)


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack(SETTINGS.format(port=free_port())) as made:
        yield made


def roll_out(stack: Stack) -> dict[str, bytes]:
    """Publish a release and roll it out; return its blobs."""
    made = package(
        "1", [(variant("best"), b"best" * 100_000)], key=SigningKey(stack.release_key.read_bytes())
    )
    publish(stack, made)
    stack.ok("rollout", "create", "digits:1", "--watch")
    return {sha256_hex(blob): blob for blob in made.blobs}


def test_a_device_downloads_its_release_over_tls(stack: Stack) -> None:
    token = stack.ok("token", "create", "--json").json["token"]
    device = AskingPuppet(stack, "cam-1", token)
    try:
        blobs = roll_out(stack)
        answer = device.ask(*blobs)
    finally:
        device.transport.close()
    tls = ssl.create_default_context(cafile=str(stack.home / "ca.pem"))
    assert [each.sha256 for each in answer.blobs] == list(blobs)
    for each in answer.blobs:
        parts = urlsplit(each.urls[0])
        assert (parts.scheme, parts.hostname) == ("https", "127.0.0.1")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", parts.port, timeout=PATIENCE_S, context=tls
        )
        connection.request("GET", f"{parts.path}?{parts.query}", headers={"Range": "bytes=0-2"})
        got = connection.getresponse()
        assert (got.status, got.read()) == (206, blobs[each.sha256][:3])
        connection.close()
    assert stack.ok("controller", "status", "--json").json["downloads_served"] is True
    assert "downloads served" in stack.ok("controller", "status").out
    saved = stack.home.parent / "saved.tar"
    done = fleet_here("controller", "backup", str(stack.home), str(saved))
    assert done.code == 0, done.err
    with tarfile.open(saved) as archive:
        assert "home/downloads.key" in archive.getnames()
    assert "signature=" not in stack.log
    assert set(stack.stop()) == {0}
