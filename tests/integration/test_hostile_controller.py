"""A controller in the wrong hands shows a fleet of its own to those who sign: they sign nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controller.metadata.drafts import write_draft
from controller.metadata.edit import put, renewed, with_keys, with_release
from controller.metadata.online import signer_of
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
        self.got: list[dict[str, object]] = []
        self.releases: dict[str, dict[str, object]] = {}
        """What it answers for a release, by how that is named."""

        self.hides = False
        """Whether it says that the fleet has no metadata."""

        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rpartition("/")[2].replace("%3A", ":")
                if self.path.startswith("/v1/releases/") and name in outer.releases:
                    self.answer(outer.releases[name])
                elif self.path.startswith("/v1/releases/") or outer.hides:
                    self.answer({"code": "not_found", "message": "there is none"}, 404)
                else:
                    files = {file.name: file.content for file in outer.shown.files()}
                    self.answer({"files": files})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.got.append(json.loads(body or "{}"))
                if self.path.endswith("/revoke"):
                    name = self.path.split("/")[-2].replace("%3A", ":")
                    self.answer(outer.releases[name] | {"state": "revoked"})
                else:
                    self.answer({"fleet": "", "roles": []})

            def answer(self, value: object, status: int = 200) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
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


@pytest.fixture
def known(hostile: Hostile, keys: Path) -> tuple[str, ...]:
    """Return a release key of the fleet that is shown; its root lies beside it."""
    hostile.shown.write_root(keys / "root.json")
    (keys / "release.key").write_bytes(hostile.shown.seeds[RELEASES][0])
    return ("--key", str(keys / "release.key"))


def release(version: str, digest: str) -> dict[str, object]:
    """Return a release as the API shows it."""
    return {
        "name": "digits", "version": version, "digest": digest, "state": "published",
        "size_bytes": 1, "published_at_s": 0.0,
    }  # fmt: skip


def test_a_release_comes_off_its_list_or_the_command_fails(
    hostile: Hostile, known: tuple[str, ...], tmp_path: Path
) -> None:
    """Whoever revokes must not hear that it is done while devices may still take it."""
    digests = {"1.0.0": "1" * 64, "2.0.0": "2" * 64}
    for version, digest in digests.items():
        hostile.shown.list("digits", version, digest)
    one, two = (release(version, digest) for version, digest in digests.items())
    revoke = (*hostile.options, "release", "revoke")

    hostile.releases = {"digits:1.0.0": two, digests["1.0.0"]: two}
    for named in hostile.releases:
        done = fleet_here(*revoke, named, *known)
        assert done.code == 2
        assert "the controller answers for digits:2.0.0" in done.err

    hostile.releases, hostile.hides = {"digits:1.0.0": one}, True
    package("1", [(variant("best"), b"model")]).write_to(tmp_path / "p")
    for command in (
        (*revoke, "digits:1.0.0"),
        (*hostile.options, "release", "publish", str(tmp_path / "p")),
    ):
        done = fleet_here(*command, *known)
        assert done.code == 2
        assert "no trusted metadata" in done.err
    assert hostile.got == []

    hostile.hides = False
    one["version"] = "9.9.9"
    hostile.releases = {digests["1.0.0"]: one}
    done = fleet_here(*revoke, digests["1.0.0"], *known)
    assert done.code == 0, done.err
    (sent,) = (body["files"] for body in hostile.got if "files" in body)
    assert isinstance(sent, dict)
    (listed,) = (json.loads(text) for text in sent.values())
    assert [*listed["signed"]["targets"]] == ["digits/2.0.0"]


def test_who_revokes_sees_from_when_the_list_is(
    hostile: Hostile, keys: Path, known: tuple[str, ...]
) -> None:
    """A list from before a release may be shown, to somebody who has seen none yet."""
    hostile.releases = {"digits:1.0.0": release("1.0.0", "1" * 64)}
    revoke = (*hostile.options, "release", "revoke", "digits:1.0.0", *known)
    done = fleet_here(*revoke)
    assert done.code == 0, done.err
    assert "digits:1.0.0 is on no list: releases is version" in done.err
    long_ago = Repository(now_s=SystemClock().now_s() - 400 * 86_400.0)
    hostile.shown, hostile.got = long_ago, []
    long_ago.write_root(keys / "root.json")
    (keys / "release.key").write_bytes(long_ago.seeds[RELEASES][0])
    done = fleet_here(*revoke)
    assert done.code == 2
    assert "the list releases that the controller shows ended on" in done.err
    assert hostile.got == []


def test_a_digest_that_is_listed_twice_names_no_release(
    hostile: Hostile, known: tuple[str, ...]
) -> None:
    for name in ("aaa", "digits"):
        hostile.shown.list(name, "1.0.0", "1" * 64)
    hostile.releases = {"1" * 64: release("1.0.0", "1" * 64)}
    done = fleet_here(*hostile.options, "release", "revoke", "1" * 64, *known)
    assert done.code == 2
    assert "is listed as aaa:1.0.0, digits:1.0.0" in done.err
    assert hostile.got == []


def test_where_no_root_is_known_rollouts_are_stopped_all_the_same(
    hostile: Hostile, keys: Path
) -> None:
    """A fleet with a trust file has no metadata, whatever keys its operator has at hand."""
    (keys / "root.json").unlink()
    hostile.hides, hostile.releases = True, {"digits:1.0.0": release("1.0.0", "1" * 64)}
    key = ("--key", str(keys / "release.key"))
    done = fleet_here(*hostile.options, "release", "revoke", "digits:1.0.0", *key)
    assert done.code == 0, done.err
    assert len(hostile.got) == 1


def test_a_draft_that_goes_by_keys_of_before_is_not_signed(
    hostile: Hostile, keys: Path, known: tuple[str, ...], tmp_path: Path
) -> None:
    """A list is new, but the keys beside it are of before a theft: who signs vouches for both."""
    fleet = hostile.shown
    fleet.rotate(RELEASES, keep=True)
    (keys / "release.key").write_bytes(fleet.seeds[RELEASES][0])
    fleet.now_s += 60
    fleet.list("digits", "6.6.6", "6" * 64)
    old = fleet.authored
    fleet.now_s += 60
    (thief,) = fleet.authored.keys(RELEASES).keys() - {
        signer_of(fleet.seeds[RELEASES][0]).public_key.keyid
    }
    document = with_keys(fleet.authored, RELEASES, fleet.now_s, remove=[thief])
    fleet.change(TARGETS, document)
    root = ("--root", str(keys / "root.json"))
    seen = fleet_here(*hostile.options, "key", "export", str(tmp_path / "m.json"), *root)
    assert seen.code == 0, seen.err

    listed = with_release(old, "digits", "3.0.0", sha256="3" * 64, size_bytes=1,
                          now_s=fleet.now_s + 60)  # fmt: skip
    assert listed is not None
    draft = tmp_path / "old.draft"
    draft.write_bytes(write_draft(old, put(old, *listed)))
    done = fleet_here("key", "sign", str(draft), *known, *root, "--yes")
    assert done.code == 2
    assert "older metadata than was seen here before: targets" in done.err


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
