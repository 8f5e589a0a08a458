"""Transactions about several devices on PostgreSQL: they lock in one order, and end no other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from controller.errors import DatabaseError
from controller.store import desired, device_status, devices
from controller.store.database import Database, Transaction
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants
from tests.simulators.patience import finished
from tests.simulators.row_locks import wait_for_a_lock

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
]

CAMS = ("cam-1", "cam-2", "cam-3")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    made.publish(two_variants("1"))
    made.enrol(*reversed(CAMS))
    made.roll_out("digits:1")
    for _ in range(3):
        made.step(1.0)
    yield made
    made.close()


@pytest.fixture
def database(fleet: Fleet, database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.close()


class Asked:
    """An order that is given in a thread."""

    def __init__(self, order: Callable[[], int]) -> None:
        self.status = 0
        self._order = order
        self._thread = threading.Thread(target=self._give, name="an order")
        self._thread.start()

    def answer(self) -> int:
        """Wait for the status of the answer."""
        finished(self._thread)
        return self.status

    def _give(self) -> None:
        self.status = self._order()


def label_all(fleet: Fleet) -> int:
    asked = {"selector": "", "set": {"stage": "canary"}}
    return int(fleet.api.post("/v1/devices/labels", json=asked).status_code)


def label_one(fleet: Fleet) -> int:
    asked = {"labels": {"stage": "canary"}}
    return int(fleet.api.patch(f"/v1/devices/{CAMS[0]}", json=asked).status_code)


def refer(transaction: Transaction) -> None:
    """Lock the devices as PostgreSQL does for a row that refers to one."""
    rows = select(DeviceRow.id).with_for_update(read=True, key_share=True)
    transaction.execute(rows).all()


@pytest.mark.parametrize("order", [label_all, label_one])
def test_labels_are_changed_beside_rows_that_refer_to_the_devices(
    fleet: Fleet, database: Database, order: Callable[[Fleet], int]
) -> None:
    with database.transaction() as transaction:
        refer(transaction)
        assert Asked(lambda: order(fleet)).answer() == 200


@pytest.mark.parametrize("order", [label_all, label_one])
def test_who_changes_labels_waits_for_a_rollout_and_keeps_it_from_nothing(
    fleet: Fleet, database: Database, order: Callable[[Fleet], int]
) -> None:
    with database.transaction() as transaction:
        state = DesiredStateRow
        transaction.execute(
            select(state.device).where(state.device == CAMS[0]).with_for_update()
        ).all()
        asked = Asked(lambda: order(fleet))
        wait_for_a_lock(database)
        for device in reversed(CAMS):
            row = transaction.get_one(DesiredModelRow, (device, "digits"), with_for_update=True)
            row.policy_generation += 1
        refer(transaction)
        desired.renew(transaction, CAMS, now_s=fleet.clock.now_s())
    assert asked.answer() == 200


def mark_silent(transaction: Transaction) -> None:
    devices.mark_silent(transaction, since_s=0.0, now_s=-1e9)


def note_all_seen(transaction: Transaction) -> None:
    device_status.note_all_seen(transaction, CAMS, now_s=1.0)


@pytest.mark.parametrize("write", [mark_silent, note_all_seen])
def test_who_writes_several_devices_locks_them_by_name(
    fleet: Fleet, database: Database, write: Callable[[Transaction], None]
) -> None:
    def in_a_transaction() -> int:
        with database.transaction() as transaction:
            write(transaction)
        return 1

    def set_back(transaction: Transaction, device: str) -> None:
        row = update(DeviceRow).where(DeviceRow.id == device).values(last_seen_at_s=0.0)
        transaction.execute(row)

    for _ in range(100):  # until the first one lies last in the table, where a change puts it
        with database.transaction() as transaction:
            by_place = select(DeviceRow.id).order_by(text("ctid"))
            if transaction.scalars(by_place).all()[-1] == CAMS[0]:
                break
            set_back(transaction, CAMS[0])
    with database.transaction() as transaction:
        set_back(transaction, CAMS[0])
        asked = Asked(in_a_transaction)
        wait_for_a_lock(database)
        set_back(transaction, CAMS[2])
    assert asked.answer() == 1


def test_an_order_that_the_database_ended_for_another_one_is_to_be_given_again(
    fleet: Fleet, database: Database
) -> None:
    faults: list[DatabaseError] = []
    has_first = threading.Barrier(2, timeout=30)

    def lock(*names: str) -> int:
        try:
            with database.transaction() as transaction:
                devices.lock_all(transaction, names[:1])
                has_first.wait()
                devices.lock_all(transaction, names[1:])
        except DatabaseError as exc:
            faults.append(exc)
            return 503
        return 200

    both = [Asked(lambda: lock(*CAMS[:2])), Asked(lambda: lock(*CAMS[1::-1]))]
    assert sorted(each.answer() for each in both) == [200, 503]
    (fault,) = faults
    assert fault.message == (
        "another change of the same devices or rollouts came in between, and nothing was changed"
    )
    assert fault.remedy == "try again"
