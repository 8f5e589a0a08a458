"""API tokens: what each role may do, and when a token counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.domain.roles import RIGHTS, Role, may
from controller.services.access import NOTE_USE_EVERY_S
from controller.services.api_rates import WRONG_BURST
from controller.store import access_tables
from tests.simulators.controller_fleet import API_TOKEN, Fleet, TestClient
from tests.simulators.packages import two_variants

pytestmark = pytest.mark.flow
ONE = two_variants("1")
SOME_ROUTES = (
    "GET /v1/devices",
    "GET /v1/audit",
    "GET /v1/access",
    "POST /v1/access/{name}/rotate",
    "GET /v1/blobs/{sha256}",
    "PUT /v1/policies/{policy}",
    "POST /v1/rollouts/{rollout}/approve",
    "POST /v1/rollouts/{rollout}/abort",
)
ROLLOUT = {"release": "digits:1", "stages": [{"count": 1}, {"percent": 100}], "approval": True}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def test_every_route_stands_in_the_table(fleet: Fleet) -> None:
    routes = {
        f"{method} {getattr(route, 'path', '')}"
        for route in fleet.controller.app.routes
        for method in getattr(route, "methods", ())
    }
    assert routes == set(RIGHTS)


def test_each_role_may_do_what_the_table_says(fleet: Fleet) -> None:
    for role in Role:
        token = fleet.token(f"a-{role}", role)
        for route in SOME_ROUTES:
            method, path = route.split()
            url = path.replace("{", "").replace("}", "")
            answer = fleet.ask(token, method, url)
            assert (answer.status_code != 403) == may(role, route), (role, route)
            assert answer.status_code < 500, (role, route)
    refused = fleet.ask(fleet.token("look", "viewer"), "POST", "/v1/rollouts/r1/pause")
    assert refused.json()["code"] == "controller.forbidden"
    assert refused.json()["message"] == (
        "pausing a rollout needs the role operator or admin; the API token look is of a viewer"
    )
    assert "connection" not in refused.headers


def test_a_token_is_shown_once_and_kept_as_a_digest(fleet: Fleet) -> None:
    token = fleet.token("ci", "operator")
    with fleet.controller._database.reading() as transaction:
        row = transaction.get_one(access_tables.ApiTokenRow, "ci")
        assert token not in str(vars(row))
    for path in ("/v1/access", "/v1/access/ci", "/v1/audit"):
        assert token not in fleet.api.get(path).text
    shown = fleet.api.get("/v1/access/ci").json()
    assert (shown["created_by"], shown["used_at_s"]) == ("home", None)
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 200
    at_s = fleet.clock.now_s()
    fleet.clock.advance(NOTE_USE_EVERY_S / 2)
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 200
    assert fleet.api.get("/v1/access/ci").json()["used_at_s"] == at_s  # written seldom
    fleet.clock.advance(NOTE_USE_EVERY_S)
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 200
    assert fleet.api.get("/v1/access/ci").json()["used_at_s"] == fleet.clock.now_s()


def test_a_token_ends(fleet: Fleet) -> None:
    token = fleet.token("ci", "operator", expires_in_s=3600)
    fleet.kill()
    fleet.clock.advance(3599)
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 200
    fleet.clock.advance(1)
    answer = fleet.ask(token, "GET", "/v1/devices")
    assert (answer.status_code, answer.json()["code"]) == (401, "controller.unauthorized.ended")
    assert answer.json()["message"] == "the API token ci has expired"
    fleet.clock.advance(40 * 86_400)
    answer = fleet.ask(token, "GET", "/v1/devices")
    assert answer.json()["message"] == "the API token is missing or wrong"


def test_a_revoked_token_is_refused_at_once_and_its_name_stays_taken(fleet: Fleet) -> None:
    token = fleet.token("ci", "operator")
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 200
    assert fleet.api.delete("/v1/access/ci").json()["state"] == "revoked"
    answer = fleet.ask(token, "GET", "/v1/devices")
    assert (answer.status_code, answer.json()["message"]) == (401, "the API token ci was revoked")
    fleet.kill()
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 401
    again = fleet.api.post("/v1/access", json={"name": "ci", "role": "viewer"})
    assert again.status_code == 409
    assert fleet.api.post("/v1/access/ci/rotate", json={}).status_code == 409
    assert fleet.api.delete("/v1/access/nobody").status_code == 404
    for name in ("home", "metrics", "A B"):
        answer = fleet.api.post("/v1/access", json={"name": name, "role": "viewer"})
        assert answer.status_code == 422, name


def test_what_another_controller_changed_counts_a_second_later(fleet: Fleet) -> None:
    token = fleet.token("ci", "operator")
    with fleet.controller._database.transaction() as transaction:
        row = transaction.get_one(access_tables.ApiTokenRow, "ci")
        row.revoked_at_s = fleet.clock.now_s()
    fleet.clock.advance(1)
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 401


def test_the_old_secret_counts_for_the_overlap(fleet: Fleet) -> None:
    old = fleet.token("ci", "operator")
    made = fleet.api.post("/v1/access/ci/rotate", json={"overlap_s": 60}).raise_for_status()
    new = made.json()["token"]
    assert new != old
    fleet.clock.advance(59)
    assert [fleet.ask(t, "GET", "/v1/devices").status_code for t in (old, new)] == [200, 200]
    fleet.clock.advance(1)
    assert [fleet.ask(t, "GET", "/v1/devices").status_code for t in (old, new)] == [401, 200]
    newest = fleet.api.post("/v1/access/ci/rotate", json={}).json()["token"]
    assert [fleet.ask(t, "GET", "/v1/devices").status_code for t in (new, newest)] == [401, 200]


def test_a_token_that_asks_too_often_is_told_when_to_ask_again(fleet: Fleet) -> None:
    token, other = fleet.token("ci", "viewer", rate_per_s=0.5), fleet.token("kim", "viewer")
    answers = [fleet.ask(token, "GET", "/v1/devices") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    assert answers[5].headers["retry-after"] == "2"
    assert answers[5].json()["code"] == "controller.rate_limited"
    assert "connection" not in answers[5].headers
    assert fleet.ask(other, "GET", "/v1/devices").status_code == 200
    fleet.clock.advance(2)
    assert fleet.ask(token, "GET", "/v1/devices").status_code == 200
    assert {fleet.api.get("/v1/devices").status_code for _ in range(50)} == {200}


def test_wrong_tokens_are_slowed_and_right_ones_are_not(fleet: Fleet) -> None:
    right = fleet.token("ci", "viewer")
    stranger = TestClient(fleet.controller.app)
    wrong = [{}, {"Authorization": f"Bearer {right[:-1]}x"}, {"Authorization": f"Basic {right}"}]
    codes = [
        stranger.get("/v1/devices", headers=wrong[number % 3]).status_code
        for number in range(int(WRONG_BURST))
    ]
    assert set(codes) == {401}
    answer = stranger.get("/v1/devices")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.headers["connection"] == "close"
    for token in (right, API_TOKEN):
        headers = {"Authorization": f"Bearer {token}"}
        assert stranger.get("/v1/devices", headers=headers).status_code == 200


def test_a_second_person_approves(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2")
    fleet.publish(ONE)
    kim, max_, boss = (
        fleet.token(name, role)
        for name, role in (("kim", "operator"), ("max", "approver"), ("boss", "admin"))
    )
    made = fleet.ask(kim, "POST", "/v1/rollouts", json=ROLLOUT).json()
    assert made["created_by"] == "kim"
    path = f"/v1/rollouts/{made['id']}/approve"
    for _ in range(5):
        fleet.step()
    assert fleet.ask(kim, "POST", path).status_code == 403
    assert fleet.ask(max_, "POST", path).status_code == 200
    assert fleet.run(made["id"])["state"] == "succeeded"
    boss_own = fleet.ask(boss, "POST", f"/v1/rollouts/{made['id']}/rollback", json={})
    assert boss_own.status_code == 409  # nothing was there before
    made = fleet.ask(boss, "POST", "/v1/rollouts", json=ROLLOUT).json()
    fleet.step()
    fleet.step()
    own = fleet.ask(boss, "POST", f"/v1/rollouts/{made['id']}/approve")
    assert (own.status_code, own.json()["code"]) == (403, "controller.forbidden.own_rollout")
    assert "fleet access create NAME --role approver" in own.json()["remedy"]


def test_notes_are_signed_with_the_name_of_the_token(fleet: Fleet) -> None:
    query = {"metric": "temperature_c"}
    body = {"query": query, "saved_by": "somebody else"}
    kim = fleet.token("kim", "operator")
    saved = fleet.ask(kim, "PUT", "/v1/telemetry/saved/heat", json=body)
    assert saved.status_code == 200, saved.text
    assert saved.json()["saved_by"] == "kim"
    saved = fleet.api.put("/v1/telemetry/saved/cold", json=body)
    assert saved.json()["saved_by"] == "somebody else"
