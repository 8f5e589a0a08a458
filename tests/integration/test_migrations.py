"""Migrations, up and down, and against the tables that the code declares."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from controller.database import Database, migrate
from controller.errors import DatabaseError, SettingsError
from controller.models import Base
from telemetry.store import metadata as telemetry_metadata


def test_up_gives_what_the_code_declares(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    try:
        with database.engine.connect() as connection:
            context = MigrationContext.configure(connection)
            declared = [Base.metadata, telemetry_metadata]
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
    migrate(database_url, "0001")
    migrate(database_url)
    migrate(database_url, "-1")
    migrate(database_url)


def test_checks_are_in_the_database(database_url: str) -> None:
    migrate(database_url)
    database = Database(database_url)
    try:
        names = {
            check["name"]
            for table in Base.metadata.tables
            for check in sa.inspect(database.engine).get_check_constraints(table)
        }
    finally:
        database.close()
    declared = {
        constraint.name
        for table in Base.metadata.tables.values()
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
