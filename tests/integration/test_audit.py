"""The audit log: what is in it, and that nobody changes it unseen."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from controller.domain.audit_chain import AuditRow, ChainCheck
from controller.errors import DatabaseError
from controller.services.audit_log import AuditLog
from controller.store.acting import Act
from controller.store.database import Database
from tests.simulators.controller_fleet import API_TOKEN, Fleet
from tests.simulators.packages import two_variants
from wire.codec import sha256_hex

ONE = two_variants("1")


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def rows(fleet: Fleet, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (
        fleet.api.get("/v1/audit", params=params).raise_for_status().json()
    )
    return found


def told(fleet: Fleet, **params: Any) -> list[tuple[str, str, str, str]]:
    return [(r["actor"], r["action"], r["subject"], r["outcome"]) for r in rows(fleet, **params)]


def fault(fleet: Fleet) -> str | None:
    check = ChainCheck()
    for row in rows(fleet, after=0, limit=1000):
        found = check.fault(AuditRow(**{k: v for k, v in row.items() if k != "hash"}), row["hash"])
        if found is not None:
            return found
    return None


def owned(database_url: str, statement: str) -> None:
    """Do what somebody does who owns the database, and so is held up by no trigger."""
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            for trigger in ("audit_refuses_update", "audit_refuses_delete"):
                connection.execute(sa.text(f"DROP TRIGGER IF EXISTS {trigger}"))
        else:
            connection.execute(sa.text("ALTER TABLE audit DISABLE TRIGGER ALL"))
        connection.execute(sa.text(statement))
    engine.dispose()


def test_every_changing_request_leaves_a_row_and_no_secret(fleet: Fleet) -> None:
    kim, eve = fleet.token("kim", "operator"), fleet.token("eve", "viewer")
    enrolment = fleet.ask(kim, "POST", "/v1/tokens", json={}).json()["token"]
    fleet.publish(ONE)
    fleet.ask(kim, "PUT", "/v1/policies/calm", json={"nonsense": "do not keep this"})
    fleet.ask(kim, "POST", "/v1/rollouts/r1/pause")
    fleet.ask(kim, "POST", "/v1/nothing/here%0Afoo")
    fleet.ask(kim, "DELETE", f"/v1/policies/{eve}")
    fleet.ask(eve, "DELETE", "/v1/policies/calm")
    fleet.ask(eve, "GET", "/v1/devices")
    fleet.ask("wrong", "DELETE", "/v1/policies/calm")
    found = told(fleet)
    assert found[:2] == [
        ("home", "POST /v1/access", "kim operator", "committed"),
        ("home", "POST /v1/access", "eve viewer", "committed"),
    ]
    account = fleet.api.get("/v1/tokens").json()[0]["id"]
    assert found[2] == ("kim", "POST /v1/tokens", account, "committed")
    assert found[3][:2] == ("home", "PUT /v1/blobs/{sha256}")
    assert found[3][3] == "201"
    release = next(row for row in found if row[1] == "POST /v1/releases")
    assert release == ("home", "POST /v1/releases", "digits:1", "committed")
    assert found[-5:] == [
        ("kim", "PUT /v1/policies/{policy}", "calm", "422"),
        ("kim", "POST /v1/rollouts/{rollout}/pause", "r1", "404"),
        ("kim", "POST (no such path)", "", "404"),
        ("kim", "DELETE /v1/policies/{policy}", "eft_...", "422"),
        ("eve", "DELETE /v1/policies/{policy}", "calm", "403"),
    ]
    text = str(rows(fleet))
    for secret in (kim, eve, enrolment, API_TOKEN, "do not keep this"):
        assert secret not in text
    assert fault(fleet) is None
    assert [row[2] for row in told(fleet, actor="eve")] == ["calm"]
    assert {row[0] for row in told(fleet, subject="calm")} == {"kim", "eve"}
    assert told(fleet, since_s=fleet.clock.now_s() + 1) == []
    assert len(told(fleet, limit=2)) == 2
    assert fleet.api.get("/v1/audit", params={"since_s": 1e300}).status_code == 422


def test_the_new_rollout_is_named(fleet: Fleet) -> None:
    fleet.enrol("cam-1")
    fleet.publish(ONE)
    rollout = fleet.roll_out("digits:1")
    assert told(fleet)[-1] == ("home", "POST /v1/rollouts", rollout, "committed")


def test_a_change_and_its_row_are_committed_together_or_not_at_all(
    fleet: Fleet, database_url: str
) -> None:
    """While the log cannot be written, nothing is changed."""
    fleet.token("kim", "operator")
    engine = sa.create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE audit RENAME TO audit_away"))
    answer = fleet.api.post("/v1/access", json={"name": "max", "role": "viewer"})
    assert answer.status_code == 503
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE audit_away RENAME TO audit"))
    engine.dispose()
    assert [token["name"] for token in fleet.api.get("/v1/access").json()] == ["kim"]
    assert fault(fleet) is None


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit SET actor = 'eve'", "DELETE FROM audit WHERE sequence = 1"],
)
def test_the_database_refuses_to_change_the_log(
    fleet: Fleet, database_url: str, statement: str
) -> None:
    fleet.token("kim", "operator")
    engine = sa.create_engine(database_url)
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
    assert len(told(fleet)) == 1


def test_no_row_is_put_in_the_place_of_another(fleet: Fleet, database_url: str) -> None:
    fleet.token("kim", "operator")
    engine = sa.create_engine(database_url)
    row = "SELECT sequence, at_ms, 'eve', role, action, subject, outcome, hash FROM audit"
    statement = f"INSERT OR REPLACE INTO audit {row}"
    if engine.dialect.name == "postgresql":
        changed = "ON CONFLICT (sequence) DO UPDATE SET actor = 'eve'"
        statement = f"INSERT INTO audit {row} {changed}"
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
    assert fault(fleet) is None


def test_what_was_changed_is_found(fleet: Fleet, database_url: str) -> None:
    for name in ("a", "b", "c", "d"):
        fleet.token(name, "viewer")
    assert fault(fleet) is None
    head = rows(fleet)[-1]["hash"]
    owned(database_url, "DELETE FROM audit WHERE sequence = 4")
    assert fault(fleet) is None
    assert head not in {row["hash"] for row in rows(fleet)}  # `fleet audit verify --head`
    owned(database_url, "UPDATE audit SET actor = 'eve' WHERE sequence = 2")
    assert (fault(fleet) or "").startswith("row 2 does not fit")


def test_a_row_before_the_first_one_is_found(fleet: Fleet, database_url: str) -> None:
    """No trigger is in the way of who adds one."""
    fleet.token("kim", "operator")
    row = "SELECT 0, at_ms, actor, role, action, subject, outcome, hash FROM audit"
    owned(database_url, f"INSERT INTO audit {row} WHERE sequence = 1")
    assert fault(fleet) == "row 0 was added: the next one after row 0 is 1"


def test_many_at_once_make_one_chain(fleet: Fleet, database_url: str) -> None:
    database = Database(database_url)
    log = AuditLog(database)

    def write(number: int) -> None:
        for _ in range(10):
            act = Act(at_ms=1, actor=f"t{number}", role="admin", action="POST /x", subject="")
            log.write(act, 200)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    database.close()
    assert len(rows(fleet, after=0, limit=1000)) == 40
    assert fault(fleet) is None


def test_an_accepted_request_that_cannot_be_noted_is_answered_so(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_args: object) -> None:
        raise DatabaseError("the disk is full")

    monkeypatch.setattr(fleet.controller.app.state.services.audit, "write", fails)
    blob = ONE.blobs[0]
    answer = fleet.api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob)
    assert (answer.status_code, answer.json()["message"]) == (503, "the disk is full")
    refused = fleet.api.post("/v1/rollouts/r1/pause")
    assert refused.status_code == 404
