"""`database_url`: a database with today's tables for each test, once on SQLite, once on PostgreSQL.

The tables are made once per test session, and copied. `empty_database_url` has none. The PostgreSQL
server is a real one, in a directory of its own, on a Unix socket only. It is made once per test
session, on first use.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from controller.app.backup import back_up
from controller.store.database import Database, migrate
from tests.simulators.agent_process import anonymous_broker, controller, device, serving
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stored_fleet import CLOCK, stored_home

# Fixtures of an agent as a process.
__all__ = ["anonymous_broker", "controller", "device", "serving"]

SERVER_OPTIONS = (
    "listen_addresses=",  # no TCP at all
    "unix_socket_permissions=0700",
    "fsync=off",  # the data lives as long as the tests
    "synchronous_commit=off",
    "full_page_writes=off",
    "shared_buffers=16MB",
    "max_connections=50",
)
KINDS = ("sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql))
_numbers = count(1)


class PostgresServer:
    """A temporary cluster.

    Args:
        binaries: Where `initdb` and `postgres` are.
        directory: An empty directory that the server's user may enter.
    """

    def __init__(self, binaries: Path, directory: Path) -> None:
        self._binaries = binaries
        self._directory = directory
        self._prefix = _as_unprivileged(directory)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Make the cluster, start the server and wait until it accepts."""
        data = self._directory / "data"
        made = subprocess.run(
            [
                *(*self._prefix, str(self._binaries / "initdb"), "--pgdata", str(data)),
                *("--username", "fleet", "--auth", "trust", "--encoding", "UTF8"),
                *("--locale", "C", "--no-sync"),
            ],
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            cwd="/",
        )
        if made.returncode != 0:
            raise RuntimeError(f"initdb failed: {made.stderr.decode(errors='replace')}")
        options = [word for option in SERVER_OPTIONS for word in ("-c", option)]
        with (self._directory / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(*self._prefix, str(self._binaries / "postgres"), "-D", str(data)),
                    *("-k", str(self._directory), *options),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        self._wait_until_accepting()

    def stop(self) -> None:
        """End the server, which disconnects whoever is left."""
        if self._process is None:
            return
        for how in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            self._process.send_signal(how)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                continue
            return

    def create_database(self, template: str = "template0") -> str:
        """Make a copy of a database, by default of an empty one, and return its name."""
        name = f"test_{next(_numbers)}"
        with self._connection() as connection:
            # Since version 15 copies go through the log, which takes several times as long.
            how = "STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} {how}".encode())
        return name

    def drop_database(self, name: str) -> None:
        """Remove a database even if a test left a connection open."""
        self._execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def shut(self, name: str) -> None:
        """Let nobody use a database, as if its server were away."""
        with self._connection() as connection:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false".encode())
            ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(ends, [name])

    def open(self, name: str) -> None:
        """Let a database be used again."""
        self._execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    def url(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://fleet@/{name}?host={self._directory}"

    def _execute(self, statement: str) -> None:
        with self._connection() as connection:
            connection.execute(statement.encode())

    def _connection(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host=str(self._directory), user="fleet", dbname="postgres", autocommit=True
        )

    def _wait_until_accepting(self) -> None:
        if until(self._accepts_or_ended, "PostgreSQL") == "ended":
            log = (self._directory / "server.log").read_text(errors="replace")
            raise RuntimeError(f"the test server did not start: {log[-500:]}")

    def _accepts_or_ended(self) -> Literal["accepts", "ended", ""]:
        if self._process is None or self._process.poll() is not None:
            return "ended"
        try:
            self._execute("SELECT 1")
        except psycopg.OperationalError:
            return ""
        return "accepts"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; skips where PostgreSQL is not installed."""
    binaries = _find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server binaries are not installed")
    # A short path of its own: a socket's path may have 107 characters, pytest's have more.
    with tempfile.TemporaryDirectory(prefix="edgefleet-pg-") as directory:
        server = PostgresServer(binaries, Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a database with today's tables."""
    name = postgres_server.create_database()
    migrate(postgres_server.url(name))
    return name


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with today's tables."""
    path = tmp_path_factory.mktemp("template") / "fleet.db"
    migrate(f"sqlite:///{path}")
    assert list(path.parent.iterdir()) == [path]
    return path


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a database with today's tables."""
    if request.param == "sqlite":
        made = tmp_path / "fleet.db"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), made)
        yield f"sqlite:///{made}"
    else:
        yield from _copied(request, request.getfixturevalue("postgres_template"))


@pytest.fixture(params=KINDS)
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'fleet.db'}"
    else:
        yield from _copied(request, "template0")


@pytest.fixture(params=KINDS)
def target_database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database beside another; of SQLite one in a controller's directory."""
    if request.param == "sqlite":
        yield "sqlite:///controller.db"
    else:
        yield from _copied(request, "template0")


def _copied(request: pytest.FixtureRequest, template: str) -> Iterator[str]:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = server.create_database(template)
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)


def _find_binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    candidates = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0,
    )
    return candidates[-1].parent if candidates else None


def _as_unprivileged(directory: Path) -> list[str]:
    """Give the directory to an unprivileged user if we are root; the server refuses to be root."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("running as root without setpriv, and PostgreSQL refuses root")
    for name in ("postgres", "nobody"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(directory, user.pw_uid, user.pw_gid)
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}")
        return ["setpriv", *ids, "--clear-groups", "--"]
    return pytest.skip("running as root, and there is no user postgres or nobody")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    migrate(database_url)
    opened = Database(database_url)
    yield opened
    opened.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    stored_home(tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def backup(home: Path, tmp_path: Path) -> Path:
    back_up(home, tmp_path / "fleet.tar", CLOCK)
    return tmp_path / "fleet.tar"
