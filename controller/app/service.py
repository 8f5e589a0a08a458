"""The controller as a whole: puts its parts together, starts and stops them.

Rules:
- The database, the settings and the port are proven before anything starts; what is wrong with
  them is one clear error.
- A broker that does not answer is normal: the controller logs it once, and tells the devices when
  the broker is back.
- Of two controllers with one director's key, the one that was there first ends, unless both are of
  the same group (`broker.share`). Of a group one leads: it alone does what time asks for.
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
from controller.app.delivery import Delivery
from controller.app.downloads import DownloadListener
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
from controller.delivery.budget import Budget
from controller.delivery.chunks import ChunkServer
from controller.delivery.deltas import Deltas
from controller.delivery.peers import Peers
from controller.delivery.sources import SourceServer, Ways
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
from controller.services.ingest import Ingest, may_wait
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
from wire.trust.envelope import SigningKey
from wire.version import VERSION

JOIN_S = 2.0
GATHER_S = 0.02
"""For how long messages may gather: 1,000 a second then come by 20, and each costs the processor a
fraction of what one alone does (docs/scale.md)."""

GATHER_TELEMETRY_S = 0.1
"""The same of telemetry, which a device keeps until it is stored: a batch alone costs some 10 ms,
and one of many a fraction of that. A device sends captured samples when no telemetry waits, so
this must be short beside the time between its batches."""

TELEMETRY_EVERY_S = 30.0

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
        self._on_replaced, self._config = on_replaced, config
        self._connected, self._lacks = False, _lack(Connection(up=False))
        self._stopping = threading.Event()
        token = read_api_token(config)
        tls = tls_of(config.api, API)
        key = read_director_key(config)
        blobs = prepared(config)
        connect = connect or (lambda: connection(config))
        self._transport = connect()
        self._database = database = Database(config.database_url)
        self.deltas = Deltas(database, blobs, Path(config.blobs_dir), config.deltas, clock)
        self.downloads = DownloadListener(config, self.deltas.readable.open, clock)
        self._telemetry = telemetry = telemetry_store(config, database, clock)
        self._reception = reception = Reception(clock)
        self._upkeep = Upkeep(database, telemetry, reception, clock)
        transfers = Transfers(clock)
        self._metadata, trust = fleet_trust(config, database, self._transport, key, clock)
        self._director = director = Director(
            database, self._transport, transfers, key, clock, metadata=self._metadata
        )
        self._encryption = EncryptionWatch(config.broker, clock)
        self._lead = Lead(database, config.broker.share)
        self._others = OtherControllers(key, self._transport, clock, share=self._lead.group)
        preflight = Preflight(database, blobs, trust, clock)
        self._engine = RolloutEngine(
            *(database, director, reception, preflight),
            GateLooks(database, telemetry, preflight, clock),
            StageShadows(database, telemetry, clock),
            clock,
        )
        self._policies = Policies(database, director, clock)
        self._penalties = Penalties(database, config.penalty, clock)
        certificates = certificates_of(config, database, self._transport, key, clock)
        self._enrolment = Enrolment(
            database, access, certificates, self._transport, key, clock, metadata=self._metadata
        )
        self._shut_out = ShutOut(database, access, config.device_certificates, clock)
        self._measurements = Measurements(database, preflight, self._transport, key, clock)
        self._captures = captures = Captures(database, self._transport, config.capture, clock)
        self._ingest = Ingest(
            database,
            director=director,
            measurements=self._measurements,
            enrolment=self._enrolment,
            certificates=certificates,
            captures=captures,
            telemetry=telemetry,
            transfers=transfers,
            publisher=self._transport,
            peer_networks=config.peers.allowed(),
            clock=clock,
            metadata=self._metadata,
            log=telemetry_log(config),
        )
        self.delivery = self._delivery(connect(), key, clock)
        self._inbox = Inbox(
            self._ingest.handle_all,
            gather_s=GATHER_S,
            is_patient=topics.is_telemetry,
            patience_s=GATHER_TELEMETRY_S,
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
                enrolment=self._enrolment,
                measurements=self._measurements,
                metadata=self._metadata,
                membership=Membership(database, director, preflight, clock),
                models=Models(database, director, clock),
                policies=self._policies,
                preflight=preflight,
                registrations=Registrations(database, clock),
                release_drift=ReleaseDrift(database, clock),
                rehearsals=Rehearsals(database, preflight, telemetry, clock),
                releases=Releases(database, blobs, trust, director, clock),
                report_requests=ReportRequests(database, telemetry, self._transport, clock),
                rollouts=Rollouts(
                    *(database, director, preflight, transfers, telemetry, clock),
                    is_listed=lists_of(self._metadata),
                ),
                rollout_plans=RolloutPlans(
                    database, preflight, telemetry, clock, is_listed=lists_of(self._metadata)
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
        self._tickers = [
            threading.Thread(target=self._for_ever, args=args, name=args[0], daemon=True)
            for args in (
                ("ticker", config.tick_interval_s, self.tick),
                # Apart, because an hour of a large fleet takes many seconds.
                ("telemetry", TELEMETRY_EVERY_S, self.keep_telemetry),
            )
        ]
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

    def _delivery(self, transport: Transport, key: SigningKey, clock: Clock) -> Delivery:
        config, database = self._config, self._database
        budget = Budget(clock, config.transfer_bytes_per_s)
        chunks = ChunkServer(database, self.deltas.readable, transport, budget, clock)
        valid_s = config.downloads.valid_s
        peers = None
        if config.peers.label is not None:
            peers = Peers(database, self.deltas.packages, config.peers, key, valid_s, clock)
        ways = Ways(
            places=self.downloads.places,
            valid_s=valid_s,
            deltas=self.deltas,
            casts=chunks,
            peers=peers,
        )
        sources = SourceServer(database, ways, transport, key, clock)
        return Delivery(transport, chunks, sources, self._lead, config.broker.share)

    def _exports(self, clock: Clock) -> Exports:
        """Return what hands telemetry on.

        Raises:
            SettingsError: A file of the settings is unusable, or a library is not installed.
        """
        watched = Watched(
            counts=self._ingest.counts,
            waiting=lambda: self._inbox.waiting,
            is_connected=lambda: self._connected,
            faulty_rules=self.alerting.judging.faulty_rules,
        )
        return Exports(self._config, self._database, self._telemetry, watched, clock)

    def start(self) -> None:
        """Begin to serve; returns at once, also when the broker is away."""
        for topic_filter in (*topics.CONTROL_UP, topics.ENROL_REQUESTS):
            self._transport.subscribe(topics.shared(topic_filter, self._config.broker.share))
        self._transport.subscribe(topics.CONTROLLER_STARTS)
        _attempt(self._lead.look)
        self._inbox.start()
        if self._ingest.log is not None:
            self._ingest.log.start(self._ingest.store_logged)
        self._transport.start(self.queue, self.on_connection)
        self.deltas.start()
        self.delivery.start()
        for ticker in self._tickers:
            ticker.start()
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
        for ticker in self._tickers:
            if ticker.is_alive():
                ticker.join(JOIN_S)
        self._lead.close()
        self._transport.close()
        self._database.close()
        _log.info("the controller has stopped")

    def health(self) -> Health:
        """Return whether the controller works, and what it lacks."""
        return Health(
            status="ok" if self._connected else "degraded",
            broker_connected=self._connected,
            downloads_served=self.downloads.address is not None,
            version=VERSION,
            needs=[
                *([] if self._connected else [self._lacks]),
                *self._telemetry.needs(),
                *([] if self._ingest.log is None else self._ingest.log.needs()),
                *self.alerting.needs(),
            ],
        )

    def queue(self, received: Received) -> None:
        """Let one message of a device wait for its turn, unless nobody would read it.

        Of another controller's start it takes note at once.
        """
        if received.topic == topics.CONTROLLER_STARTS:
            if self._others.must_give_way(received.payload):
                self._on_replaced()
        elif may_wait(received):
            self._inbox.put(received)

    def receive(self, *received: Received) -> None:
        """Handle messages of devices that wait together, in their order."""
        self._ingest.handle_all(received)

    def tick(self) -> None:
        """Do what time asks for: rollouts, policies, reminders, tokens, upkeep, deltas.

        Of several controllers the one that leads does it.
        """
        _attempt(self._lead.look)
        if not self._lead.is_ours:
            self._stand_by()
            return
        for work in (
            *(() if self._metadata is None else (self._metadata.renew,)),
            self._penalties.look,
            self._engine.tick,
            self._policies.apply,
            self._director.remind,
            self._enrolment.sweep,
            self._enrolment.allow_returns,
            self._shut_out.tell,
            self._upkeep.mark_silent,
            self._measurements.expire,
            self._encryption.look,
            self.deltas.tick,
        ):
            _attempt(work)

    def _stand_by(self) -> None:
        """Do what each controller does for itself, and be ready to lead."""
        self._engine.stand_by()
        if self._metadata is not None:
            _attempt(self._metadata.follow)
        _attempt(self._encryption.look)

    def keep_telemetry(self) -> None:
        """Make hours and days of telemetry, and delete what is old of it and of samples."""
        for work in (self._upkeep.roll_up, self._upkeep.prune, self._captures.prune):
            _attempt(work)

    def _for_ever(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        while not self._stopping.wait(every_s):
            try:
                work()
            except Exception:  # noqa: BLE001 - the next time may succeed; a dead thread cannot
                _log.exception("%s failed; the controller tries again", name)

    def on_connection(self, connection: Connection) -> None:
        """Take a change of the connection with the broker."""
        was, self._connected = self._connected, connection.up
        self._lacks = _lack(connection)
        self._reception.note(up=connection.up)
        if connection.up:
            self._others.announce()
            self._enrolment.broker_came()
            self._shut_out.broker_came()
            _log.info("connected with the broker")
        elif connection.refused:
            _log.error("the broker refuses the controller's account: %s", connection.reason)
        elif self._stopping.is_set():
            return
        elif was:
            _log.warning("lost the broker: %s; trying again", connection.reason)
        else:
            _log.info("cannot reach the broker: %s; trying again", connection.reason)


def _attempt(work: Callable[[], object]) -> None:
    try:
        work()
    except FleetError as exc:
        _log.warning("%s is tried again: %s", getattr(work, "__qualname__", work), exc)


def _lack(connection: Connection) -> str:
    """Return what the controller lacks without its broker, for callers that may have no token."""
    text = "a connection with the MQTT broker"
    if connection.refused:
        return f"{text}, which refuses the controller's account: correct it in [broker]"
    return f"{text}: start it, or correct [broker] in controller.toml; the log says more"
