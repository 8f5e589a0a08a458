"""Messages of several devices that are recorded together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from controller.services.device_messages import DeviceMessages, Said
from controller.services.director import Director
from controller.services.transfers import Transfers
from controller.store.database import Database
from controller.store.device_tables import DeviceRow
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import DIRECTOR_KEY
from tests.simulators.patience import PATIENCE_S, until
from wire import topics
from wire.codec import to_json
from wire.presence import Presence
from wire.transport import Received

CAMS = names("cam", 3)


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.enrol(*CAMS)
    yield made
    made.close()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.close()


def messages_of(fleet: Fleet, database: Database) -> DeviceMessages:
    transfers = Transfers(fleet.clock)
    director = Director(database, fleet.hub.connect(), transfers, DIRECTOR_KEY, fleet.clock)
    return DeviceMessages(
        *(database, director, transfers, (), fleet.clock, Counter[str](), lambda *_: None),
        metadata=None,
    )


def gone(device: str) -> Received:
    message = Presence(device=device, online=False, boot_id="boot-1")
    return Received(topics.up(device, "presence"), to_json(message))


def said_gone(messages: DeviceMessages, device: str) -> Said:
    topic, payload = gone(device)
    return messages.read("presence", device, topic, payload)


def online(database: Database) -> list[str]:
    with database.reading() as transaction:
        found = select(DeviceRow.id).where(DeviceRow.online).order_by(DeviceRow.id)
        return list(transaction.scalars(found))


def broken(*_known: object) -> None:
    raise ZeroDivisionError


def test_a_message_that_fails_takes_no_other_with_it(fleet: Fleet, database: Database) -> None:
    messages = messages_of(fleet, database)
    said = [said_gone(messages, device) for device in CAMS]
    said[1] = Said(CAMS[1], "a topic", broken)
    failed: list[tuple[str, type[Exception]]] = []
    messages.take(said, lambda topic, exc: failed.append((topic, type(exc))))
    assert failed == [("a topic", ZeroDivisionError)]
    assert online(database) == [CAMS[1]]


def test_messages_of_a_device_stay_in_their_order(fleet: Fleet, database: Database) -> None:
    before = len(fleet.hub.published)
    fleet.devices[CAMS[0]].connect()
    hello = fleet.hub.published[before]
    fleet.controller.receive(gone(CAMS[0]), gone(CAMS[1]), hello, gone(CAMS[2]))
    assert online(database) == [CAMS[0]]
    fleet.controller.receive(hello, gone(CAMS[0]))
    assert online(database) == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.postgresql
def test_who_waits_for_another_writer_keeps_the_others_back_no_longer(
    fleet: Fleet, database: Database
) -> None:
    messages = messages_of(fleet, database)
    said = [said_gone(messages, device) for device in CAMS]
    taking = threading.Thread(target=messages.take, args=(said, lambda *_: None))
    with database.transaction() as other:
        other.execute(select(DeviceRow.id).where(DeviceRow.id == CAMS[2]).with_for_update())
        taking.start()
        until(lambda: online(database) == [CAMS[2]])
    taking.join(PATIENCE_S)
    assert online(database) == []
