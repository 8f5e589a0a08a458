"""A thread that uses a connection while the database is closed leaves none open."""

from __future__ import annotations

import pytest

from controller.store.database import Database

pytestmark = pytest.mark.flow


def test_a_connection_that_comes_back_late_is_closed(database_url: str) -> None:
    database = Database(database_url)
    connection = database.engine.connect()
    late = connection.connection.driver_connection
    assert late is not None
    database.close()
    assert connection.exec_driver_sql("SELECT 1").scalar_one() == 1
    connection.close()
    with pytest.raises(Exception, match="closed"):
        late.cursor().execute("SELECT 1")
