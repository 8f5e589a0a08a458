"""`fleet access` and `fleet audit` against a controller in this process."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.api.server import HttpServer
from tests.simulators.controller_fleet import Fleet
from tests.simulators.stack import Done, fleet_here


class Commands:
    """A controller, and commands that ask it."""

    def __init__(self, fleet: Fleet, url: str, directory: Path) -> None:
        self.fleet = fleet
        self.directory = directory
        self._url = url

    def run(self, *words: str, key_file: str = "api.token") -> Done:
        file = self.directory / key_file
        return fleet_here(*words, "--url", self._url, "--token-file", str(file))

    def ok(self, *words: str, key_file: str = "api.token") -> Done:
        done = self.run(*words, key_file=key_file)
        assert done.code == 0, done.err
        return done


@pytest.fixture
def commands(sqlite_template: Path, tmp_path: Path) -> Iterator[Commands]:
    database = tmp_path / "fleet.db"
    database.write_bytes(sqlite_template.read_bytes())
    fleet = Fleet(f"sqlite:///{database}", tmp_path)
    server = HttpServer("127.0.0.1", 0)
    server.start(fleet.controller.app)
    yield Commands(fleet, f"http://127.0.0.1:{server.port}", tmp_path)
    server.stop()
    fleet.close()


def test_a_token_is_made_used_rotated_and_revoked(commands: Commands, tmp_path: Path) -> None:
    assert "there is only the token" in commands.ok("access", "list").err
    file = tmp_path / "ci.token"
    made = commands.ok("access", "create", "ci", "--role", "viewer", "-o", str(file))
    assert made.out == ""
    assert "is of ci, viewer, and expires" in made.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = file.read_text()
    commands.ok("device", "list", key_file="ci.token")
    refused = commands.run("access", "list", key_file="ci.token")
    assert refused.code == 2
    assert refused.err == (
        "fleet: listing API tokens needs the role admin; the API token ci is of a viewer; use "
        "another token; an admin makes one with `fleet access create`\n"
    )
    again = commands.run("access", "create", "max", "--role", "viewer", "-o", str(file))
    assert (again.code, "it exists" in again.err) == (2, True)
    commands.ok("access", "rotate", "ci", "--expires", "1d", "-o", str(file))
    assert file.read_text() != first
    commands.ok("device", "list", key_file="ci.token")
    listed = commands.ok("access", "list").out
    assert listed.splitlines()[1].split()[:3] == ["ci", "viewer", "valid"]
    shown = commands.ok("access", "show", "ci").out
    assert "100/s" in shown
    assert "by home" in shown
    assert commands.ok("access", "revoke", "ci").out == "ci revoked\n"
    ended = commands.run("device", "list", key_file="ci.token")
    assert ended.err == (
        "fleet: the API token ci was revoked; an admin makes another: fleet access create NAME "
        "--role viewer\n"
    )
    token = commands.ok("access", "create", "kim", "--role", "admin", "--rate", "30/min")
    assert token.out.startswith("eft_")
    assert commands.ok("access", "show", "kim", "--json").json["rate_per_s"] == 0.5


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("ci", "--role", "root"), "--role: 'root' is none; use one of: viewer, operator,"),
        (("ci", "--role", "viewer", "--rate", "fast"), "--rate: 'fast' is not a rate; write it"),
        (("ci", "--role", "viewer", "--rate", "99999/s"), "--rate: '99999/s' is not within"),
        (("home", "--role", "viewer"), "'home' is the name of a token in a file; choose"),
        (("ci", "--role", "viewer", "-o", "/no/such/ci"), "cannot write /no/such/ci: no such"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(
    commands: Commands, words: tuple[str, ...], fault: str
) -> None:
    done = commands.run("access", "create", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"fleet: {fault}")
    assert done.err.count("\n") == 1


def test_the_log_is_shown_and_verified(commands: Commands, tmp_path: Path) -> None:
    for name in ("ci", "kim", "max"):
        commands.ok("access", "create", name, "--role", "viewer")
    lines = commands.ok("audit", "list", "--subject", "kim").out.splitlines()
    assert lines[1].split()[-6:] == ["admin", "POST", "/v1/access", "kim", "viewer", "committed"]
    assert len(commands.ok("audit", "list", "--actor", "home", "--json").json) == 3
    assert "no such row" in commands.ok("audit", "list", "--actor", "nobody").err
    whole = commands.ok("audit", "verify")
    assert whole.out.startswith("3 rows fit; the head is ")
    head = whole.out.split()[-1]
    assert commands.ok("audit", "verify", "--json").json["head"] == head
    commands.ok("access", "create", "more", "--role", "viewer")
    commands.ok("audit", "verify", "--head", head)
    assert commands.run("audit", "verify", "--head", "abc").code == 2
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'fleet.db'}")
    with engine.begin() as connection:
        for trigger in ("audit_refuses_update", "audit_refuses_delete"):
            connection.execute(sa.text(f"DROP TRIGGER {trigger}"))
        connection.execute(sa.text("DELETE FROM audit WHERE sequence > 2"))
    cut = commands.run("audit", "verify", "--head", head)
    assert (cut.code, "the log was cut off" in cut.out) == (1, True)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE audit SET role = 'viewer' WHERE sequence = 2"))
    engine.dispose()
    changed = commands.run("audit", "verify")
    assert changed.code == 1
    assert changed.out == (
        "row 2 does not fit to its hash: it or the row before was changed; 1 row before it fit\n"
    )
