"""The controller as a whole: puts its parts together, starts and stops them.

Rules:
- The database, the settings and the port are proven before anything starts; what is wrong with
  them is one clear error.
- What it does by itself is in `controller.app.due`; what comes from devices and how it follows its
  broker, in `controller.app.broker_link`.
- Stopping takes five seconds at most; being killed instead loses nothing.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from controller.api.app import create_app
from controller.api.protocol import API, ConnectionLimits
from controller.api.server import HttpServer
from controller.api.services import FleetServices
from controller.api.tls import tls_of
from controller.app.alerting import Alerting
from controller.app.broker_link import BrokerLink
from controller.app.delivery import delivery_of
from controller.app.downloads import DownloadListener
from controller.app.due import Due, attempt
from controller.app.fleet_trust import fleet_trust
from controller.app.inbox import Inbox
from controller.app.lead import Lead
from controller.app.starting import (
    certificates_of,
    prepared,
    telemetry_log,
    telemetry_store,
)
from controller.broker.connection import connection
from controller.broker.listener import EncryptionWatch
from controller.config import ControllerConfig
from controller.delivery.deltas import Deltas
from controller.exporting.exports import Exports
from controller.exporting.own_figures import Watched
from controller.ports import BrokerAccess
from controller.schemas import Health
from controller.secret_files import (
    read_api_token,
    read_director_key,
    read_metrics_token,
)
from controller.services.access import Access
from controller.services.audit_log import AuditLog
from controller.services.captures import Captures
from controller.services.devices import Devices
from controller.services.director import Director
from controller.services.enrolment import Enrolment
from controller.services.gates import GateLooks
from controller.services.groups import Groups
from controller.services.ingest import Ingest
from controller.services.measurements import Measurements
from controller.services.membership import Membership
from controller.services.models import Models
from controller.services.other_controllers import OtherControllers
from controller.services.penalties import Penalties
from controller.services.policies import Policies
from controller.services.preflight import Preflight
from controller.services.reception import Reception
from controller.services.registrations import Registrations
from controller.services.rehearsals import Rehearsals
from controller.services.release_drift import ReleaseDrift
from controller.services.releases import Releases
from controller.services.report_requests import ReportRequests
from controller.services.rollout_checks import lists_of
from controller.services.rollout_engine import RolloutEngine
from controller.services.rollout_plans import RolloutPlans
from controller.services.rollouts import Rollouts
from controller.services.saved_queries import SavedQueries
from controller.services.shadows import Shadows
from controller.services.shut_out import ShutOut
from controller.services.stage_shadows import StageShadows
from controller.services.transfers import Transfers
from controller.services.upkeep import Upkeep
from controller.services.waiting_devices import WaitingDevices
from controller.store.database import Database
from wire import topics
from wire.clock import Clock, SystemClock
from wire.errors import FleetError
from wire.transport import Connection, Received, Transport
from wire.version import VERSION

JOIN_S = 2.0
GATHER_S = 0.02
"""For how long messages may gather: 1,000 a second then come by 20, and each costs the processor a
fraction of what one alone does (docs/scale.md)."""

GATHER_TELEMETRY_S = 0.1
"""The same of telemetry, which a device keeps until it is stored: a batch alone costs some 10 ms,
and one of many a fraction of that. A device sends captured samples when no telemetry waits, so
this must be short beside the time between its batches."""

_log = logging.getLogger(__name__)


class Controller:
    """A running controller.

    Args:
        config: The settings.
        access: The broker's accounts.
        connect: Makes a connection to the broker, not started; MQTT as configured when None.
        clock: Time.
        on_replaced: Called in the transport's thread when another controller with the same
            director's key has started; it must not wait.

    Raises:
        ClearTextError: The broker's password would cross a network in the clear.
        SettingsError: A file named in the settings is unusable.
        DatabaseError: The database does not answer.
        StorageError: A directory cannot be written.
        ListenError: The API's port is taken.
    """

    def __init__(
        self,
        config: ControllerConfig,
        access: BrokerAccess,
        *,
        connect: Callable[[], Transport] | None = None,
        clock: Clock | None = None,
        on_replaced: Callable[[], None] = lambda: None,
    ) -> None:
        clock = clock or SystemClock()
        self._config = config
        self._stopping = threading.Event()
        token = read_api_token(config)
        tls = tls_of(config.api, API)
        key = read_director_key(config)
        blobs = prepared(config)
        connect = connect or (lambda: connection(config))
        transport = connect()
        self._database = database = Database(config.database_url)
        self.deltas = Deltas(database, blobs, Path(config.blobs_dir), config.deltas, clock)
        self.downloads = DownloadListener(config, self.deltas.readable.open, clock)
        self._telemetry = telemetry = telemetry_store(config, database, clock)
        reception = Reception(clock)
        transfers = Transfers(clock)
        metadata, trust = fleet_trust(config, database, transport, key, clock)
        director = Director(database, transport, transfers, key, clock, metadata=metadata)
        self._lead = Lead(database, config.broker.share)
        preflight = Preflight(database, blobs, trust, clock)
        policies = Policies(database, director, clock)
        certificates = certificates_of(config, database, transport, key, clock)
        enrolment = Enrolment(
            database, access, certificates, transport, key, clock, metadata=metadata
        )
        shut_out = ShutOut(database, access, config.device_certificates, clock)
        measurements = Measurements(database, preflight, transport, key, clock)
        captures = Captures(database, transport, config.capture, clock)
        self._ingest = Ingest(
            database,
            director=director,
            measurements=measurements,
            enrolment=enrolment,
            certificates=certificates,
            captures=captures,
            telemetry=telemetry,
            transfers=transfers,
            publisher=transport,
            peer_networks=config.peers.allowed(),
            clock=clock,
            metadata=metadata,
            log=telemetry_log(config),
        )
        self.delivery = delivery_of(
            config, database, connect(), self.deltas, self.downloads.places, self._lead, key, clock
        )
        self._inbox = Inbox(
            self._ingest.handle_all,
            gather_s=GATHER_S,
            is_patient=topics.is_telemetry,
            patience_s=GATHER_TELEMETRY_S,
        )
        self._link = BrokerLink(
            transport,
            OtherControllers(key, transport, clock, share=self._lead.group),
            reception,
            put=self._inbox.put,
            came=(enrolment.broker_came, shut_out.broker_came),
            on_replaced=on_replaced,
            stopping=self._stopping,
        )
        self._due = Due(
            lead=self._lead,
            metadata=metadata,
            penalties=Penalties(database, config.penalty, clock),
            engine=RolloutEngine(
                *(database, director, reception, preflight),
                GateLooks(database, telemetry, preflight, clock),
                StageShadows(database, telemetry, clock),
                clock,
            ),
            policies=policies,
            director=director,
            enrolment=enrolment,
            shut_out=shut_out,
            upkeep=Upkeep(database, telemetry, reception, clock),
            reception=reception,
            measurements=measurements,
            encryption=EncryptionWatch(config.broker, clock),
            deltas=self.deltas,
            captures=captures,
            stopping=self._stopping,
        )
        devices = Devices(
            *(database, access, transfers, config.peers, clock),
            wrong_clocks=telemetry.wrong_clocks,
        )
        self.alerting = Alerting(database, telemetry, devices, reception, config.alerts, clock)
        self.exports = self._exports(clock)
        self.app = create_app(
            FleetServices(
                access=Access(
                    database, clock, home_token=token, metrics_token=read_metrics_token(config)
                ),
                audit=AuditLog(database),
                alerts=self.alerting.shown,
                alert_rules=self.alerting.rules,
                captures=captures,
                devices=devices,
                director=director,
                enrolment=enrolment,
                measurements=measurements,
                metadata=metadata,
                membership=Membership(database, director, preflight, clock),
                models=Models(database, director, clock),
                policies=policies,
                preflight=preflight,
                registrations=Registrations(database, clock),
                release_drift=ReleaseDrift(database, clock),
                rehearsals=Rehearsals(database, preflight, telemetry, clock),
                releases=Releases(database, blobs, trust, director, clock),
                report_requests=ReportRequests(database, telemetry, transport, clock),
                rollouts=Rollouts(
                    *(database, director, preflight, transfers, telemetry, clock),
                    is_listed=lists_of(metadata),
                ),
                rollout_plans=RolloutPlans(
                    database, preflight, telemetry, clock, is_listed=lists_of(metadata)
                ),
                groups=Groups(database, clock),
                saved_queries=SavedQueries(database, telemetry, devices, clock),
                shadows=Shadows(database, devices, telemetry, clock),
                blobs=blobs,
                telemetry=telemetry,
                waiting=WaitingDevices(database),
                webhooks=self.alerting.webhooks,
                health=self.health,
                clock=clock,
                metrics_page=self.exports.page,
            ),
            version=VERSION,
        )
        self._server = self._api_server(tls)

    @property
    def api_address(self) -> tuple[str, int]:
        """Host and port of the HTTP API."""
        return self._server.host, self._server.port

    def _api_server(self, tls: ssl.SSLContext | None) -> HttpServer:
        """Bind the API's port, or end what is open.

        Raises:
            FleetError: The port is taken.
        """
        api = self._config.api
        limits = ConnectionLimits(total=api.connections, per_client=api.connections_per_client)
        try:
            return HttpServer(api.host, api.port, tls=tls, limits=limits)
        except FleetError:
            self.downloads.stop()
            self._database.close()
            raise

    def _exports(self, clock: Clock) -> Exports:
        """Return what hands telemetry on.

        Raises:
            SettingsError: A file of the settings is unusable, or a library is not installed.
        """
        watched = Watched(
            counts=self._ingest.counts,
            waiting=lambda: self._inbox.waiting,
            is_connected=lambda: self._link.is_up,
            faulty_rules=self.alerting.judging.faulty_rules,
        )
        return Exports(self._config, self._database, self._telemetry, watched, clock)

    def start(self) -> None:
        """Begin to serve; returns at once, also when the broker is away."""
        attempt(self._lead.look)
        self._inbox.start()
        if self._ingest.log is not None:
            self._ingest.log.start(self._ingest.store_logged)
        self._link.start(self._config.broker.share)
        self.deltas.start()
        self.delivery.start()
        self._due.start(self._config.tick_interval_s)
        self.alerting.start()
        self._server.start(self.app)
        self.downloads.start()
        self.exports.start()

    def stop(self) -> None:
        """End everything within five seconds; also when it was never started."""
        self._stopping.set()
        self.downloads.stop_soon()
        self._server.stop()
        self.downloads.stop()
        self.exports.stop(JOIN_S / 2)
        self.delivery.stop(JOIN_S)
        self.deltas.stop(JOIN_S)
        self._inbox.stop(JOIN_S)
        if self._ingest.log is not None:
            self._ingest.log.stop(JOIN_S)
        self.alerting.stop(JOIN_S)
        self._due.join(JOIN_S)
        self._lead.close()
        self._link.close()
        self._database.close()
        _log.info("the controller has stopped")

    def health(self) -> Health:
        """Return whether the controller works, and what it lacks."""
        works = self._link.is_up and not self._database.needs()
        return Health(
            status="ok" if works else "degraded",
            broker_connected=self._link.is_up,
            downloads_served=self.downloads.address is not None,
            version=VERSION,
            needs=[
                *self._link.needs(),
                *self._database.needs(),
                *self._telemetry.needs(),
                *([] if self._ingest.log is None else self._ingest.log.needs()),
                *self.alerting.needs(),
            ],
        )

    def receive(self, *received: Received) -> None:
        """Handle messages of devices that wait together, in their order."""
        self._ingest.handle_all(received)

    def tick(self) -> None:
        """Do what time asks for, as the thread for it does."""
        self._due.tick()

    def keep_telemetry(self) -> None:
        """Make hours and days of telemetry and delete what is old, as the thread for it does."""
        self._due.keep_telemetry()

    def on_connection(self, connection: Connection) -> None:
        """Take a change of the connection with the broker, as the transport tells it."""
        self._link.on_connection(connection)
