"""A whole controller with an empty fleet and without a broker, and what messages cost it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import sqlalchemy as sa

from benchmarks.scale.services import Clock
from controller.app.service import Controller
from controller.broker.certificates import make_authority
from controller.certificate_settings import DeviceCertificatesConfig
from controller.delivery.budget import Budget
from controller.delivery.chunks import ChunkServer
from controller.metadata.store import FOLDER, MetadataStore
from controller.services.blobs import BlobStore
from controller.store.database import Database
from tests.simulators.controller_fleet import API_TOKEN, MemoryAccess, TestClient, make_home
from tests.simulators.packages import DIRECTOR_SEED, two_variants
from tests.simulators.repository import Repository
from wire.codec import sha256_hex
from wire.trust.roles import SNAPSHOT, TIMESTAMP

NOW_S: Final = 1_750_000_000.0
PACKAGE: Final = two_variants("1")
RATE_BYTES_PER_S: Final = 10**9
PATIENCE_S: Final = 30.0


class Cost(NamedTuple):
    """What a message cost, as a mean."""

    processor_ms: float
    statements: float
    writes: float


class Counter:
    """Counts what goes to databases."""

    def __init__(self) -> None:
        self.statements = self.writes = 0
        sa.event.listen(sa.Engine, "before_cursor_execute", self._count)
        sa.event.listen(sa.Engine, "commit", self._commit)

    def of(self, messages: int, work: Callable[[], object]) -> Cost:
        """Do something with so many messages and return what each cost."""
        statements, writes = self.statements, self.writes
        before_s = time.process_time()
        work()
        return Cost(
            (time.process_time() - before_s) * 1e3 / messages,
            (self.statements - statements) / messages,
            (self.writes - writes) / messages,
        )

    def _count(self, *_arguments: Any) -> None:  # noqa: ANN401 - SQLAlchemy's own
        self.statements += 1

    def _commit(self, connection: sa.Connection) -> None:
        self.writes += not connection.get_execution_options().get("fleet_read_only", False)


class Devices:
    """The way to devices, which only counts: `wire.transport.Transport` without a broker."""

    def __init__(self) -> None:
        self.sent = 0

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Take a message to a device."""
        del topic, payload, expiry_s
        self.sent += 1
        return True

    def start(self, *_handlers: object) -> None:
        """Do nothing."""

    def subscribe(self, topic_filter: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class Fleet:
    """A controller with an empty fleet.

    Args:
        url: Of a database with the tables.
        folder: For the controller's files.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.clock = Clock(NOW_S)
        self.way = Devices()
        config = make_home(folder, url)
        trusted = Repository(now_s=NOW_S, director=DIRECTOR_SEED)
        trusted.list_package(PACKAGE)
        MetadataStore(folder / FOLDER).keep_authored(trusted.authored)
        for role in (SNAPSHOT, TIMESTAMP):
            (folder / f"keys/{role}.key").write_bytes(trusted.seeds[role][0])
        authority = make_authority(folder, "devices")
        ca_file, key_file = folder / "devices.pem", folder / "devices.key"
        ca_file.write_bytes(authority.certificate)
        key_file.write_bytes(authority.key)
        certificates = DeviceCertificatesConfig(ca_file=str(ca_file), key_file=str(key_file))
        self.controller = Controller(
            msgspec.structs.replace(config, device_certificates=certificates),
            MemoryAccess(),
            connect=lambda: self.way,  # type: ignore[arg-type, return-value]  # the rest is for agents
            clock=self.clock,
        )
        self.controller.tick()
        self._api = TestClient(
            self.controller.app, headers={"Authorization": f"Bearer {API_TOKEN}"}
        )
        self._api.__enter__()
        self.database = Database(url)
        self.chunks = ChunkServer(
            *(self.database, BlobStore(Path(config.blobs_dir)), self.way),
            *(Budget(self.clock, RATE_BYTES_PER_S), self.clock),
        )
        for blob in PACKAGE.blobs:
            self._api.put(f"/v1/blobs/{sha256_hex(blob)}", content=blob).raise_for_status()
        self._post("/v1/releases", envelope_sha256=PACKAGE.ref.envelope_sha256)

    def token(self, uses: int) -> str:
        """Make a token for so many devices."""
        return str(self._post("/v1/tokens", uses=uses)["token"])

    def roll_out(self, devices: int) -> None:
        """Make a rollout that starts as many devices as a tick may."""
        self._post("/v1/rollouts", release="digits:1", max_in_flight=devices)

    def close(self) -> None:
        """End the controller."""
        self._api.__exit__()
        self.chunks.stop(PATIENCE_S)
        self.controller.stop()
        self.database.close()

    def _post(self, path: str, **body: object) -> Any:  # noqa: ANN401 - any answer
        answer = self._api.post(path, json=body)
        if not answer.is_success:
            raise SystemExit(f"{path}: {answer.text}")
        return answer.json()
