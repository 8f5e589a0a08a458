"""Devices ask where else they can get their release, and download it there."""

from __future__ import annotations

import http.client
import logging
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from controller.app.backup import named_outside
from controller.app.downloads import SECRET_FILE, link_secret, read_credentials
from controller.app.service import Controller
from controller.config import ControllerConfig
from controller.delivery.sources import BURST, SourceServer, Ways
from controller.download_settings import DownloadsConfig, LinkPlace, PlainPlace, S3Place
from controller.errors import ListenError, SettingsError, StorageError
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import Fleet, MemoryAccess, make_home
from tests.simulators.packages import DIRECTOR_KEY, TRUST, two_variants
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.transport import MemoryHub
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.delivery import SOURCES_PAYLOAD_TYPE, DeltaSource, SourceRequest, Sources
from wire.errors import FleetError
from wire.messages import decode_message
from wire.transport import Received

ONE = two_variants("1")
BLOBS = {sha256_hex(blob): blob for blob in ONE.blobs}
SECRET_BLOB = b"of a release that no device has to run"
CAM, OTHER = "cam-000", "cam-001"
ACCOUNT = "[default]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = the secret key\n"


on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For tests that ask the database nothing new."""


class Asking:
    """A fleet with downloads, of which one device has to run a release."""

    def __init__(self, database_url: str, directory: Path, downloads: DownloadsConfig) -> None:
        self.fleet = fleet = Fleet(database_url, directory)
        fleet.config = msgspec.structs.replace(fleet.config, downloads=downloads)
        fleet.kill()
        fleet.enrol(CAM, place="roof")
        fleet.enrol(OTHER, place="cellar")
        self.answers: list[Received] = []
        for device in (CAM, OTHER):
            fleet.hub.on(topics.down(device, "sources"), self.answers.append)
        fleet.roll_out(fleet.publish(ONE), selector="place=roof")
        fleet.step()
        assert [each.release for each in fleet.devices[CAM].accepted][-1] == ONE.ref
        fleet.publish(two_variants("2", best=SECRET_BLOB.decode()))
        fleet.controller.delivery.start()
        fleet.controller.downloads.start()

    def send(self, device: str, blobs: tuple[str, ...], topic_of: str = "") -> None:
        request = SourceRequest(device=device, nonce="nonce", blobs=blobs)
        topic = topics.up(topic_of or device, "source_request")
        self.fleet.hub.deliver(Received(topic, to_json(request)))

    def ask(self, device: str, *blobs: str) -> Sources:
        before = len(self.sent_to(device))
        self.send(device, blobs)
        until(lambda: len(self.sent_to(device)) > before, "sources")
        return opened(self.sent_to(device)[-1])

    def sent_to(self, device: str) -> list[Received]:
        return [each for each in self.answers if each.topic == topics.down(device, "sources")]


def opened(received: Received) -> Sources:
    payload = TRUST.unseal(received.payload, role="director", payload_type=SOURCES_PAYLOAD_TYPE)
    return decode_message(payload, Sources)


def get(url: str) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def asking(database_url: str, tmp_path: Path) -> Iterator[Asking]:
    made = Asking(database_url, tmp_path, DownloadsConfig(port=0, valid_s=3600))
    yield made
    made.fleet.close()


def test_a_device_downloads_its_release_and_nothing_else(asking: Asking) -> None:
    hidden = sha256_hex(SECRET_BLOB)
    answer = asking.ask(CAM, *BLOBS, hidden, "f" * 64)
    assert (answer.device, answer.nonce, answer.valid_s) == (CAM, "nonce", 3600)
    assert {each.sha256 for each in answer.blobs} == set(BLOBS)
    for each in answer.blobs:
        assert (each.delta, each.delta_in_s) == (None, 0)
        (url,) = each.urls
        assert get(url) == (200, BLOBS[each.sha256])
        status, _ = get(url.replace(each.sha256, hidden))
        assert status == 403, "the link of another blob"
    asking.fleet.clock.advance(3600)
    assert get(answer.blobs[0].urls[0])[0] == 403, "it has expired"


@on_sqlite
def test_a_device_without_a_release_learns_nothing(asking: Asking) -> None:
    assert asking.ask(OTHER, *BLOBS).blobs == ()


@on_sqlite
def test_no_links_to_a_revoked_release(asking: Asking) -> None:
    asking.fleet.api.post("/v1/releases/digits:1/revoke").raise_for_status()
    assert asking.ask(CAM, *BLOBS).blobs == ()


@on_sqlite
def test_what_no_correct_device_sends_is_refused_with_a_line(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    too_many = tuple(f"{number:064x}" for number in range(65))
    asking.send(CAM, tuple(BLOBS), topic_of=OTHER)
    asking.send(CAM, too_many)
    asking.fleet.hub.deliver(Received(topics.up(CAM, "source_request"), b"not json"))
    asking.ask(CAM, *BLOBS)
    assert len(asking.answers) == 1, "of the others there was no answer"
    lines = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(lines) == 2, "the first of each device"
    assert "another device" in lines[0]
    assert "65 blobs" in lines[1]


@on_sqlite
def test_requests_that_cannot_be_read_do_not_fill_the_log(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("source_request", "chunk_request", "cast_report"):
        for _ in range(10 * int(BURST)):
            asking.fleet.hub.deliver(Received(topics.up(CAM, kind), b"not json"))
    asking.ask(OTHER, *BLOBS)
    assert caplog.text.count("was refused") == 2, "a line of each server"
    assert caplog.text.count("more often than it needs") == 1


@on_sqlite
def test_who_asks_without_end_is_answered_so_often(
    asking: Asking, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10 * int(BURST)):
        asking.send(CAM, tuple(BLOBS))
    asking.ask(OTHER, *BLOBS)
    until(lambda: "more often than it needs" in caplog.text)
    assert len(asking.sent_to(CAM)) == BURST
    assert caplog.text.count("more often than it needs") == 1


@on_sqlite
def test_no_log_holds_a_link(asking: Asking, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        (blob, *_) = asking.ask(CAM, *BLOBS).blobs
        get(blob.urls[0])
        get(f"{blob.urls[0]}x")
    assert "signature=" not in caplog.text


@on_sqlite
def test_all_places_in_the_order_of_the_settings(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "s3.ini").write_text(ACCOUNT)
    places = (
        S3Place(
            url="https://models.s3.eu-central-1.amazonaws.com",
            region="eu-central-1",
            credentials_file=str(tmp_path / "s3.ini"),
            prefix="blobs/",
        ),
        PlainPlace(url="https://cdn.example/blobs"),
        LinkPlace(url="https://near.example"),
    )
    downloads = DownloadsConfig(port=0, public_url="https://fleet.example:8471/", places=places)
    made = Asking(database_url, tmp_path, downloads)
    try:
        first = next(iter(BLOBS))
        (blob,) = made.ask(CAM, first).blobs
    finally:
        made.fleet.close()
    bucket, mirror, near, own = map(urlsplit, blob.urls)
    assert bucket.netloc == "models.s3.eu-central-1.amazonaws.com"
    assert bucket.path == f"/blobs/{first[:2]}/{first}"
    signed = parse_qs(bucket.query)
    assert signed["X-Amz-Expires"] == ["86400"]
    assert signed["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/20250615/eu-central-1/s3/")
    assert mirror.geturl() == f"https://cdn.example/blobs/{first[:2]}/{first}"
    assert (near.netloc, own.netloc) == ("near.example", "fleet.example:8471")
    assert (near.path, near.query) == (own.path, own.query)
    assert "the secret key" not in made.answers[-1].payload.decode()


@on_sqlite
def test_a_controller_without_downloads_says_that_there_are_none(
    database_url: str, tmp_path: Path
) -> None:
    made = Asking(database_url, tmp_path, DownloadsConfig())
    try:
        assert made.ask(CAM, *BLOBS).blobs == ()
        assert made.fleet.controller.downloads.address is None
        assert made.fleet.api.get("/v1/health").json()["downloads_served"] is False
        assert not (tmp_path / SECRET_FILE).exists()
    finally:
        made.fleet.close()


@on_sqlite
def test_the_health_says_that_downloads_are_served(asking: Asking) -> None:
    assert asking.fleet.api.get("/v1/health").json()["downloads_served"] is True


class Offers:
    """Deltas as a test has them."""

    def __init__(self, offers: dict[str, DeltaSource | float | FleetError]) -> None:
        self.offers = offers
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []

    def offer(
        self, device: str, blob_sha256: str, packages: tuple[str, ...]
    ) -> DeltaSource | float | None:
        self.asked.append((device, blob_sha256, packages))
        found = self.offers.get(blob_sha256)
        if isinstance(found, FleetError):
            raise found
        return found


@on_sqlite
def test_deltas_are_offered_for_what_the_device_has(asking: Asking) -> None:
    ready, later, broken, none = BLOBS
    delta = DeltaSource(base="b" * 64, sha256="d" * 64, size_bytes=9, chunk_bytes=1024)
    offers = Offers({ready: delta, later: 2.5, broken: StorageError("the disk is full")})
    fleet = asking.fleet
    links = [*fleet.controller.downloads.places]
    ways = Ways(places=links, valid_s=60, deltas=offers)
    server = SourceServer(
        fleet.controller._database, ways, fleet.transport, DIRECTOR_KEY, fleet.clock
    )
    request = SourceRequest(
        device=CAM, nonce="n", blobs=(ready, later, broken, none, "f" * 64), packages=("a" * 64,)
    )
    with_delta, soon, *whole = server.answer(request).blobs
    assert with_delta.delta is not None
    assert msgspec.structs.replace(with_delta.delta, urls=()) == delta
    assert [urlsplit(url).path for url in with_delta.delta.urls] == [f"/blobs/{'d' * 64}"]
    assert (soon.delta, soon.delta_in_s) == (None, 2.5)
    assert [(each.sha256, each.delta, each.delta_in_s) for each in whole] == [
        (broken, None, 0),
        (none, None, 0),
    ]
    assert offers.asked == [(CAM, sha256, ("a" * 64,)) for sha256 in request.blobs[:4]]


def test_the_secret_of_links_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / SECRET_FILE
    secret = link_secret(path)
    assert link_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "other").mkdir()
    assert link_secret(tmp_path / "other" / SECRET_FILE) != secret
    path.write_text("not a secret")
    with pytest.raises(SettingsError, match="not a secret of links") as caught:
        link_secret(path)
    assert "remove it" in caught.value.remedy
    assert "not a secret\n" not in str(caught.value)
    with pytest.raises(StorageError, match="cannot write"):
        link_secret(tmp_path / "nowhere" / SECRET_FILE)


@pytest.mark.parametrize(
    "text", ["", "[default]\n", "aws_access_key_id = a\n", "[default]\naws_access_key_id = a\nxyz"]
)
def test_an_account_that_cannot_be_read_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "s3.ini"
    path.write_text(text)
    with pytest.raises(SettingsError, match="does not name an account") as caught:
        read_credentials(str(path))
    assert "xyz" not in f"{caught.value} {caught.value.remedy}"
    with pytest.raises(SettingsError, match=r"none\.ini"):
        read_credentials(str(tmp_path / "none.ini"))


def start(config: ControllerConfig) -> None:
    Controller(config, MemoryAccess(), connect=MemoryHub().connect, clock=FakeClock())


def test_what_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    config = make_home(tmp_path, f"sqlite:///{tmp_path / 'control.db'}")

    def with_downloads(**settings: object) -> ControllerConfig:
        return msgspec.structs.replace(config, downloads=DownloadsConfig(**settings))  # type: ignore[arg-type]

    with pytest.raises(SettingsError, match=r"the download listener at .* has no TLS"):
        start(with_downloads(host="10.0.0.1", port=0))
    with pytest.raises(SettingsError, match=r"none\.pem") as caught:
        start(with_downloads(port=0, cert_file="none.pem", key_file="none.pem"))
    assert "downloads.cert_file" in caught.value.remedy
    bucket = S3Place(url="https://x", region="r", credentials_file=str(tmp_path / "none.ini"))
    with pytest.raises(SettingsError, match=r"none\.ini"):
        start(with_downloads(port=0, places=(bucket,)))
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ListenError, match="download listener cannot listen") as refused:
        start(with_downloads(port=taken.getsockname()[1]))
    assert "downloads.port" in refused.value.remedy


def test_a_backup_tells_of_files_outside(tmp_path: Path) -> None:
    config = make_home(tmp_path, f"sqlite:///{tmp_path / 'control.db'}")
    bucket = S3Place(url="https://x", region="r", credentials_file="/etc/s3.ini")
    downloads = DownloadsConfig(port=1, cert_file="/etc/c.pem", places=(bucket,))
    inside = named_outside(tmp_path, config)
    config = msgspec.structs.replace(config, downloads=downloads)
    assert {*named_outside(tmp_path, config)} - {*inside} == {"/etc/c.pem", "/etc/s3.ini"}
