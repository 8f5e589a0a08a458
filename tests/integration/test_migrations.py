"""Migrations, up and down, and against the tables that the code declares."""

from __future__ import annotations

import msgspec
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from controller.domain.gates.states import GateState
from controller.domain.gates.verdicts import Verdict
from controller.domain.rollout_view import InFlight
from controller.errors import DatabaseError, SettingsError
from controller.store import (
    desired,
    device_status,
    gates,
    measurements,
    policies,
    policy_choices,
    rollout_steps,
    rollouts,
)
from controller.store.all_tables import CONTROL_METADATA
from controller.store.database import Database, alembic_config, migrate
from controller.store.policy_tables import PolicyRow
from telemetry.server.partitions import Partitions
from telemetry.server.query import parse, run
from telemetry.server.store import TelemetryStore
from telemetry.server.store import metadata as telemetry_metadata
from telemetry.server.tables import DEVICES
from tests.simulators.stored_fleet import (
    DIGEST,
    OLD_FLEET,
    OTHER,
    add_device,
    add_release,
    add_rollout,
    add_told,
)
from wire.policy import PolicySpec
from wire.telemetry import SumPoint, TelemetryBatch


@pytest.fixture
def database_url(empty_database_url: str) -> str:
    """A database without any table: here it is migrated."""
    return empty_database_url


def test_up_gives_what_the_code_declares(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    try:
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection)
            declared = [CONTROL_METADATA, telemetry_metadata]
            assert compare_metadata(context, declared) == []  # type: ignore[arg-type]  # several are allowed
    finally:
        database.close()


def test_up_again_changes_nothing(database_url: str) -> None:
    migrate(database_url)
    migrate(database_url)


def test_down_leaves_nothing_and_up_works_again(database_url: str) -> None:
    migrate(database_url)
    migrate(database_url, "base")
    database = Database(database_url)
    try:
        assert sa.inspect(database.engine).get_table_names() == ["alembic_version"]
    finally:
        database.close()
    migrate(database_url)


def test_step_by_step(database_url: str) -> None:
    database = Database(database_url)
    try:
        migrate(database_url)
        with database.engine.connect() as connection:
            newest = present(connection)
            scripts = ScriptDirectory.from_config(alembic_config(connection))
        names = [script.revision for script in scripts.walk_revisions()]
        assert names[0] == newest
        steps = [("-1", names[1]), ("head", newest), (newest, newest)]
        steps += [(name, name) for name in (*names[1:], *reversed(names))]
        for asked, expected in steps:
            migrate(database_url, asked)
            with database.engine.connect() as connection:
                assert present(connection) == expected, asked
    finally:
        database.close()


def present(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def old_fleet(database_url: str) -> Database:
    """Make a database as it was before there were policies, with a device at work."""
    migrate(database_url, "0002")
    database = Database(database_url)
    with database.transaction() as session:
        for statement in OLD_FLEET.split(";"):
            session.execute(sa.text(statement))
    database.close()
    return database


def test_what_was_issued_before_there_were_policies_goes_on(database_url: str) -> None:
    database = old_fleet(database_url)
    try:
        migrate(database_url)
        with database.transaction() as session:
            (document,) = desired.documents(session, ["cam-1"])
            (model,) = document.desired.models
            assert (document.desired.revision, model.policy) == (7, PolicySpec(kind="rules"))
            known = device_status.find(session, "cam-1")
            assert known is not None
            assert known.models["digits"].deployment is not None
            assert policy_choices.with_stale(session, limit=10) == []
            policies.put(session, everyone())
            assert policy_choices.with_stale(session, limit=10) == ["cam-1"]
            desired.choose_policies_again(session, ["cam-1"], now_s=2.0)
            (document,) = desired.documents(session, ["cam-1"])
            (model,) = document.desired.models
            assert (document.desired.revision, model.policy.kind) == (8, "adaptive")
    finally:
        database.close()


def test_a_running_deployment_is_found_again_after_going_down(database_url: str) -> None:
    database = old_fleet(database_url)
    try:
        migrate(database_url)
        with database.transaction() as session:
            policies.put(session, everyone())
            desired.choose_policies_again(session, ["cam-1"], now_s=2.0)
        database.close()
        migrate(database_url, "0002")
        with database.transaction() as session:
            for table in ("desired_state", "deployment"):
                assert session.scalar(sa.text(f"SELECT revision FROM {table}")) == 8  # noqa: S608 - two constants
        database.close()
        migrate(database_url)
        with database.reading() as session:
            (document,) = desired.documents(session, ["cam-1"])
            (model,) = document.desired.models
            assert (document.desired.revision, model.policy) == (8, PolicySpec(kind="rules"))
    finally:
        database.close()


def test_what_is_at_work_goes_on_by_the_clock_of_its_rollout(database_url: str) -> None:
    database = old_fleet(database_url)
    try:
        with database.transaction() as session:
            session.execute(sa.text("UPDATE rollout SET stage_complete_at_s = 1750000000.0"))
        database.close()
        migrate(database_url)
        with database.transaction() as session:
            view = rollouts.view(session, rollouts.get(session, "r1"))
            assert (view.now_s, view.stage_complete_at_s) == (0.0, 0.0)
            assert view.limits.offline_limit_s == 86_400.0
            assert view.in_flight == (InFlight(device="cam-1", online_s=0.0),)
    finally:
        database.close()


@pytest.mark.parametrize(("state", "after"), [("running", "assigned"), ("succeeded", "cancelled")])
def test_a_device_that_waits_goes_down(database_url: str, state: str, after: str) -> None:
    database = old_fleet(database_url)
    try:
        migrate(database_url)
        with database.transaction() as session:
            session.execute(sa.text("UPDATE deployment SET state = 'waiting', release = 'd'"))
            session.execute(sa.text(f"UPDATE rollout SET state = '{state}', origin = 'r1'"))  # noqa: S608 - a constant
        database.close()
        migrate(database_url, "0004")
        with database.transaction() as session:
            row = session.execute(sa.text("SELECT state, revision FROM deployment")).one()
            assert tuple(row) == (after, 7)
            assert session.scalar(sa.text("SELECT rollback_of FROM rollout")) == "r1"
    finally:
        database.close()


@pytest.mark.parametrize(("own", "after"), [("'d'", "cancelled"), ("NULL", "pending")])
def test_what_is_to_get_a_release_of_its_own_is_left_out_going_down(
    database_url: str, own: str, after: str
) -> None:
    database = old_fleet(database_url)
    try:
        migrate(database_url)
        with database.transaction() as session:
            session.execute(sa.text(f"UPDATE deployment SET state = 'pending', release = {own}"))  # noqa: S608 - constants
        database.close()
        migrate(database_url, "0004")
        with database.reading() as session:
            assert session.scalar(sa.text("SELECT state FROM deployment")) == after
    finally:
        database.close()


def everyone() -> PolicyRow:
    return PolicyRow(
        name="everyone", selector="", priority=0, spec={"kind": "adaptive"}, changed_at_s=1.0
    )


def test_series_from_before_their_owners_were_noted_go_on(database_url: str) -> None:
    point = SumPoint(metric="n_total", minute=28_000_000, attributes={}, value=1)
    sent = TelemetryBatch(device="cam-1", boot_id="b", sequence=0, points=(point,))
    database = Database(database_url)
    try:
        migrate(database_url)
        assert TelemetryStore(database.engine).ingest(sent)
        for to in ("0006", "head"):
            database.close()
            migrate(database_url, to)
        store = TelemetryStore(database.engine)
        assert store.ingest(msgspec.structs.replace(sent, sequence=1))
        query = parse("n_total", statistics="total", since="0", now_s=28_000_001 * 60.0)
        # The figures of the fleet begin later: this is answered from those of devices.
        assert run(store, query).rows == ((2.0,),)
    finally:
        database.close()


def test_what_an_earlier_version_deleted_is_known(database_url: str) -> None:
    """Hours of two days, and minutes of the second one alone."""
    day, hour = 28_000_800, 28_002_240 + 600
    rows = {"hour": (day + 60, hour, hour + 60), "minute": (hour + 7, hour + 60), "day": (day,)}
    migrate(database_url, "0023")
    database = Database(database_url)
    try:
        for level, minutes in rows.items():
            Partitions(database.engine).cover(DEVICES[level], minutes)
        with database.engine.begin() as connection:
            connection.execute(
                sa.text(
                    "INSERT INTO telemetry_series VALUES (1, 'n_total', 'sum', '', '', '{}', '')"
                )
            )
            for level, minutes in rows.items():
                span = ", 0, 0" if level != "minute" else ""
                for of, device in (("", "pi-1"), ("fleet_", "")):
                    for minute in minutes:
                        values = f"1, {minute}, '{device}', 1, 1, 1, 1, NULL{span}"
                        insert = f"INSERT INTO telemetry_{of}{level} VALUES ({values})"  # noqa: S608 - constants
                        connection.execute(sa.text(insert))
        database.close()
        migrate(database_url)
        with database.engine.connect() as connection:
            found = connection.execute(
                sa.text("SELECT name, pruned_minute FROM telemetry_level ORDER BY name")
            ).all()
        assert dict(map(tuple, found)) == {"minute": hour, "hour": 0, "day": 0, "fleet": 0}
    finally:
        database.close()


def test_checks_are_in_the_database(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    try:
        names = {
            check["name"]
            for table in CONTROL_METADATA.tables
            for check in sa.inspect(database.engine).get_check_constraints(table)
        }
    finally:
        database.close()
    declared = {
        constraint.name
        for table in CONTROL_METADATA.tables.values()
        for constraint in table.constraints
        if isinstance(constraint, sa.CheckConstraint)
    }
    assert names == declared


def test_a_newer_database_is_refused_in_one_line(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    with database.transaction() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    with pytest.raises(DatabaseError) as caught:
        migrate(database_url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "mysql://root:secret@host/db", "oracle+none://x"]
)
def test_an_unusable_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        migrate(url)
    assert "secret" not in str(caught.value)


def test_a_database_that_does_not_answer() -> None:
    with pytest.raises(DatabaseError) as caught:
        migrate("postgresql://fleet:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_devices_and_what_they_measured_come_through_going_down_and_up(database_url: str) -> None:
    database = old_fleet(database_url)
    try:
        migrate(database_url)
        with database.transaction() as session:
            session.execute(sa.text("UPDATE device SET lent = TRUE"))
            (release,) = session.execute(sa.text("SELECT digest FROM release LIMIT 1")).one()
            measurements.add(session, "m1", release, [("cam-1", "box")], now_s=1.0, limit_s=1.0)
            assert measurements.expire(session, now_s=3.0) == 1
        database.close()
        migrate(database_url, "0010")
        with database.reading() as session:
            assert session.scalar(sa.text("SELECT COUNT(*) FROM device WHERE id = 'cam-1'")) == 1
        database.close()
        migrate(database_url)
        with database.reading() as session:
            lent = session.scalar(sa.text("SELECT lent FROM device WHERE id = 'cam-1'"))
            assert not lent, "nothing is lent that nobody lent since"
            assert measurements.newest(session, limit=10) == []
    finally:
        database.close()


def test_what_a_device_had_becomes_its_model(database_url: str) -> None:
    migrate(database_url, "0011")
    database = Database(database_url)
    try:
        with database.transaction() as session:
            for statement in BEFORE_MODELS.split(";"):
                session.execute(sa.text(statement))
        database.close()
        migrate(database_url)
        with database.reading() as session:
            rows = session.execute(
                sa.text("SELECT device, model, release, rollout FROM desired_model ORDER BY device")
            )
            assert [tuple(row) for row in rows] == [
                ("away", "digits", None, "r1"),
                ("odd", "digits", "d", "r1"),
                ("runs", "digits", "d", "r1"),
            ]
            told = session.execute(
                sa.text("SELECT device, model, release, phase FROM device_model ORDER BY device")
            )
            assert [tuple(row) for row in told] == [
                ("away", "digits", None, ""),
                ("odd", "digits", "f", "idle"),
                ("runs", "digits", "d", "fetching"),
                ("stray", "", "f", ""),
            ]
            models = session.scalars(sa.text("SELECT model FROM deployment")).all()
            assert set(models) == {"digits"}
            assert session.scalar(sa.text("SELECT model FROM rollout")) == "digits"
            forms = session.scalars(sa.text("SELECT desired_form FROM device")).all()
            assert set(forms) == {1}
            stray = session.scalar(sa.text("SELECT state FROM deployment WHERE device = 'stray'"))
            assert stray == "cancelled", "its release is of another model than the rollout"
    finally:
        database.close()


BEFORE_MODELS = """
INSERT INTO release VALUES ('d', 'digits', '1', 'published', 'e', 1, 1, 1.0, '[]');
INSERT INTO release VALUES ('o', 'other', '1', 'published', 'e', 1, 1, 1.0, '[]');
INSERT INTO device (id, state, public_key, profile_name, architecture, profile, agent_version,
    boot_id, online, reported_revision, reported_release, variant, phase, last_error, enrolled_at_s)
    VALUES ('runs', 'enrolled', 'k', 'rpi4', 'aarch64', '{}', '1', '', TRUE, 7, 'd', 'best',
    'fetching', '', 1.0);
INSERT INTO device (id, state, public_key, profile_name, architecture, profile, agent_version,
    boot_id, online, reported_revision, reported_release, variant, phase, last_error, enrolled_at_s)
    VALUES ('odd', 'enrolled', 'k', 'rpi4', 'aarch64', '{}', '1', '', TRUE, 7, 'f', NULL, 'idle',
    '', 1.0);
INSERT INTO device (id, state, public_key, profile_name, architecture, profile, agent_version,
    boot_id, online, reported_revision, reported_release, variant, phase, last_error, enrolled_at_s)
    VALUES ('away', 'enrolled', 'k', 'rpi4', 'aarch64', '{}', '1', '', FALSE, 0, NULL, NULL, '', '',
    1.0);
INSERT INTO device (id, state, public_key, profile_name, architecture, profile, agent_version,
    boot_id, online, reported_revision, reported_release, variant, phase, last_error, enrolled_at_s)
    VALUES ('stray', 'enrolled', 'k', 'rpi4', 'aarch64', '{}', '1', '', FALSE, 0, 'f', NULL, '', '',
    1.0);
INSERT INTO rollout (id, release, selector, state, reason, max_in_flight, soak_s,
    device_deadline_s, max_failures, min_finished, approval, initial_devices, stage,
    approved_stage, created_at_s)
    VALUES ('r1', 'd', '', 'running', '', 1, 0, 60, 0, 1, FALSE, 1, 1, 1, 1.0);
INSERT INTO deployment (rollout, device, state, position, stage, revision, phase, done_bytes,
    total_bytes, error_code, detail, started_at_s) VALUES ('r1', 'runs', 'assigned', 0, 1, 7, '', 0,
    0, '', '', 1.0);
INSERT INTO deployment (rollout, device, state, position, stage, release, phase, done_bytes,
    total_bytes, error_code, detail) VALUES ('r1', 'stray', 'pending', 0, 1, 'o', '', 0, 0, '', '');
INSERT INTO desired_state (device, revision, release, rollout, issued_at_s, release_revision)
    VALUES ('runs', 8, 'd', 'r1', 1.0, 7);
INSERT INTO desired_state (device, revision, release, rollout, issued_at_s, release_revision)
    VALUES ('odd', 7, 'd', 'r1', 1.0, 7);
INSERT INTO desired_state (device, revision, release, rollout, issued_at_s, release_revision)
    VALUES ('away', 7, NULL, 'r1', 1.0, 7)
"""
"""A fleet at work, in the tables of revision 0011."""


def test_going_down_a_device_keeps_the_model_that_it_was_given_last(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    try:
        with database.transaction() as session:
            device = add_device(session, "cam-1")
            add_release(session)
            add_release(session, OTHER, name="faces")
            add_told(session, device, DIGEST)
            add_told(session, device, OTHER, model="faces")
            for rollout, digest, model in (("r1", OTHER, "faces"), ("r2", DIGEST, "digits")):
                row = add_rollout(session, rollout, ("cam-1",), digest, model)
                rollout_steps.start(session, row, ["cam-1"], now_s=2.0)
            policies.put(session, everyone())
            one = PolicyRow(
                name="one", selector="", model="faces", priority=0, spec={}, changed_at_s=1.0
            )
            policies.put(session, one)
        database.close()
        migrate(database_url, "0011")
        with database.reading() as session:
            wanted = session.execute(
                sa.text("SELECT revision, release, rollout, release_revision FROM desired_state")
            ).one()
            assert tuple(wanted) == (2, DIGEST, "r2", 2)
            assert session.scalar(sa.text("SELECT reported_release FROM device")) == DIGEST
            rows = session.execute(sa.text("SELECT rollout, state FROM deployment"))
            assert {tuple(row) for row in rows} == {("r1", "cancelled"), ("r2", "assigned")}
            assert session.scalars(sa.text("SELECT name FROM policy")).all() == ["everyone"]
        database.close()
        migrate(database_url)
        with database.reading() as session:
            (document,) = desired.documents(session, ["cam-1"])
            assert [model.name for model in document.desired.models] == ["digits"]
    finally:
        database.close()


def test_looks_at_gates_come_through_going_down_and_up(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    try:
        with database.transaction() as session:
            add_device(session, "cam-1")
            add_release(session)
            row = add_rollout(session, "r1", ("cam-1",))
            gates.add(session, row.id, ["p95(inference_latency_ms) <= +10%"], {})
            told = Verdict(state=GateState.PASS, reason="half of them", unseen=0.5)
            gates.save_look(session, row, 1, {1: told}, is_end=False, now_s=1.0)
        database.close()
        for version in ("0043", "head"):
            migrate(database_url, version)
        with database.reading() as session:
            (look,) = gates.looks(session, "r1", limit=10)
            assert (look.reason, look.unseen) == ("half of them", None)
    finally:
        database.close()
