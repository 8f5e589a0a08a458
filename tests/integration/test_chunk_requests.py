"""Requests of many devices for pieces: what they may read is asked of the database once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.delivery.budget import Budget
from controller.delivery.chunks import KNOWN_S, ChunkServer
from controller.domain.states import DeviceState
from controller.store import desired, devices
from controller.store.database import Database
from tests.simulators.clock import FakeClock
from tests.simulators.patience import until
from tests.simulators.stored_fleet import DIGEST, NOW_S, add_device, add_release
from wire import topics
from wire.codec import from_msgpack, to_json
from wire.delivery import Chunk, ChunkRequest
from wire.transport import Received

BLOB = "c" * 64
NAMES = tuple(f"cam-{number:02}" for number in range(30))


class Sent:
    """What is sent to devices."""

    def __init__(self) -> None:
        self.pieces: dict[str, Chunk] = {}

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        assert expiry_s is not None
        self.pieces[topic] = from_msgpack(payload, Chunk)
        return True


class Zeros:
    """Blobs of zeros."""

    def read(self, sha256: str, *, offset: int = 0, length: int) -> bytes:
        assert (sha256, offset) == (BLOB, 0)
        return bytes(length)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    with made.transaction() as session:
        for name in (*NAMES, "idle"):
            add_device(session, name)
        add_release(session)
        desired.issue(session, "digits", dict.fromkeys(NAMES, DIGEST), rollout=None, now_s=NOW_S)
    yield made
    made.close()


def asks(*devices: str) -> list[Received]:
    return [
        Received(
            topics.up(name, "chunk_request"),
            to_json(ChunkRequest(device=name, sha256=BLOB, chunk_bytes=1024, indices=(0,))),
        )
        for name in devices
    ]


def test_many_devices_are_looked_up_at_once_and_none_stands_in_for_another(
    database: Database,
) -> None:
    clock, sent, statements = FakeClock(), Sent(), list[str]()
    server = ChunkServer(database, Zeros(), sent, Budget(clock, 10**9), clock)
    sa.event.listen(
        database.engine,
        "before_cursor_execute",
        lambda _c, _cursor, statement, *_more: statements.append(statement),
    )

    def looked() -> int:
        found = sum("release_blob" in statement for statement in statements)
        statements.clear()
        return found

    def missing() -> set[str]:
        return {topics.sender_of(topic) for topic, each in sent.pieces.items() if each.missing}

    forged = Received(topics.up("cam-01", "chunk_request"), asks("cam-02")[0].payload)
    nonsense = Received(topics.up("cam-03", "chunk_request"), b"{")
    server.handle([forged, nonsense, *asks("idle", "nobody", *NAMES[4:])])
    assert looked() == 2, "files, and deltas for those that no file was found for"
    assert missing() == {"idle", "nobody"}
    server.handle(asks(*NAMES[4:]))
    assert looked() == 0, "it was read of late"
    server.handle(asks("idle", *NAMES))
    assert looked() == 2

    with database.transaction() as session:
        devices.move(session, "cam-05", DeviceState.QUARANTINED, now_s=NOW_S)
    clock.advance(KNOWN_S)
    server.handle(asks(*NAMES))
    assert missing() == {"idle", "nobody", "cam-05"}
    sent.pieces.clear()

    server.start()
    try:
        given = {topics.down(name, "chunk") for name in NAMES if name != "cam-05"}
        until(lambda: sent.pieces.keys() >= given, lambda: f"pieces: {sorted(sent.pieces)}")
    finally:
        server.stop(5.0)
    assert {each.data for each in sent.pieces.values()} == {bytes(100)}


def test_a_database_that_is_away_is_told_once_and_devices_ask_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, sent = FakeClock(), Sent()
    gone = Database(f"sqlite:///{tmp_path / 'none' / 'control.db'}")
    server = ChunkServer(gone, Zeros(), sent, Budget(clock, 10**9), clock)
    for _ in range(3):
        server.handle(asks(*NAMES))
    gone.close()
    assert not sent.pieces
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "requests for pieces are not answered: the database failed: "
    )
