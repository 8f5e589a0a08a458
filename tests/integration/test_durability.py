"""What SQLite promises for the controller's database when the power is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.store.database import Database

FULL = 2
"""`PRAGMA synchronous`, as SQLite numbers it: each commit is synced, also in WAL mode."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'fleet.db'}"


def test_a_power_cut_undoes_nothing_that_was_committed(url: str) -> None:
    database = Database(url)
    with database.transaction() as session:
        assert session.scalar(sa.text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(sa.text("PRAGMA synchronous")) == FULL
    with database.engine.begin() as connection:  # as telemetry is stored
        assert connection.scalar(sa.text("PRAGMA synchronous")) == FULL
    database.close()
