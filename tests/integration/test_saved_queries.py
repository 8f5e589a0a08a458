"""Saved queries over the API, on both databases: what is kept, what is refused, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.domain.saved_queries import MAX_QUERIES, MAX_QUERY_BYTES
from controller.store.database import Database
from controller.store.saved_query_tables import SavedQueryRow
from tests.simulators.controller_fleet import Fleet

PATH = "/v1/telemetry/saved"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def body(metric: str = "temperature_c", *, saved_by: str = "kim", **query: Any) -> dict[str, Any]:
    return {"query": {"metric": metric, **query}, "saved_by": saved_by}


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("Heat", body(), "not a name for a saved query: 'Heat'"),
    ("h" * 64, body(), "not a name for a saved query"),
    ("heat", body("Temperature"), "not a name of a metric: 'Temperature'"),
    ("heat", body(""), "not a name of a metric: ''"),
    ("heat", body(stat="p95"), "temperature_c is a gauge and has no statistic 'p95'"),
    ("heat", body(step="90s"), "a step of 90 s is not whole minutes"),
    ("heat", body(step="-"), "'-' is not a duration"),
    ("heat", body(since="yesterday"), "not a time: 'yesterday'"),
    ("heat", body(since="1h", until="2h"), "the end of the time range is before"),
    ("heat", body(where=["a"]), "not a condition: 'a'"),
    ("heat", body(by="a,,b"), "not a list of groups"),
    ("heat", body(by="minute", step="5m"), "both a step and grouping by minute"),
    ("heat", body(selector="site=="), "selector"),
    ("heat", body(format="excel"), "query.format"),
    ("heat", body(colour="red"), "query.colour"),
    ("heat", body(saved_by="x" * 65), "saved_by is longer than 64 characters"),
    ("heat", body(saved_by="kim\x1b"), "or not printable"),
    ("heat", body(where=[f"a={n:090}" for n in range(60)]), "bytes as JSON"),
    ("heat", body(selector="x" * MAX_QUERY_BYTES), "bytes as JSON"),
]


def test_a_query_is_kept_until_it_is_removed(fleet: Fleet) -> None:
    asked = body(by="site", where=["device=cam-1"], step="5m", format="plot")
    kept = fleet.api.put(f"{PATH}/heat", json=asked).raise_for_status().json()
    assert len(kept.pop("doubts")) == 1, "no device has a site"
    assert (kept["name"], kept["saved_by"]) == ("heat", "kim")
    assert kept["saved_at_s"] == fleet.clock.now_s()
    assert kept["query"] == {
        "metric": "temperature_c", "stat": "", "by": "site", "where": ["device=cam-1"],
        "selector": "", "since": "1h", "until": "", "step": "5m", "format": "plot",
    }  # fmt: skip
    fleet.kill()
    assert fleet.api.get(PATH).json() == [kept]
    assert fleet.api.get(f"{PATH}/heat").json() == kept
    assert fleet.api.delete(f"{PATH}/heat").json() == kept
    assert fleet.api.get(PATH).json() == []
    assert fleet.api.delete(f"{PATH}/heat").status_code == 404


def test_another_query_of_that_name_is_replaced_only_where_it_is_asked(fleet: Fleet) -> None:
    first = fleet.api.put(f"{PATH}/heat", json=body()).json()
    fleet.clock.advance(60)
    again = fleet.api.put(f"{PATH}/heat", json=body(saved_by="lee")).json()
    assert again == first, "the same query is kept as it is"
    refused = fleet.api.put(f"{PATH}/heat", json=body("battery_ratio"))
    assert refused.status_code == 409
    assert refused.json()["message"] == "there is another saved query 'heat', saved by kim"
    changed = fleet.api.put(
        f"{PATH}/heat?replace=true", json=body("battery_ratio", saved_by="lee")
    ).json()
    assert (changed["query"]["metric"], changed["saved_by"]) == ("battery_ratio", "lee")
    assert changed["saved_at_s"] == first["saved_at_s"] + 60


def test_what_could_not_be_answered_today_is_kept_and_said(fleet: Fleet) -> None:
    fleet.enrol("cam-1", site="berlin")
    for query, said in (
        ({"by": "site", "where": ["device=cam-1"], "selector": "site"}, ""),
        ({"by": "sight"}, "no device has it as a label; did you mean site?"),
        ({"where": ["devise=cam-1"]}, "has no attribute 'devise'; did you mean device?"),
        ({"selector": "sight=berlin"}, "; no device has a label 'sight'; did you mean site?"),
    ):
        path = f"{PATH}/heat?replace=true"
        doubts = fleet.api.put(path, json=body(**query)).raise_for_status().json()["doubts"]
        assert len(doubts) == bool(said)
        assert said in "".join(doubts)


def test_what_cannot_be_asked_is_not_kept(fleet: Fleet) -> None:
    for name, asked, said in WRONG:
        refused = fleet.api.put(f"{PATH}/{name}", json=asked)
        assert refused.status_code == 422, said
        assert said in refused.json()["message"]
    misspelt = fleet.api.put(f"{PATH}/heat", json=body("temperture_c"))
    assert misspelt.status_code == 404
    assert misspelt.json()["remedy"].startswith("did you mean temperature_c")
    assert fleet.api.get(PATH).json() == []


def test_there_are_not_more_than_the_greatest_number(fleet: Fleet, database_url: str) -> None:
    database = Database(database_url)
    kept = fleet.api.put(f"{PATH}/first", json=body()).json()["query"]
    with database.transaction() as session:
        for number in range(MAX_QUERIES - 1):
            session.add(SavedQueryRow(name=f"q{number}", query=kept, saved_by="", saved_at_s=1.0))
    database.close()
    refused = fleet.api.put(f"{PATH}/more", json=body())
    assert (refused.status_code, len(fleet.api.get(PATH).json())) == (409, MAX_QUERIES)
    assert refused.json()["remedy"] == "take one away: fleet telemetry forget NAME"
    assert fleet.api.put(f"{PATH}/q7", json=body()).status_code == 200
    unknown = fleet.api.get(f"{PATH}/q7777").json()
    assert unknown["code"] == "controller.unknown.saved_query"
    assert unknown["remedy"].startswith("did you mean q")
