"""The controller's services that a fleet of rows needs, without broker, API and threads."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.scale.fleet import NEW, NOW_S, SECOND, NoBroker, name
from controller.peer_settings import PeersConfig
from controller.rollout_control_schemas import JoinRequest
from controller.rollout_schemas import RolloutRequest
from controller.services.blobs import BlobStore
from controller.services.devices import Devices
from controller.services.director import Director
from controller.services.gates import GateLooks
from controller.services.membership import Membership
from controller.services.policies import Policies
from controller.services.preflight import Preflight
from controller.services.reception import Reception
from controller.services.rollout_engine import RolloutEngine
from controller.services.rollout_work import RolloutWork
from controller.services.rollouts import Rollouts
from controller.services.stage_shadows import StageShadows
from controller.services.transfers import Transfers
from controller.services.upkeep import SILENT_AFTER_S, Upkeep
from controller.store import device_status, reports
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import MemoryAccess
from tests.simulators.packages import DIRECTOR_KEY, TRUST
from wire.installs import InstallReport

SITE: Final = "site-1"


class Clock(FakeClock):
    """Time goes on while work is done, and more when it is told."""

    def __init__(self, at_s: float) -> None:
        super().__init__(at_s)
        self._began_s = time.monotonic()

    def now_s(self) -> float:
        """Return wall time."""
        return self._at_s + self.monotonic_s()

    def monotonic_s(self) -> float:
        """Return the time since the beginning."""
        return self._elapsed_s + time.monotonic() - self._began_s


class Controller:
    """A controller that has heard its devices for some time.

    Args:
        database: A fleet.
        blobs: The content of its releases.
    """

    def __init__(self, database: Database, blobs: Path) -> None:
        self._database = database
        self._clock = clock = Clock(NOW_S - SILENT_AFTER_S - 1.0)
        reception = Reception(clock)
        reception.note(up=True)
        clock.advance(SILENT_AFTER_S + 1.0)
        transfers = Transfers(clock)
        telemetry = TelemetryStore(database.engine, clock)
        preflight = Preflight(database, BlobStore(blobs), TRUST, clock)
        director = Director(database, NoBroker(), transfers, DIRECTOR_KEY, clock)
        looks = GateLooks(database, telemetry, preflight, clock)
        self._director = director
        self._policies = Policies(database, director, clock)
        self._upkeep = Upkeep(database, telemetry, reception, clock)
        shadows = StageShadows(database, telemetry, clock)
        self._engine = RolloutEngine(
            database, director, reception, preflight, looks, shadows, clock
        )
        self._work = RolloutWork(database, director, clock)
        self._sequence = 10
        self._membership = Membership(database, director, preflight, clock)
        self._rollout = ""
        self.devices = Devices(
            *(database, MemoryAccess(), transfers, PeersConfig(), clock), wrong_clocks=_no_clocks
        )
        self.rollouts = Rollouts(
            *(database, director, preflight, transfers, telemetry, clock),
            is_listed=lambda *_: True,
        )

    def tick(self) -> None:
        """Do what a tick of the controller does with devices and rollouts."""
        self._clock.advance(1.0)
        self._engine.tick()
        self._policies.apply()
        self._director.remind()
        self._upkeep.mark_silent()

    def carry_on(self) -> None:
        """Do all that is left of orders."""
        self._work.go_on(within_s=math.inf)

    def create(self) -> None:
        """Make a rollout of a model that no device has."""
        self.rollouts.create(RolloutRequest(release="faces:1"))

    def created_for_one_site(self) -> None:
        """Make such a rollout for the devices of one site."""
        self._rollout = self.rollouts.create(
            RolloutRequest(release="faces:1", selector=f"site={SITE}")
        )
        self.carry_on()

    def add(self) -> None:
        """Let all other devices join it."""
        self._membership.add(self._rollout, JoinRequest(selector=f"site!={SITE}"))

    def halted(self) -> None:
        """Let a tick halt a rollout, and do all that follows."""
        self.tick()
        self.carry_on()

    def resumed(self) -> None:
        """Resume the rollout that a tick has halted."""
        self.halted()
        self.rollouts.resume(SECOND)

    def take_report(self) -> None:
        """Record that a device installs.

        Raises:
            SystemExit: The fleet is not what it should be.
        """
        self._sequence += 1
        report = InstallReport(
            device=name(0),
            revision=2,
            digest=NEW.digest,
            phase="verifying" if self._sequence % 2 else "staging",
            outcome="running",
            active=None,
            boot_id="boot-1",
            sequence=self._sequence,
            model=NEW.index.name,
        )
        with self._database.transaction() as transaction:
            known = device_status.find(transaction, name(0))
            if known is None:
                raise SystemExit("the device is not known")
            if reports.take_report(transaction, known, report, now_s=self._clock.now_s()) is None:
                raise SystemExit("the report was ignored")
            known.changes.write(transaction)


def _no_clocks() -> Mapping[str, float]:
    return {}
