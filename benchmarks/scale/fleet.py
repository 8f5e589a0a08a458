"""The rows of a fleet with a rollout in progress, written straight into a database.

All devices were brought to `digits:1` by a rollout that has succeeded. Another one, half of which
is done, brings them `digits:2` in its last stage, in which it looks for devices that enrolled late.
A tenth of the devices is offline. `faces:1` is published, and no device has it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from controller.domain.states import DeploymentState, DeviceState, RolloutState
from controller.services.blobs import BlobStore
from controller.services.director import Director
from controller.services.releases import Releases
from controller.services.transfers import Transfers
from controller.store.all_tables import CONTROL_METADATA
from controller.store.database import Database, migrate
from tests.simulators.clock import FakeClock
from tests.simulators.packages import (
    DIRECTOR_KEY,
    PROFILE,
    TRUST,
    SignedPackage,
    package,
    two_variants,
    variant,
)
from wire.codec import to_builtins

NOW_S: Final = 1_750_000_000.0
OLD: Final = two_variants("1")
NEW: Final = two_variants("2", best="better")
FACES: Final = package("1", [(variant("best"), b"faces")], name="faces")
FIRST: Final = "r-first"
SECOND: Final = "r-second"
IN_FLIGHT: Final = 100
SITES: Final = 100
DONE: Final = 0.4
FAIL_EVERY: Final = 500
WAITING: Final = 0.01
AT_ONCE: Final = 5_000


class NoBroker:
    """The way to devices that nobody listens on."""

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Take a message."""
        del topic, payload, expiry_s
        return True


def name(number: int) -> str:
    """Return the name of a device."""
    return f"device-{number:06d}"


def fill(url: str, blobs: Path, devices: int) -> None:
    """Make a database with a fleet.

    Args:
        url: Of an empty database.
        blobs: Where the content of the releases goes.
        devices: How many.
    """
    migrate(url)
    database = Database(url)
    store = BlobStore(blobs)
    clock = FakeClock(NOW_S)
    director = Director(database, NoBroker(), Transfers(clock), DIRECTOR_KEY, clock)
    releases = Releases(database, store, TRUST, director, clock)
    for each in (OLD, NEW, FACES):
        for blob in each.blobs:
            store.put(blob)
        releases.publish(each.ref.envelope_sha256)
    with database.engine.begin() as connection:
        for table, rows in _rollouts(devices):
            connection.execute(sa.insert(CONTROL_METADATA.tables[table]), rows)
        for begin in range(0, devices, AT_ONCE):
            tables: dict[str, list[Mapping[str, Any]]] = {}
            for number in range(begin, min(begin + AT_ONCE, devices)):
                for table, row in _of_device(number, devices):
                    tables.setdefault(table, []).append(row)
            for table, found in tables.items():
                connection.execute(sa.insert(CONTROL_METADATA.tables[table]), found)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("ANALYZE" if database.engine.name != "sqlite" else "SELECT 1"))
    database.close()


def _rollouts(devices: int) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    same = {
        "model": "digits",
        "selector": "",
        "reason": "",
        "max_in_flight": IN_FLIGHT,
        "soak_s": 0.0,
        "device_deadline_s": 3600.0,
        "offline_limit_s": 86_400.0,
        "max_failures": devices,
        "min_finished": 10,
        "approval": False,
        "initial_devices": devices,
        "approved_stage": 1,
    }
    ended = {"state": RolloutState.SUCCEEDED, "stage": 1, "created_at_s": NOW_S - 9000.0,
             "finished_at_s": NOW_S - 8000.0}  # fmt: skip
    runs = {"state": RolloutState.RUNNING, "stage": 2, "created_at_s": NOW_S - 4000.0}
    yield "rollout", [{"id": FIRST, "release": OLD.digest, **ended, **same}]
    yield "rollout", [{"id": SECOND, "release": NEW.digest, **runs, **same}]
    yield (
        "rollout_stage",
        [
            {"rollout": FIRST, "number": 1, "percent": 100.0},
            {"rollout": SECOND, "number": 1, "percent": 10.0},
            {"rollout": SECOND, "number": 2, "percent": 100.0},
        ],
    )
    yield (
        "rollout_event",
        [
            {"rollout": each, "at_s": NOW_S, "action": "create", "reason": "made"}
            for each in (FIRST, SECOND)
        ],
    )


def _of_device(number: int, devices: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    device = name(number)
    place = random.Random(number).random()
    online = number % 10 != 9  # noqa: PLR2004 - a tenth is offline
    state = _state(number, devices, place, online=online)
    started = state != DeploymentState.PENDING
    has_new = state == DeploymentState.SUCCEEDED
    revision = 2 if started else 1
    wanted: SignedPackage = NEW if started else OLD
    yield (
        "device",
        {
            "id": device,
            "state": DeviceState.ENROLLED,
            "public_key": "k" * 44,
            "profile_name": PROFILE.name,
            "architecture": PROFILE.architecture,
            "profile": to_builtins(PROFILE),
            "agent_version": "1.0.0",
            "boot_id": "boot-1",
            "online": online,
            "greeted": True,
            "report_sequence": 10,
            "desired_form": 2,
            "reported_revision": revision,
            "last_error": "",
            "enrolled_at_s": NOW_S - 10_000.0,
            "last_seen_at_s": NOW_S if online else NOW_S - 5000.0,
        },
    )
    yield "device_label", {"device": device, "key": "site", "value": f"site-{number % SITES}"}
    yield "desired_state", {"device": device, "revision": revision, "issued_at_s": NOW_S}
    yield (
        "desired_model",
        {
            "device": device,
            "model": "digits",
            "release": wanted.digest,
            "rollout": SECOND if started else FIRST,
            "release_revision": revision,
            "policy_generation": 1,
        },
    )
    yield (
        "device_model",
        {
            "device": device,
            "model": "digits",
            "revision": revision,
            "release": (NEW if has_new else OLD).digest,
            "variant": "best",
            "phase": "idle" if state != DeploymentState.ASSIGNED else "fetching",
            "last_error": "",
        },
    )
    yield "deployment", _deployment(device, FIRST, DeploymentState.SUCCEEDED, 1, place)
    yield "deployment", _deployment(device, SECOND, state, revision, place)


def _state(number: int, devices: int, place: float, *, online: bool) -> DeploymentState:
    """Return the state of a device in the second rollout."""
    every = devices // (IN_FLIGHT + IN_FLIGHT // 9)  # some of those are offline
    if number % every == 0 and number // every < IN_FLIGHT and online:
        return DeploymentState.ASSIGNED
    if not online:
        return DeploymentState.WAITING if place < WAITING * 10 else DeploymentState.PENDING
    if number % FAIL_EVERY == 1:
        return DeploymentState.FAILED
    return DeploymentState.SUCCEEDED if place < DONE else DeploymentState.PENDING


def _deployment(
    device: str, rollout: str, state: DeploymentState, revision: int, place: float
) -> Mapping[str, Any]:
    started = state != DeploymentState.PENDING
    is_over = state in {DeploymentState.SUCCEEDED, DeploymentState.FAILED}
    return {
        "rollout": rollout,
        "device": device,
        "model": "digits",
        "state": state,
        "position": int(place * 2**24),
        "stage": 2 if started else 0,
        "revision": revision if started else None,
        "previous": OLD.digest if started and rollout == SECOND else None,
        "is_first": rollout == FIRST,
        "phase": "fetching" if state == DeploymentState.ASSIGNED else "",
        "done_bytes": 0,
        "total_bytes": 0,
        "error_code": "",
        "detail": "",
        "started_at_s": NOW_S if started else None,
        "reported_at_s": NOW_S if started else None,
        "finished_at_s": NOW_S if is_over else None,
    }
