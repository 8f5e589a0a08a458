"""A controller in the wrong hands shows a fleet of its own to those who sign: they sign nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controller.metadata.drafts import write_draft
from controller.metadata.edit import put, renewed
from packager.package.keys import generate_key
from tests.simulators.clock import FakeClock
from tests.simulators.packages import package, variant
from tests.simulators.repository import Repository
from tests.simulators.stack import fleet_here
from wire.clock import SystemClock
from wire.trust.envelope import SigningKey
from wire.trust.roles import RELEASES, ROOT, TARGETS


class Hostile:
    """An API that shows what a thief wants, and keeps what it is sent."""

    def __init__(self) -> None:
        self.shown = Repository(now_s=SystemClock().now_s())
        self.got: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                files = {file.name: file.content for file in outer.shown.files()}
                self.answer({"files": files})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(json.loads(body))
                self.answer({"fleet": "", "roles": []})

            def answer(self, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def options(self) -> tuple[str, ...]:
        """Where commands find it."""
        return ("--url", f"http://127.0.0.1:{self.server.server_port}")

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    monkeypatch.setenv("FLEET_TOKEN", "a-token-of-the-operator-0123456789")
    made = Hostile()
    yield made
    made.close()


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a folder with an operator's keys and the root of his fleet."""
    own = Repository(now_s=FakeClock().now_s())
    own.write_root(tmp_path / "root.json")
    for role, name in ((RELEASES, "release.key"), (TARGETS, "targets.key"), (ROOT, "root-1.key")):
        (tmp_path / name).write_bytes(own.seeds[role][0])
        (tmp_path / name).chmod(0o600)
    return tmp_path


def test_nobody_signs_for_another_fleet(hostile: Hostile, keys: Path, tmp_path: Path) -> None:
    generate_key(tmp_path / "new.key")
    seed = (keys / "release.key").read_bytes()
    package("1", [(variant("best"), b"model")], key=SigningKey(seed)).write_to(tmp_path / "p")
    new, release = str(tmp_path / "new.key"), str(keys / "release.key")
    for command in (
        ("key", "sign", "releases", "--key", release),
        ("key", "sign", "root", "--key", str(keys / "root-1.key")),
        ("key", "rotate", "root", "--to", new, "--key", str(keys / "root-1.key")),
        ("key", "rotate", "director", "--to", new, "--key", str(keys / "targets.key")),
        ("key", "revoke", "releases", "a", "--key", release),
        ("key", "delegate", "digits", "--to", new, "--key", release),
        ("release", "publish", str(tmp_path / "p"), "--key", release),
        ("key", "export", str(tmp_path / "metadata.json"), "--root", str(keys / "root.json")),
    ):
        done = fleet_here(*hostile.options, *command)
        assert done.code == 2, command
        assert "does not follow" in done.err
        assert "sign nothing" in done.err
    assert hostile.got == []
    assert not (tmp_path / "metadata.json").exists()


def test_an_older_list_is_not_signed_again(hostile: Hostile, keys: Path, tmp_path: Path) -> None:
    fleet = hostile.shown
    fleet.write_root(keys / "root.json")
    (keys / "release.key").write_bytes(fleet.seeds[RELEASES][0])
    fleet.list("digits", "1.0.0", "0" * 64)
    old, now_s = fleet.authored, fleet.now_s
    fleet.now_s += 60
    fleet.unlist("digits", "1.0.0")
    newest = fleet.authored
    root = ("--root", str(keys / "root.json"))
    saved = str(tmp_path / "metadata.json")
    assert fleet_here(*hostile.options, "key", "export", saved, *root).code == 0

    fleet.authored, fleet.now_s = old, now_s
    fleet.renew()
    seed = (keys / "release.key").read_bytes()
    package("1", [(variant("best"), b"model")], key=SigningKey(seed)).write_to(tmp_path / "p")
    release = ("--key", str(keys / "release.key"))
    for command in (
        ("key", "sign", "releases", *release),
        ("release", "publish", str(tmp_path / "p"), *release),
        ("key", "export", saved, *root),
    ):
        done = fleet_here(*hostile.options, *command)
        assert done.code == 2, command
        assert "older metadata than was seen here before: releases" in done.err
        assert "in that case alone remove" in done.err
    draft = tmp_path / "old.draft"
    document = renewed(old, RELEASES, now_s + 120)
    draft.write_bytes(write_draft(old, put(old, RELEASES, document)))
    done = fleet_here("key", "sign", str(draft), *release, "--yes")
    assert done.code == 2
    assert "make a draft anew" in done.err
    assert hostile.got == []

    fleet.authored = newest
    fleet.renew()
    done = fleet_here(*hostile.options, "key", "sign", "releases", *release)
    assert done.code == 0, done.err
    assert len(hostile.got) == 1


def test_a_file_of_another_kind_is_no_alarm(hostile: Hostile, keys: Path) -> None:
    wrong = keys / "trust.json"
    wrong.write_text('{"schema_version":1,"release":{"keys":[]}}')
    done = fleet_here(*hostile.options, "key", "sign", "releases", "--root", str(wrong),
                      "--key", str(keys / "release.key"))  # fmt: skip
    assert done.code == 2
    assert "is no root of trusted metadata; name the root.json" in done.err


def test_without_a_root_that_is_known_nobody_signs(hostile: Hostile, tmp_path: Path) -> None:
    generate_key(tmp_path / "release.key")
    done = fleet_here(
        *hostile.options, "key", "sign", "releases", "--key", str(tmp_path / "release.key")
    )
    assert done.code == 2
    assert "add --root FILE" in done.err
