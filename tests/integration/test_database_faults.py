"""A database that cannot be written, or is none: the fault is told in one line, with what helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from controller.errors import DatabaseError
from controller.store.database import Database, is_empty, migrate
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants

PAGES = 400


def test_a_full_disk_is_told_with_what_helps_and_nothing_is_left_when_there_is_room(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'control.db'}"
    migrate(url)
    database = Database(url)
    room = [PAGES]

    def limit(connection: Any, _record: object) -> None:
        """As many pages as there is room for: SQLite answers as with a full disk."""
        connection.execute(f"PRAGMA max_page_count = {room[0]}")

    event.listen(database.engine, "connect", limit)
    with database.transaction() as transaction:
        transaction.execute(sa.text("CREATE TABLE big (content BLOB)"))
    fill = sa.text("INSERT INTO big VALUES (zeroblob(100000000))")
    with pytest.raises(DatabaseError, match="full") as caught, database.transaction() as session:
        session.execute(fill)
    assert caught.value.remedy.startswith("make room on the disk of the database")
    assert database.needs() == [caught.value.remedy]
    database.engine.dispose()
    room[0] = PAGES * 1000
    with database.transaction() as session:
        session.execute(fill)
    assert database.needs() == []
    database.close()


@pytest.mark.parametrize(
    "content", [b"no database" * 1000, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database_is_to_be_restored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "control.db").write_bytes(content)
    with pytest.raises(DatabaseError) as caught:
        migrate(f"sqlite:///{tmp_path / 'control.db'}")
    assert "restore a backup" in caught.value.remedy
    assert (tmp_path / "control.db").read_bytes() == content


def test_a_new_database_beside_packages_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'control.db'}"
    fleet = Fleet(url, tmp_path)
    fleet.publish(two_variants("1", best="one"))
    fleet.close()
    assert not is_empty(url)
    assert "the database is new" not in caplog.text
    for file in tmp_path.glob("control.db*"):
        file.unlink()
    fleet.kill()
    fleet.close()
    assert "has packages: if it was lost, stop the controller and restore a backup" in caplog.text
