"""Which role may ask for what."""

from __future__ import annotations

import re
from pathlib import Path

from controller.domain.acts import ACTS, act
from controller.domain.roles import RIGHTS, Role, may, needed

PAGE = Path(__file__).parents[4] / "docs/access.md"
CHANGING = [route for route in RIGHTS if route.split()[0] not in {"GET", "HEAD"}]


def test_a_viewer_changes_nothing_and_an_approver_approves() -> None:
    assert [route for route in CHANGING if may(Role.VIEWER, route)] == []
    approves = [route for route in CHANGING if may(Role.APPROVER, route)]
    assert approves == ["POST /v1/rollouts/{rollout}/approve"]
    assert {route for route in RIGHTS if may(Role.VIEWER, route)} | set(approves) == {
        route for route in RIGHTS if may(Role.APPROVER, route)
    }


def test_an_operator_does_all_but_approve_and_rule_tokens() -> None:
    assert [route for route in CHANGING if not may(Role.OPERATOR, route)] == [
        "POST /v1/access",
        "DELETE /v1/access/{name}",
        "POST /v1/access/{name}/rotate",
        "POST /v1/rollouts/{rollout}/approve",
    ]


def test_what_not_all_may_do_has_words() -> None:
    limited = {route for route, roles in RIGHTS.items() if roles != frozenset(Role)}
    assert set(ACTS) == limited
    assert act("POST /v1/rollouts/{rollout}/approve") == "approving a rollout"
    assert act("POST /v1/new") == "POST /v1/new"


def test_what_the_table_lacks_is_for_an_admin() -> None:
    assert [role for role in Role if may(role, "POST /v1/new")] == [Role.ADMIN]
    assert needed("POST /v1/new") == "admin"
    assert needed("POST /v1/rollouts") == "operator or admin"
    assert all(may(Role.ADMIN, route) for route in RIGHTS)


def test_the_document_has_the_same_table() -> None:
    rows = re.findall(r"^\| `([A-Z]+ /[^`]*)` \| ([a-z, ]+) \|$", PAGE.read_text(), re.MULTILINE)
    limited = {route: roles for route, roles in RIGHTS.items() if roles != frozenset(Role)}
    assert {route: {Role(name) for name in roles.split(", ")} for route, roles in rows} == limited
    assert {route for route in RIGHTS if route not in limited and not route.startswith("GET ")} == {
        "HEAD /openapi.json",
        "HEAD /v1/blobs/{sha256}",
    }
