"""The HTTP API: a real application on a real database."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from controller.api.guard import MAX_BODY_BYTES
from controller.api.server import HttpServer
from controller.services.blobs import UPLOADS_FOLDER
from telemetry.server.series import COMMON_SERIES
from telemetry.server.tables import metadata
from tests.simulators.controller_fleet import API_TOKEN, Fleet, TestClient, names
from tests.simulators.packages import (
    DIRECTOR_KEY,
    PROFILE,
    RELEASE_KEY,
    STRANGER_KEY,
    SignedPackage,
    package,
    two_variants,
    variant,
)
from tests.simulators.patience import PATIENCE_S, until
from wire import topics
from wire.codec import sha256_hex, to_msgpack
from wire.errors import TransportError
from wire.package.index import PAYLOAD_TYPE, PackageIndex
from wire.telemetry import Event, GaugePoint, SumPoint, TelemetryBatch
from wire.transport import Received
from wire.trust.envelope import seal

ONE = two_variants("1")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def upload(fleet: Fleet, made: SignedPackage) -> dict[str, str]:
    for blob in made.blobs:
        fleet.api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob).raise_for_status()
    return {"envelope_sha256": made.ref.envelope_sha256}


def test_everything_but_the_health_needs_the_token(fleet: Fleet) -> None:
    client = TestClient(fleet.controller.app)
    assert client.get("/v1/health").json()["status"] == "ok"
    described = fleet.api.get("/openapi.json").json()
    paths = {"/openapi.json": ["get"], **described["paths"]}
    for path, operations in paths.items():
        for method in operations:
            if path == "/v1/health":
                continue
            url = path.replace("{", "").replace("}", "")
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
                answer = client.request(method, url, headers=headers)
                fleet.clock.advance(1)  # not too many wrong ones at a time
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.headers["connection"] == "close"
                if method != "head":
                    assert answer.json()["code"] == "controller.unauthorized"


def test_the_description_says_which_operation_needs_the_token(fleet: Fleet) -> None:
    paths = fleet.api.get("/openapi.json").json()["paths"]
    free = {p for p, found in paths.items() for o in found.values() if not o.get("security")}
    assert free == {"/v1/health"}
    assert "token" in paths["/v1/health"]["get"]["description"]


def test_two_controllers_share_the_routes_and_nothing_else(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Fleet(f"sqlite:///{tmp_path / 'other.db'}", tmp_path / "other")
    try:
        apps = (fleet.controller.app, other.controller.app)
        mine, theirs = ([r for r in app.routes if hasattr(r, "response_field")] for app in apps)
        assert mine
        assert all(one is another for one, another in zip(mine, theirs, strict=True))
        other.enrol("cam-1")
        assert fleet.api.get("/v1/devices").json() == []
        assert len(other.api.get("/v1/devices").json()) == 1
    finally:
        other.close()


@pytest.mark.parametrize("page", ["/docs", "/redoc", "/docs/oauth2-redirect"])
def test_no_page_loads_something_from_the_internet(fleet: Fleet, page: str) -> None:
    assert TestClient(fleet.controller.app).get(page).status_code == 401
    assert fleet.api.get(page).status_code == 404


def test_the_health_says_what_it_needs(fleet: Fleet) -> None:
    client = TestClient(fleet.controller.app)
    health = client.get("/v1/health").json()
    assert (health["status"], health["needs"]) == ("ok", [])
    fleet.transport.set_up(False)
    health = client.get("/v1/health").json()
    assert (health["status"], health["broker_connected"]) == ("degraded", False)
    (need,) = health["needs"]
    assert need.startswith("a connection with the MQTT broker")
    assert "[broker] in controller.toml" in need


def test_the_health_says_when_series_become_few(fleet: Fleet, database_url: str) -> None:
    engine = sa.create_engine(database_url)
    rows = [
        {"metric": f"m{n}", "kind": "sum", "release": "", "variant": "", "attributes": "{}"}
        for n in range(COMMON_SERIES)
    ]
    with engine.begin() as connection:
        connection.execute(sa.insert(metadata.tables["telemetry_series"]), rows)
    engine.dispose()
    fleet.enrol("cam-1")
    minute = int(fleet.clock.now_s() // 60)
    point = SumPoint(metric="n_total", minute=minute, attributes={}, value=1)
    batch = TelemetryBatch(device="cam-1", boot_id="b", sequence=1, points=(point,))
    fleet.hub.deliver(Received(topics.up("cam-1", "telemetry"), to_msgpack(batch)))
    health = TestClient(fleet.controller.app).get("/v1/health").json()
    (need,) = health["needs"]
    assert (health["status"], need.startswith("fewer series of telemetry")) == ("ok", True)


def test_every_operation_is_described(fleet: Fleet) -> None:
    for path, operations in fleet.controller.app.openapi()["paths"].items():
        for method, operation in operations.items():
            assert operation.get("description"), (method, path)
            assert "401" in operation["responses"]


def test_faults_have_one_form(fleet: Fleet) -> None:
    api = fleet.api
    answers = [
        (api.get("/v1/devices/nobody"), 404, "controller.unknown.device"),
        (api.get("/v1/releases/none:1"), 404, "controller.unknown.release"),
        (api.get("/v1/rollouts/none"), 404, "controller.unknown.rollout"),
        (api.get(f"/v1/blobs/{'a' * 64}"), 404, "controller.unknown.blob"),
        (api.get("/v1/blobs/nonsense"), 422, "wire.format"),
        (api.get("/v1/devices", params={"selector": "=="}), 422, "controller.selector"),
        (api.get("/v1/devices", params={"limit": 0}), 422, "controller.invalid"),
        (api.post("/v1/tokens", json={"usse": 1}), 422, "controller.invalid"),
        (api.post("/v1/tokens", json={"labels": {"id": "x"}}), 422, "controller.invalid"),
        (api.post("/v1/tokens", content=b"{"), 422, "controller.invalid"),
        (api.post("/v1/rollouts", json={"release": "none:1"}), 404, "controller.unknown.release"),
        (api.get("/v1/nowhere"), 404, "controller.http"),
        (api.delete("/v1/health"), 405, "controller.http"),
        (
            api.get("/v1/telemetry/query", params={"metric": "none"}),
            404,
            "telemetry.unknown_metric",
        ),
        (
            api.get("/v1/telemetry/query", params={"metric": "none", "since": "soon"}),
            422,
            "telemetry.query",
        ),
    ]
    for answer, status, code in answers:
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
        assert answer.json()["message"]


def test_a_device_shows_which_runtimes_it_has(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    assert fleet.api.get("/v1/devices/cam-1").json()["runtimes"] is None
    fleet.devices["cam-1"].runtimes = ("abacus",)
    fleet.devices["cam-1"].connect()
    assert fleet.api.get("/v1/devices/cam-1").json()["runtimes"] == []
    fleet.devices["cam-1"].runtimes = ("abacus", "null")
    fleet.devices["cam-1"].connect()
    assert fleet.api.get("/v1/devices/cam-1").json()["runtimes"] == ["null"]
    fleet.devices["cam-1"].runtimes = msgspec.UNSET
    fleet.devices["cam-1"].connect()
    assert fleet.api.get("/v1/devices/cam-1").json()["runtimes"] is None


def test_a_body_is_bounded_whatever_it_announces(fleet: Fleet) -> None:
    big = b"x" * (MAX_BODY_BYTES + 1)
    parts = (big[:MAX_BODY_BYTES], b"xx")
    headers = {"content-type": "application/json"}
    for answer in (
        fleet.api.post("/v1/tokens", content=big, headers=headers),
        fleet.api.post("/v1/tokens", content=iter(parts), headers=headers),
    ):
        assert answer.status_code == 413
        assert answer.json()["code"] == "controller.too_large"


def test_blobs(fleet: Fleet) -> None:
    content = b"a model" * 100_000
    sha256 = sha256_hex(content)
    url = f"/v1/blobs/{sha256}"
    assert fleet.api.head(url).status_code == 404
    wrong = fleet.api.put(url, content=b"something else")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "wire.integrity")
    assert fleet.api.head(url).status_code == 404
    for _ in range(2):
        stored = fleet.api.put(url, content=content)
        assert (stored.status_code, stored.json()) == (
            201,
            {"sha256": sha256, "size_bytes": len(content)},
        )
    assert fleet.api.head(url).headers["content-length"] == str(len(content))
    assert fleet.api.get(url).content == content


def test_an_upload_that_breaks_off_leaves_one_line_and_no_file(
    fleet: Fleet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = HttpServer("127.0.0.1", 0)
    incoming = tmp_path / "blobs" / UPLOADS_FOLDER
    with caplog.at_level("INFO"):
        server.start(fleet.controller.app)
        try:
            with socket.create_connection((server.host, server.port), PATIENCE_S) as client:
                header = (
                    f"Host: x\r\nAuthorization: Bearer {API_TOKEN}\r\nContent-Length: 9\r\n\r\n"
                )
                client.sendall(f"PUT /v1/blobs/{'a' * 64} HTTP/1.1\r\n{header}half".encode())
                until(lambda: list(incoming.iterdir()), "the upload")
            until(lambda: "/v1/blobs/" in caplog.text, "the line")
        finally:
            server.stop()
    assert [record.levelname for record in caplog.records if "blobs" in record.message] == ["INFO"]
    assert not [record for record in caplog.records if record.exc_info]
    assert list(incoming.iterdir()) == []


def test_publishing(fleet: Fleet) -> None:
    body = upload(fleet, ONE)
    first, again = (fleet.api.post("/v1/releases", json=body) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    shown = again.json()
    assert (shown["name"], shown["version"], shown["digest"]) == ("digits", "1", ONE.digest)
    assert [item["name"] for item in shown["variants"]] == ["best", "small"]
    assert shown["variants"][0]["accuracy"] == 0.99
    for ref in ("digits:1", ONE.digest):
        assert fleet.api.get(f"/v1/releases/{ref}").json() == shown
    assert fleet.api.get("/v1/releases").json() == [shown]


def test_one_version_is_one_package(fleet: Fleet) -> None:
    fleet.publish(ONE)
    other = two_variants("1", best="changed")
    answer = fleet.api.post("/v1/releases", json=upload(fleet, other))
    assert (answer.status_code, answer.json()["code"]) == (409, "controller.conflict")


def test_what_cannot_be_published(fleet: Fleet) -> None:
    stranger = package("3", [(variant("v"), b"x")], key=STRANGER_KEY)
    director = package("3", [(variant("v"), b"x")], key=DIRECTOR_KEY)
    for made in (stranger, director):
        answer = fleet.api.post("/v1/releases", json=upload(fleet, made))
        assert (answer.status_code, answer.json()["code"]) == (422, "wire.signature")
    answer = fleet.api.post("/v1/releases", json={"envelope_sha256": "a" * 64})
    assert answer.status_code == 404


def test_an_incomplete_package_is_not_published(fleet: Fleet) -> None:
    fleet.api.put(f"/v1/blobs/{sha256_hex(ONE.envelope)}", content=ONE.envelope)
    answer = fleet.api.post("/v1/releases", json={"envelope_sha256": ONE.ref.envelope_sha256})
    assert (answer.status_code, answer.json()["code"]) == (422, "controller.invalid")
    assert "3 of 3 files" in answer.json()["message"]


def test_an_index_that_contradicts_its_manifest_is_not_published(fleet: Fleet) -> None:
    files = ONE.index.files
    for index in (
        PackageIndex(name="digits", version="9", chunk_bytes=1024, files=files),
        PackageIndex(name="digits", version="1", chunk_bytes=1024, files=files[:2]),
    ):
        envelope = seal(index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[RELEASE_KEY])
        upload(fleet, SignedPackage(files=ONE.files, envelope=envelope, index=index))
        answer = fleet.api.post("/v1/releases", json={"envelope_sha256": sha256_hex(envelope)})
        assert (answer.status_code, answer.json()["code"]) == (422, "wire.format")


def test_a_revoked_release_stays_revoked(fleet: Fleet) -> None:
    fleet.publish(ONE)
    for _ in range(2):
        answer = fleet.api.post("/v1/releases/digits:1/revoke")
        assert (answer.status_code, answer.json()["state"]) == (200, "revoked")
    again = fleet.api.post("/v1/releases", json={"envelope_sha256": ONE.ref.envelope_sha256})
    assert again.status_code == 409


def test_devices(fleet: Fleet) -> None:
    fleet.enrol(*names("cam", 3), site="berlin")
    fleet.enrol("kiosk", site="paris")
    listed = fleet.api.get("/v1/devices").json()
    assert [item["id"] for item in listed] == ["cam-000", "cam-001", "cam-002", "kiosk"]
    assert listed[0]["online"]
    assert listed[0]["profile"] == PROFILE.name
    found = fleet.api.get("/v1/devices", params={"selector": "site!=berlin"}).json()
    assert [item["id"] for item in found] == ["kiosk"]
    page = fleet.api.get("/v1/devices", params={"after": "cam-000", "limit": 2}).json()
    assert [item["id"] for item in page] == ["cam-001", "cam-002"]
    changed = fleet.api.patch("/v1/devices/kiosk", json={"labels": {"site": "rome", "rack": "1"}})
    assert changed.json()["labels"] == {"site": "rome", "rack": "1"}
    assert fleet.api.get("/v1/devices/kiosk").json() == changed.json()


def test_quarantine_and_decommission(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    url = "/v1/devices/cam-1"
    for state in ("quarantined", "quarantined", "enrolled", "enrolled", "decommissioned"):
        answer = fleet.api.patch(url, json={"state": state})
        assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert (fleet.access.refused == set()) == (state == "enrolled")
        assert not (state != "enrolled" and answer.json()["online"])
    assert fleet.api.patch(url, json={"state": "decommissioned"}).status_code == 200
    answer = fleet.api.patch(url, json={"state": "enrolled"})
    assert (answer.status_code, answer.json()["code"]) == (409, "controller.transition")


def test_a_broker_that_is_away_is_503(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.access.broken = TransportError("the broker does not answer")
    refused = fleet.api.post("/v1/tokens", json={})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    answer = fleet.api.patch("/v1/devices/cam-1", json={"state": "quarantined"})
    assert answer.status_code == 503
    fleet.access.broken = None
    fleet.api.patch("/v1/devices/cam-1", json={"state": "quarantined"}).raise_for_status()
    assert fleet.access.refused == {"cam-1"}


def test_rollouts_that_make_no_sense(fleet: Fleet) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    nonsense: tuple[dict[str, Any], ...] = (
        {"stages": []},
        {"stages": [{}]},
        {"stages": [{"count": 1, "percent": 5}]},
        {"stages": [{"percent": 50}, {"percent": 10}]},
        {"stages": [{"count": 5}, {"count": 2}]},
        {"stages": [{"count": 2}, {"percent": 100}]},
        {"stages": [{"percent": 101}]},
        {"stages": [{"count": 0}]},
        {"max_in_flight": 0},
        {"device_deadline_s": 0},
        {"max_in_flight": 10**12},
        {"device_deadline_s": 1e12},
        {"selector": "site=nowhere"},
        {"selector": "="},
        {"colour": "red"},
    )
    for settings in nonsense:
        answer = fleet.api.post("/v1/rollouts", json={"release": "digits:1", **settings})
        assert answer.status_code == 422, settings
    content = b'{"release": "digits:1", "soak_s": 1e999}'
    headers = {"content-type": "application/json"}
    answer = fleet.api.post("/v1/rollouts", content=content, headers=headers)
    assert answer.status_code == 422
    assert fleet.api.get("/v1/rollouts").json() == []


@pytest.mark.parametrize("text", [r"\u0000", r"a\u0000b", r"\ud800", r"\udc80:1"])
def test_a_text_that_no_database_takes_is_refused(fleet: Fleet, text: str) -> None:
    fleet.publish(ONE)
    fleet.enrol("cam-1")
    rollout = fleet.roll_out("digits:1")
    bodies = (
        ("POST", "/v1/rollouts", '{"release": "%s"}'),
        ("POST", "/v1/rollouts", '{"release": "digits:1", "selector": "%s"}'),
        ("POST", f"/v1/rollouts/{rollout}/rollback", '{"release": "%s"}'),
        ("POST", f"/v1/rollouts/{rollout}/retry", '{"only_failed": "%s"}'),
        ("POST", "/v1/releases", '{"envelope_sha256": "%s"}'),
        ("POST", "/v1/tokens", '{"labels": {"%s": "x"}}'),
        ("POST", "/v1/tokens", '{"labels": {"x": "%s"}}'),
        ("POST", "/v1/tokens", '{"%s": 1}'),
        ("POST", "/v1/tokens", '"%s"'),
        ("PATCH", "/v1/devices/cam-1", '{"labels": {"x": "%s"}}'),
        ("PATCH", "/v1/devices/cam-1", '{"state": "%s"}'),
        ("PUT", "/v1/policies/p", '{"selector": "%s", "policy": {}}'),
        ("PUT", "/v1/policies/p", '{"policy": {"kind": "%s"}}'),
        ("PUT", "/v1/policies/p", '{"policy": {"dwell_s": "%s"}}'),
    )
    headers = {"content-type": "application/json"}
    for method, path, body in bodies:
        answer = fleet.api.request(method, path, content=body % text, headers=headers)
        assert answer.status_code in {404, 422}, (method, path, body, answer.text)
        message = answer.json()["message"]
        assert message
        assert message.isprintable(), message


@pytest.mark.parametrize("text", ["%00", "a%00b", "%ED%A0%80", "%FF"])
def test_a_path_or_a_query_that_no_database_takes_is_no_fault_of_the_controller(
    fleet: Fleet, text: str
) -> None:
    fleet.enrol("cam-1")
    paths = (
        *(f"/v1/{kind}/{text}" for kind in ("devices", "releases", "rollouts", "policies")),
        f"/v1/devices/{text}/events",
        f"/v1/devices/cam-1/events?kind={text}",
        f"/v1/devices?after={text}",
        f"/v1/devices?selector={text}",
        f"/v1/blobs/{text}",
        *(f"/v1/telemetry/query?metric={text}&{key}={text}" for key in ("by", "step", "stat")),
        f"/v1/telemetry/query?metric=inference_latency_ms&where=variant%3D{text}",
        f"/v1/telemetry/query?metric=inference_latency_ms&where=device%3D{text}",
        f"/v1/telemetry/query?metric=inference_latency_ms&where={text}%3Dx",
    )
    for path in paths:
        answer = fleet.api.get(path)
        assert answer.status_code in {200, 404, 422}, (path, answer.text)
    for method, path in (
        ("DELETE", f"/v1/tokens/{text}"),
        ("DELETE", f"/v1/policies/{text}"),
        ("POST", f"/v1/releases/{text}/revoke"),
        ("POST", f"/v1/rollouts/{text}/abort"),
    ):
        answer = fleet.api.request(method, path)
        assert answer.status_code in {404, 422}, (path, answer.text)


def test_rollouts_are_listed_without_their_devices(fleet: Fleet) -> None:
    fleet.publish(ONE)
    fleet.enrol(*names("cam", 3))
    rollout = fleet.roll_out("digits:1")
    (listed,) = fleet.api.get("/v1/rollouts").json()
    assert (listed["id"], listed["deployments"], listed["events"]) == (rollout, [], [])
    assert listed["counts"] == {"pending": 3}
    shown = fleet.api.get(f"/v1/rollouts/{rollout}", params={"limit": 2}).json()
    assert [item["device"] for item in shown["deployments"]] == ["cam-000", "cam-001"]


def test_telemetry_comes_in_once_and_is_answered(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    minute = int(fleet.clock.now_s() // 60)
    batch = TelemetryBatch(
        device="cam-1",
        boot_id="boot-1",
        sequence=1,
        points=(
            GaugePoint(
                metric="temperature_c",
                minute=minute,
                attributes={"zone": "cpu"},
                count=2,
                total=90.0,
                least=40.0,
                greatest=50.0,
            ),
        ),
        events=(Event(at_s=fleet.clock.now_s(), kind="switch", reason="hot", data={"to": "s"}),),
    )
    acks: list[Received] = []
    fleet.hub.on(topics.down("cam-1", "telemetry_ack"), acks.append)
    for _ in range(2):
        fleet.hub.deliver(Received(topics.up("cam-1", "telemetry"), to_msgpack(batch)))
    assert len(acks) == 2
    fleet.clock.advance(60)
    params = {"metric": "temperature_c", "stat": "count,max", "by": "device", "since": "1h"}
    table = fleet.api.get("/v1/telemetry/query", params=params).raise_for_status().json()
    (source,) = table.pop("sources")
    assert (source["level"], source["until_s"]) == ("minute", (minute + 2) * 60)
    assert table == {"columns": ["device", "count", "max"], "rows": [["cam-1", 2, 50.0]]}
    params = {"metric": "temperature_c", "stat": "count", "where": "device=cam-2"}
    assert fleet.api.get("/v1/telemetry/query", params=params).json()["rows"] == []
    events = fleet.api.get("/v1/devices/cam-1/events", params={"kind": "switch"}).json()
    assert [(item["reason"], item["data"]) for item in events] == [("hot", {"to": "s"})]
    assert fleet.api.get("/v1/devices/cam-1/events", params={"kind": "worker"}).json() == []
    assert fleet.api.get("/v1/devices/nobody/events").status_code == 404


@pytest.mark.parametrize("packed", [b"\x91" * 400 + b"\xc0", b"\xd4\x05a"], ids=["deep", "ext"])
def test_no_data_of_an_event_hides_the_others(fleet: Fleet, packed: bytes) -> None:
    fleet.enrol("cam-1")
    events = tuple(
        Event(at_s=fleet.clock.now_s(), kind="switch", reason=reason, data={"x": "here"})
        for reason in ("hot", "cold")
    )
    batch = TelemetryBatch(device="cam-1", boot_id="b", sequence=1, events=events)
    acks: list[Received] = []
    fleet.hub.on(topics.down("cam-1", "telemetry_ack"), acks.append)
    sent = to_msgpack(batch).replace(b"\xa4here", packed, 1)
    fleet.hub.deliver(Received(topics.up("cam-1", "telemetry"), sent))
    assert len(acks) == 1
    shown = fleet.api.get("/v1/devices/cam-1/events").raise_for_status().json()
    assert [(item["reason"], set(item["data"])) for item in shown] == [
        ("hot", {"omitted"}),
        ("cold", {"x"}),
    ]


def test_old_telemetry_is_forgotten(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    event = Event(at_s=fleet.clock.now_s(), kind="switch", reason="hot")
    batch = TelemetryBatch(device="cam-1", boot_id="b", sequence=1, events=(event,))
    fleet.hub.deliver(Received(topics.up("cam-1", "telemetry"), to_msgpack(batch)))
    url = "/v1/devices/cam-1/events"
    fleet.step(89 * 86_400)
    fleet.controller.keep_telemetry()
    assert len(fleet.api.get(url).json()) == 1
    fleet.step(2 * 86_400)
    fleet.controller.keep_telemetry()
    assert fleet.api.get(url).json() == []
