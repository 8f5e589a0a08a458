"""Credentials are found where Docker, Podman and Skopeo keep them, and shown nowhere."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from packager.errors import RegistryError
from packager.registry.credentials import Login, find_login, login_file
from packager.registry.reference import Reference

SECRET = "not-to-be-seen"
NO_COLON = base64.b64encode(SECRET.encode()).decode()
PLACE = Reference("registry.example:5000", "team/digits")


def auth(user: str, password: str = SECRET) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def found(tmp_path: Path, config: dict[str, Any]) -> Login | None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return find_login(tmp_path / "config.json", PLACE)


def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "docker-credential-test"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_the_file_is_that_of_docker_unless_another_is_named(tmp_path: Path) -> None:
    assert login_file({}, tmp_path) == tmp_path / ".docker" / "config.json"
    assert login_file({"DOCKER_CONFIG": "/d"}, tmp_path) == Path("/d/config.json")
    assert login_file({"DOCKER_CONFIG": "/d", "REGISTRY_AUTH_FILE": "/a.json"}, tmp_path) == Path(
        "/a.json"
    )


def test_no_file_and_no_entry_are_no_credentials(tmp_path: Path) -> None:
    assert find_login(tmp_path / "none.json", PLACE) is None
    assert found(tmp_path, {}) is None
    assert found(tmp_path, {"auths": {"other.example": {"auth": auth("other")}}}) is None
    assert found(tmp_path, {"auths": {"registry.example:5000": {}}}) is None


@pytest.mark.parametrize(
    "key",
    [
        "registry.example:5000",
        "https://registry.example:5000",
        "https://registry.example:5000/v1/",
        "registry.example:5000/team",
        "registry.example:5000/team/digits",
    ],
)
def test_the_ways_to_write_a_registry(key: str, tmp_path: Path) -> None:
    login = found(tmp_path, {"auths": {key: {"auth": auth("robot")}}})
    assert login == Login(username="robot", password=SECRET)
    assert login.basic == f"Basic {auth('robot')}"


def test_a_narrower_entry_comes_first(tmp_path: Path) -> None:
    entries = ["registry.example:5000", "registry.example:5000/team", "registry.example:5000/te"]
    login = found(tmp_path, {"auths": {key: {"auth": auth(key[-4:])} for key in entries}})
    assert login is not None
    assert login.username == "team"


def test_another_port_is_another_registry(tmp_path: Path) -> None:
    for key in ("registry.example", "registry.example:5001", "gistry.example:5000"):
        assert found(tmp_path, {"auths": {key: {"auth": auth("robot")}}}) is None


def test_a_password_may_have_colons(tmp_path: Path) -> None:
    login = found(tmp_path, {"auths": {PLACE.host: {"auth": auth("robot", "a:b:c")}}})
    assert login == Login(username="robot", password="a:b:c")


def test_a_user_and_a_password_may_be_written_plainly(tmp_path: Path) -> None:
    entry = {"username": "robot", "password": SECRET}
    assert found(tmp_path, {"auths": {PLACE.host: entry}}) == Login(
        username="robot", password=SECRET
    )


def test_an_identity_token_is_no_password(tmp_path: Path) -> None:
    login = found(
        tmp_path, {"auths": {PLACE.host: {"auth": auth("00", ""), "identitytoken": SECRET}}}
    )
    assert login == Login(username="00", token=SECRET)
    assert login.basic == ""


@pytest.mark.parametrize("named", [{"credsStore": "test"}, {"credHelpers": {PLACE.host: "test"}}])
def test_a_helper_is_asked_for_this_registry(
    named: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(
        tmp_path,
        monkeypatch,
        f'read -r host; [ "$1" = get ] && echo "{{\\"ServerURL\\":\\"$host\\",'
        f'\\"Username\\":\\"for $host\\",\\"Secret\\":\\"{SECRET}\\"}}"',
    )
    assert found(tmp_path, named) == Login(username=f"for {PLACE.host}", password=SECRET)


def test_a_helper_may_give_a_token_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper(
        tmp_path,
        monkeypatch,
        f'echo \'{{"Username":"<token>","Secret":"{SECRET}"}}\'; exit $STATUS',
    )
    monkeypatch.setenv("STATUS", "0")
    assert found(tmp_path, {"credsStore": "test"}) == Login(username="<token>", token=SECRET)
    monkeypatch.setenv("STATUS", "1")
    assert found(tmp_path, {"credsStore": "test"}) is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"credsStore": "not-there-at-all"}, "docker-credential-not-there-at-all cannot be run"),
        ({"credsStore": "../evil"}, "is not a plain name"),
        ({"auths": {PLACE.host: {"auth": f"{SECRET}!"}}}, "holds no credentials of the form"),
        ({"auths": {PLACE.host: {"auth": NO_COLON}}}, "holds no credentials of the form"),
        ({"auths": {PLACE.host: SECRET}}, "holds no credentials of the form"),
        ({"auths": [SECRET]}, "holds no credentials of the form"),
    ],
)
def test_what_cannot_be_used_is_told_without_its_content(
    config: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(RegistryError, match=why) as told:
        found(tmp_path, config)
    assert SECRET not in str(told.value)
    assert told.value.__cause__ is None or SECRET not in str(told.value.__cause__)


def test_a_login_does_not_show_its_secrets() -> None:
    assert SECRET not in repr(Login(username="robot", password=SECRET, token=SECRET))
