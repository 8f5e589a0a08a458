"""Policies in the database: what two writers do to each other, and what a large fleet costs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import event, text

from controller.domain.policy_choice import MAX_POLICIES
from controller.errors import ConflictError, UnknownPolicyError
from controller.store import deployments, desired, devices, policies, policy_choices, rollout_steps
from controller.store.database import Database
from controller.store.model_tables import DesiredModelRow
from controller.store.policies import Reach
from controller.store.policy_tables import PolicyRow
from tests.simulators.stored_fleet import DIGEST, NOW_S, add_device, add_release, add_rollout
from wire.codec import to_builtins
from wire.policy import PolicySpec

pytestmark = pytest.mark.flow

OTHER = PolicySpec(kind="rules")


def policy(name: str, selector: str = "", priority: int = 0, spec: PolicySpec = OTHER) -> PolicyRow:
    return PolicyRow(
        name=name,
        selector=selector,
        priority=priority,
        spec=to_builtins(spec),
        changed_at_s=NOW_S,
    )


def put(opened: Database, row: PolicyRow) -> bool:
    with opened.transaction() as session:
        return policies.put(session, row)


def choose(opened: Database) -> list[str]:
    """Do what ticks do, until nothing is left."""
    while True:
        with opened.transaction() as session:
            stale = policy_choices.with_stale(session, limit=1000)
            if not stale:
                return []
            told = desired.choose_policies_again(session, stale, now_s=NOW_S)
        if told:
            return told


def sent(opened: Database, device: str) -> tuple[int, str]:
    with opened.reading() as session:
        (document,) = desired.documents(session, [device])
    (model,) = document.desired.models
    return document.desired.revision, model.policy.kind


@pytest.fixture
def served(database: Database) -> Database:
    """Two devices with a release, one of them online."""
    with database.transaction() as session:
        add_release(session)
        add_device(session, "one", site="berlin").online = True
        add_device(session, "two", site="paris")
        desired.issue(
            session, "digits", dict.fromkeys(("one", "two"), DIGEST), rollout=None, now_s=NOW_S
        )
    return database


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO policy_set VALUES (2, 1)",
        "UPDATE policy_set SET generation = 0",
        "UPDATE policy SET selector = NULL",
    ],
)
def test_the_database_forbids(served: Database, statement: str) -> None:
    put(served, policy("everyone"))
    with pytest.raises(ConflictError), served.transaction() as session:
        session.execute(text(statement))


def test_a_policy_raises_the_revision_and_leaves_the_release(served: Database) -> None:
    assert put(served, policy("berlin", "site=berlin"))
    assert choose(served) == ["one"]
    assert (sent(served, "one"), sent(served, "two")) == ((2, "rules"), (1, "adaptive"))
    with served.reading() as session:
        row = session.get_one(DesiredModelRow, ("one", "digits"))
        assert (row.release, row.release_revision, row.policy_name) == (DIGEST, 1, "berlin")
        assert policies.reach(session) == {"berlin": Reach(devices=1, accepted=0)}
    assert choose(served) == []


def test_what_is_offline_is_chosen_for_and_not_told(served: Database) -> None:
    put(served, policy("everyone"))
    assert choose(served) == ["one"]
    assert sent(served, "two") == (2, "rules")


def test_a_new_release_comes_with_the_policy_in_one_revision(served: Database) -> None:
    put(served, policy("everyone"))
    with served.transaction() as session:
        desired.issue(session, "digits", {"one": DIGEST}, rollout=None, now_s=NOW_S)
    assert sent(served, "one") == (2, "rules")
    with served.reading() as session:
        assert policy_choices.with_stale(session, limit=10) == ["two"]


def test_the_same_again_is_no_change(served: Database) -> None:
    assert put(served, policy("everyone"))
    choose(served)
    assert not put(served, policy("everyone"))
    with served.reading() as session:
        assert policy_choices.with_stale(session, limit=10) == []
    assert put(served, policy("everyone", priority=1))
    assert put(served, policy("everyone", "site"))
    assert put(served, policy("everyone", "site", spec=PolicySpec()))
    choose(served)
    assert sent(served, "one") == (3, "adaptive")


def test_a_policy_that_is_the_default_one_is_not_worth_a_revision(served: Database) -> None:
    put(served, policy("plain", spec=PolicySpec()))
    assert choose(served) == []
    assert sent(served, "one") == (1, "adaptive")
    with served.reading() as session:
        assert policies.reach(session)["plain"].devices == 2


def test_removing(served: Database) -> None:
    put(served, policy("everyone"))
    choose(served)
    with served.transaction() as session:
        policies.get(session, "everyone")
        policies.remove(session, "everyone")
    choose(served)
    assert sent(served, "one") == (3, "adaptive")
    with served.reading() as session, pytest.raises(UnknownPolicyError):
        policies.get(session, "everyone")


def test_a_deployment_stands_whatever_the_policy(database: Database) -> None:
    with database.transaction() as session:
        add_device(session, "one")
        add_release(session)
        row = add_rollout(session, "r1", ("one",))
        rollout_steps.start(session, row, ["one"], now_s=NOW_S)

    def deployment() -> dict[str, Any]:
        with database.reading() as session:
            ((part, _online, _release),) = deployments.of_rollout(session, "r1", limit=10)
            return {column.name: getattr(part, column.name) for column in part.__table__.columns}

    before = deployment()
    put(database, policy("everyone"))
    choose(database)
    assert sent(database, "one") == (2, "rules")
    assert deployment() == before


def test_writers_at_the_same_time_make_no_more_than_the_bound(served: Database) -> None:
    results: list[bool] = []

    def work(number: int) -> None:
        for step in range(MAX_POLICIES // 4 + 5):
            try:
                results.append(put(served, policy(f"p{number}-{step}")))
            except ConflictError:
                results.append(False)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(results) == MAX_POLICIES


def test_labels_that_change_while_policies_do_end_as_both_say(served: Database) -> None:
    """Whoever comes first: when all is quiet, each device has what now holds for it."""
    put(served, policy("lab", "stage=lab"))
    stop = threading.Event()

    def relabel() -> None:
        for number in range(30):
            with served.transaction() as session:
                row = devices.get(session, "one", lock=True)
                devices.set_labels(session, row, {"stage": "lab" if number % 2 else "shop"})
                policy_choices.mark_stale(session, "one")

    def reset() -> None:
        for number in range(30):
            put(served, policy("lab", "stage=lab", spec=PolicySpec(dwell_s=float(number))))

    def tick() -> None:
        while not stop.is_set():
            choose(served)

    ticking = [threading.Thread(target=tick) for _ in range(2)]
    writing = [threading.Thread(target=relabel), threading.Thread(target=reset)]
    for thread in (*ticking, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    stop.set()
    for thread in ticking:
        thread.join()
    choose(served)
    with served.reading() as session:
        assert policy_choices.with_stale(session, limit=10) == []
        (one,) = desired.documents(session, ["one"])
        assert [model.policy for model in one.desired.models] == [PolicySpec(dwell_s=29.0)]


def test_a_large_fleet_costs_few_statements_and_goes_in_portions(
    database: Database,
) -> None:
    members = tuple(f"d{n:04}" for n in range(1201))
    with database.transaction() as session:
        add_release(session)
        for name in members:
            add_device(session, name, site="berlin").online = True
        desired.issue(session, "digits", dict.fromkeys(members, DIGEST), rollout=None, now_s=NOW_S)
        policies.put(session, policy("everyone"))
        policies.put(session, policy("berlin", "site=berlin", priority=1))
    statements: list[str] = []
    event.listen(
        database.engine,
        "before_cursor_execute",
        lambda *arguments: statements.append(arguments[2]),
    )
    portions = []
    for _ in range(3):
        with database.transaction() as session:
            stale = policy_choices.with_stale(session, limit=1000)
            portions.append(len(desired.choose_policies_again(session, stale, now_s=NOW_S)))
    assert portions == [1000, 201, 0]
    batches = 3  # 500 devices, 500, and 201
    assert len(statements) < 16 * batches
    with database.reading() as session:
        assert policies.reach(session) == {"berlin": Reach(devices=1201, accepted=0)}
