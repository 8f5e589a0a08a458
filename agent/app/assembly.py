"""Makes the agent's parts from its configuration and joins them."""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from agent.app.commands import Commands
from agent.app.config import (
    AgentConfig,
    broker_address,
    load_endpoint_token,
    load_profile,
    load_trust,
    serving_settings,
)
from agent.app.control import SOCKET_FILE, ControlServer
from agent.errors import ConfigError, storage_faults
from agent.install.fetch import Fetcher
from agent.install.installer import Installer, InstallSettings
from agent.install.slots import Slots
from agent.install.store import FileStateStore
from agent.install.thread import Installs
from agent.install.workflow import Machine
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.enrolment import Applicant, Connect, Enrolment, Login
from agent.link.identity import Identity
from agent.link.telemetry import TelemetryPump
from agent.log import Log
from agent.packages import open_package
from agent.select.adaptation import Adaptation
from agent.select.meter import Meter
from agent.serve.http.endpoint import Endpoint
from agent.serve.http.tls import server_tls
from agent.serve.model_server import ModelServer
from telemetry.device.recorder import Recorder
from telemetry.device.sensors import Sensors
from telemetry.device.spool import Spool
from wire.clock import Clock, SystemClock
from wire.mqtt import MqttTransport
from wire.profile import DeviceProfile
from wire.transport import Transport
from wire.trust.root import TrustRoot
from wire.version import VERSION

STATE_FILE: Final = "state.json"
SPOOL_FILE: Final = "telemetry.db"
LOCK_FILE: Final = "agent.lock"


class LoggedEvents:
    """A recorder whose events are also lines of the log.

    Args:
        recorder: Where figures and events go.
        log: Where events go too.
    """

    def __init__(self, recorder: Recorder, log: Log) -> None:
        self._recorder = recorder
        self._log = log

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Add a value to a histogram."""
        self._recorder.observe(metric, value, attributes)

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Count."""
        self._recorder.add(metric, amount, attributes)

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        """Note something that happened once."""
        self._recorder.event(kind, reason, data)
        self._log.write(kind, reason=reason, **{k: v for k, v in data.items() if k in LOGGED})


class Outside:
    """Where an install is told of.

    Args:
        link: To the controller.
        events: To the spool and the log.
    """

    def __init__(self, link: Link, events: LoggedEvents) -> None:
        self.tell = link.tell
        self.is_connected = link.is_connected
        self.event = events.event


def _locked(path: Path) -> TextIO:
    """Take a state directory for this process alone.

    Raises:
        ConfigError: Another agent has it.
    """
    with storage_faults(f"cannot open {path.name}"):
        lock = path.open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(
            "another agent uses this state directory", remedy="stop it or choose another state_dir"
        ) from None
    return lock


def _mqtt(config: AgentConfig) -> Connect:
    address = broker_address(config)

    def connect(login: Login) -> Transport:
        return MqttTransport(
            address,
            client_id=login.client_id,
            username=login.username,
            password=login.password,
            will=login.will,
        )

    return connect


def _endpoint_tls(config: AgentConfig) -> ssl.SSLContext | None:
    """Return what the endpoint needs for TLS, or None where it is not asked for.

    Raises:
        EndpointError: A file cannot be read, or is not what it should be.
    """
    endpoint = config.endpoint
    if endpoint.cert_file is None or endpoint.key_file is None:
        return None
    return server_tls(endpoint.cert_file, endpoint.key_file, endpoint.client_ca_file)


LOGGED: Final = frozenset(
    {"from", "to", "variant", "release", "code", "revision", "outcome", "phase", "gap_ms"}
)
"""Fields of events that are worth a place in the log; the rest is in the spool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything that the agent is made of."""

    lock: TextIO
    clock: Clock
    log: Log
    version: str
    boot_id: str
    profile: DeviceProfile
    trust: TrustRoot
    recorder: Recorder
    events: LoggedEvents
    sensors: Sensors
    spool: Spool
    store: FileStateStore
    identity: Identity
    enrolment: Enrolment
    connect: Connect
    link: Link
    pump: TelemetryPump
    fetcher: Fetcher
    model_server: ModelServer
    endpoint: Endpoint
    adaptation: Adaptation
    installer: Installer
    installs: Installs
    interrupts: Interrupts
    control: ControlServer


def assemble(config: AgentConfig) -> Parts:
    """Make the parts; nothing runs yet.

    Args:
        config: What the operator decided.

    Returns:
        The parts.

    Raises:
        FleetError: A file, the state directory, the endpoint or the control socket cannot be
            used, or another agent uses the state directory.
    """
    clock = SystemClock()
    log = Log(clock)
    profile, trust = load_profile(config), load_trust(config)
    with storage_faults("cannot make the state directory"):
        config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = _locked(config.state_dir / LOCK_FILE)
    boot_id, version = secrets.token_hex(8), VERSION
    recorder = Recorder(clock)
    events = LoggedEvents(recorder, log)
    interrupts = Interrupts(clock)
    store = FileStateStore(config.state_dir / STATE_FILE)
    slots = Slots(config.state_dir)
    link = Link(config.device, boot_id)
    fetcher = Fetcher(config.device, link.publish, clock)
    spool = Spool(
        config.state_dir / SPOOL_FILE,
        device=config.device,
        boot_id=boot_id,
        limit_bytes=config.spool_bytes,
        clock=clock,
    )
    model_server = ModelServer(
        events,
        clock,
        device=config.device,
        settings=serving_settings(config, threads=profile.threads),
        verify=lambda digest, variant: open_package(slots.directory(digest), digest, trust).verify(
            (variant,)
        ),
    )
    meter = Meter()
    model_server.router.listen(meter.count)
    adaptation = Adaptation(
        model_server,
        profile,
        meter,
        events,
        clock,
        cpu_share=min(profile.threads / (os.cpu_count() or 1), 1.0),
        policy=config.policy,
    )
    installer = Installer(
        InstallSettings(profile=profile, trust=trust, confirm_s=config.confirm_s),
        store=store,
        slots=slots,
        fetcher=fetcher,
        adaptation=adaptation,
        interrupts=interrupts,
    )
    machine = Machine(
        config.device,
        store,
        installer,
        Outside(link, events),
        interrupts=interrupts,
        clock=clock,
        rng=random.Random(),  # noqa: S311 - jitter, not a secret
    )
    connect = _mqtt(config)
    identity = Identity(config.state_dir, config.device)
    pump = TelemetryPump(config.device, recorder=recorder, spool=spool, link=link, clock=clock)
    endpoint = Endpoint(
        model_server.router,
        host=config.endpoint.host,
        port=config.endpoint.port,
        unix_path=config.endpoint.unix_path,
        token=load_endpoint_token(config),
        version=version,
        tls=_endpoint_tls(config),
    )
    commands = Commands(
        config.device,
        store=store,
        adaptation=adaptation,
        pump=pump,
        link=link,
        clock=clock,
        endpoint=lambda: endpoint.address,
    )
    return Parts(
        lock=lock,
        clock=clock,
        log=log,
        version=version,
        boot_id=boot_id,
        profile=profile,
        trust=trust,
        recorder=recorder,
        events=events,
        sensors=Sensors(
            profile, clock, sysfs_root=config.sysfs_root, procfs_root=config.procfs_root
        ),
        spool=spool,
        store=store,
        identity=identity,
        enrolment=Enrolment(
            Applicant(
                device=config.device, profile=profile, labels=config.labels, agent_version=version
            ),
            identity,
            connect,
            interrupts=interrupts,
            clock=clock,
        ),
        connect=connect,
        link=link,
        pump=pump,
        fetcher=fetcher,
        model_server=model_server,
        endpoint=endpoint,
        adaptation=adaptation,
        installer=installer,
        installs=Installs(machine, store, interrupts, log),
        interrupts=interrupts,
        control=ControlServer(config.state_dir / SOCKET_FILE, commands.answer),
    )
