"""The agent's configuration: one TOML file.

```toml
device = "kiosk-17"
state_dir = "/var/lib/edgefleet"
profile = "/etc/edgefleet/profile.toml"
trust = "/etc/edgefleet/trust.json"
token_file = "/etc/edgefleet/token"

[broker]
host = "fleet.example.org"
port = 8883
ca_file = "/etc/edgefleet/ca.pem"

[endpoint]
port = 8500
```

Rules:
- An unknown key is refused: a misspelt limit must not become no limit.
- Relative paths are relative to the directory of the file, wherever the agent is started.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from agent.app.origins import origins_fault
from agent.capture.settings import CaptureSettings
from agent.errors import ConfigError
from agent.grpc_endpoint.settings import GrpcSettings
from agent.install.conditions import ConditionSettings
from agent.install.fetch.settings import DeliverySettings
from agent.install.hooks.settings import HookSettings
from agent.install.scrub.settings import ScrubSettings
from agent.measure.settings import MeasureSettings
from agent.peers.settings import PeerSettings
from agent.serve.deferred.settings import DeferredSettings
from agent.serve.feedback.settings import FeedbackSettings
from agent.serve.settings import CONNECTIONS, Mode, ServingSettings, WorkerLimits
from agent.shadow.settings import ShadowSettings
from wire.codec import from_toml
from wire.errors import FleetError, TopicError
from wire.files import open_file
from wire.hosts import is_loopback
from wire.policy import Objective, PolicySpec, Sharing
from wire.settings_faults import no_such_setting, plain_fault
from wire.topics import checked_device

MAX_CONFIG_BYTES = 1024 * 1024
MAX_PORT = 65535
MAX_CONNECTIONS = 4096


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the broker is."""

    host: str = "127.0.0.1"
    port: int = 1883
    ca_file: Path | None = None
    """Authority of the broker's certificate: `ca.pem` from the controller's directory. Without it
    there is no TLS, and the agent connects only to a broker on this device."""

    cert_file: Path | None = None
    """The device's own certificate, where the controller does not make them."""

    key_file: Path | None = None
    """Its key. Without `cert_file`: the key for which the controller makes certificates, such as a
    file that stands for a key in a TPM; by default the agent makes one."""

    certificate_port: int | None = None
    """Where to connect with such a certificate, if something forwards that port; None: where the
    controller says that the broker listens."""


class EndpointConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where applications send requests for inference."""

    host: str = "127.0.0.1"
    port: int = 8500
    """0 takes a free one, which `fleet-agent status` shows."""

    unix_path: Path | None = None
    """A Unix socket instead of a port."""

    connections: int = CONNECTIONS
    """Open connections; a new one takes the place of one that is idle or slow. Each that is busy
    takes a thread."""

    token_file: Path | None = None
    """Bearer token that requests must carry. Any address except loopback needs this or
    `client_ca_file`."""

    cert_file: Path | None = None
    """The endpoint's certificate, PEM. With it the endpoint accepts only TLS. Any address except
    loopback needs it, or `clear_text`."""

    key_file: Path | None = None
    clear_text: bool = False
    """No TLS although other machines reach the endpoint: for containers and closed networks."""

    client_ca_file: Path | None = None
    """Authorities of the clients' certificates. With it every client needs a certificate."""

    allow_load: bool = False
    """Whether clients may unload models, which frees their memory, and load them again."""
    metrics: bool = False
    """Whether `GET /metrics` answers Prometheus. Off by default: telemetry goes to the controller
    anyway, and a device that nobody scrapes should neither count twice nor load what counts."""

    allow_origins: tuple[str, ...] = ()
    """Origins whose pages may ask from a browser, such as `https://panel.example`, or `*` alone."""

    shared_memory_bytes: int = 0
    """Greatest part of POSIX shared memory that a client may register for its tensors; 0 for
    none. By that size a request can grow beyond its body."""
    grpc: GrpcSettings = GrpcSettings()
    """The same over gRPC, with the same token and certificates; by default it is not served."""


class ServingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests for inference are run; `agent.serve.settings` explains the defaults."""

    max_batch: int = Mode().max_batch
    max_queue_delay_ms: float = Mode().max_queue_delay_ms
    waiting: int = WorkerLimits().waiting
    memory_bytes: int | None = None
    """How much a worker's data may grow while it loads and runs; None for no limit."""

    start_timeout_s: float = ServingSettings().start_timeout_s
    infer_timeout_s: float = ServingSettings().infer_timeout_s
    drain_s: float = ServingSettings().drain_s
    gap_wait_s: float = ServingSettings().gap_wait_s


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that an operator decides on a device."""

    device: str
    state_dir: Path
    profile: Path
    trust: Path
    """The first root of the fleet's trusted metadata; or a trust file, whose keys never change."""

    trust_grace_s: float = 0.0
    """How long after its end trusted metadata still counts as fresh, for a site without a network
    for longer than a timestamp lives; 0 for no longer."""

    token_file: Path | None = None
    """The enrolment token; not needed any more after the device is enrolled."""

    serial: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:/-]{1,64}$")] | None = None
    """Serial number that the device tells when it enrols; None for what its hardware says."""

    broker: BrokerConfig = BrokerConfig()
    endpoint: EndpointConfig = EndpointConfig()
    serving: ServingConfig = ServingConfig()
    deferred: DeferredSettings = DeferredSettings()
    """Bounds on requests that may wait until the device has nothing else to do."""

    feedback: FeedbackSettings = FeedbackSettings()
    """Whether applications may say which answers were right."""

    install: ConditionSettings = ConditionSettings()
    hooks: HookSettings = HookSettings()
    delivery: DeliverySettings = DeliverySettings()
    peers: PeerSettings = PeerSettings()
    scrub: ScrubSettings = ScrubSettings()
    measure: MeasureSettings = MeasureSettings()
    capture: CaptureSettings = CaptureSettings()
    shadow: ShadowSettings = ShadowSettings()
    policy: PolicySpec | None = None
    """How this device chooses among its variants, in place of the controller's policy; None to use
    the controller's policy."""

    sysfs_root: Path = Path("/sys")
    procfs_root: Path = Path("/proc")
    sense_interval_s: float = 1.0
    """Time between two readings of the sensors: heat takes seconds to build up."""

    telemetry_interval_s: float = 10.0
    """How often figures leave the device: one message of about a kilobyte."""

    confirm_s: float = 10.0
    """How long a new package must stay healthy before the old one may go."""

    spool_bytes: int = 16 * 1024 * 1024
    """Telemetry kept while there is no connection: weeks of a quiet device."""

    labels: dict[str, str] = {}


def load_config(path: Path) -> AgentConfig:
    """Read a configuration file.

    Args:
        path: Path of the file.

    Returns:
        The configuration, with absolute paths.

    Raises:
        ConfigError: It cannot be read, has an unknown or missing key, or an impossible value.
    """
    data = read_named(path, "configuration", "name the agent's file with --config FILE")
    try:
        values = from_toml(data, dict, limit_bytes=MAX_CONFIG_BYTES)
        config = msgspec.convert(values, AgentConfig, dec_hook=_path)
        _check_keys(values.get("policy", {}), PolicySpec, "policy")
        _check_keys(values.get("policy", {}).get("objective", {}), Objective, "policy.objective")
        _check_keys(values.get("policy", {}).get("sharing", {}), Sharing, "policy.sharing")
        serving_settings(config)
        checked_device(config.device)
    except (TopicError, ConfigError) as exc:
        raise ConfigError(f"{path}: {exc.message}", remedy=exc.remedy) from exc
    except (FleetError, msgspec.ValidationError) as exc:
        fault = plain_fault(str(exc), AgentConfig)
        raise ConfigError(f"{path}: {fault}", remedy="correct that line") from exc
    _check(config, str(path))
    return _absolute(config, path.absolute().parent)


def read_named(path: Path, what: str, remedy: str = "check the path and the permissions") -> bytes:
    """Read a file that an operator named.

    Args:
        path: The file.
        what: What it is, for a fault.
        remedy: What to do if it cannot be read.

    Returns:
        Its content, at most a byte more than any such file may have.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(MAX_CONFIG_BYTES + 1)
    except OSError as exc:
        raise ConfigError(
            f"cannot read the {what} {path}: {(exc.strerror or str(exc)).lower()}",
            remedy=remedy,
        ) from exc


def serving_settings(
    config: AgentConfig, *, threads: int = 1, processors: int = 1
) -> ServingSettings:
    """Return the bounds on serving.

    Args:
        config: The configuration.
        threads: Threads that a worker may use.
        processors: Of the device.

    Returns:
        The settings.

    Raises:
        ConfigError: A bound is impossible.
    """
    serving = config.serving
    try:
        return ServingSettings(
            limits=WorkerLimits(
                threads=threads, waiting=serving.waiting, memory_bytes=serving.memory_bytes
            ),
            processors=processors,
            start_timeout_s=serving.start_timeout_s,
            infer_timeout_s=serving.infer_timeout_s,
            drain_s=serving.drain_s,
            gap_wait_s=serving.gap_wait_s,
            mode=Mode(max_batch=serving.max_batch, max_queue_delay_ms=serving.max_queue_delay_ms),
            names_answers=config.feedback.enabled,
        )
    except ValueError as exc:
        raise ConfigError(f"serving: {exc}") from exc


def _path(kind: type, value: object) -> Path:
    """Make a path of a text; msgspec knows only plain types.

    Raises:
        ValueError: It is no path; msgspec adds the place in the file.
    """
    if kind is Path and isinstance(value, str) and value and "\0" not in value:
        return Path(value)
    raise ValueError("expected a path")


def _check(config: AgentConfig, name: str) -> None:
    broker, endpoint, memory_bytes = config.broker, config.endpoint, config.serving.memory_bytes
    faults = [
        (not 1 <= broker.port <= MAX_PORT, "broker.port is not within 1 to 65535"),
        (
            broker.certificate_port is not None and not 1 <= broker.certificate_port <= MAX_PORT,
            "broker.certificate_port is not within 1 to 65535",
        ),
        (not 0 <= endpoint.port <= MAX_PORT, "endpoint.port is not within 0 to 65535"),
        (
            not 1 <= endpoint.connections <= MAX_CONNECTIONS,
            f"endpoint.connections is not within 1 to {MAX_CONNECTIONS}",
        ),
        (
            broker.cert_file is not None and broker.key_file is None,
            "broker.cert_file needs broker.key_file",
        ),
        (
            broker.key_file is not None and broker.ca_file is None,
            "broker.key_file needs broker.ca_file",
        ),
        (
            (endpoint.cert_file is None) != (endpoint.key_file is None),
            "endpoint.cert_file and endpoint.key_file must be set together",
        ),
        (
            endpoint.client_ca_file is not None and endpoint.cert_file is None,
            "endpoint.client_ca_file needs endpoint.cert_file",
        ),
        (
            not (endpoint.token_file or endpoint.client_ca_file or _is_private(endpoint)),
            f"endpoint.host {endpoint.host} is not local: set token_file or client_ca_file",
        ),
        (
            not (endpoint.cert_file or endpoint.clear_text or _is_private(endpoint)),
            f"endpoint.host {endpoint.host} is not local: set cert_file, or clear_text = true",
        ),
        (
            endpoint.clear_text and endpoint.cert_file is not None,
            "endpoint.cert_file asks for TLS and endpoint.clear_text for none",
        ),
        (
            bool(endpoint.allow_origins) and endpoint.client_ca_file is not None,
            "endpoint.allow_origins does not go with client_ca_file: set token_file in its place",
        ),
        (endpoint.shared_memory_bytes < 0, "endpoint.shared_memory_bytes is negative"),
        (
            endpoint.shared_memory_bytes > 0 and not _is_private(endpoint),
            "endpoint.shared_memory_bytes needs a loopback address as host, or unix_path",
        ),
        (memory_bytes is not None and memory_bytes <= 0, "serving.memory_bytes is not positive"),
        (not 0 < config.sense_interval_s < math.inf, "sense_interval_s is not above 0"),
        (not 0 < config.telemetry_interval_s < math.inf, "telemetry_interval_s is not above 0"),
        (not 0 <= config.confirm_s < math.inf, "confirm_s is negative"),
        (config.spool_bytes <= 0, "spool_bytes is not positive"),
        (not 0 <= config.trust_grace_s < math.inf, "trust_grace_s is negative"),
    ]
    if fault := origins_fault(endpoint.allow_origins, needs_token=endpoint.token_file is not None):
        faults.append((True, f"endpoint.allow_origins {fault}"))
    parts = (config.install, config.hooks, config.delivery, config.peers, config.deferred)
    others = (config.feedback, config.measure, config.scrub, config.capture, config.shadow)
    for part in (*parts, *others):
        faults += [(True, text) for text in part.faults()]
    knows_clients = bool(endpoint.token_file or endpoint.client_ca_file)
    encrypts = bool(endpoint.cert_file) or endpoint.clear_text
    grpc_faults = endpoint.grpc.faults(knows_clients=knows_clients, encrypts=encrypts)
    faults += [(True, text) for text in grpc_faults]
    if config.policy is not None:
        faults += [(True, f"policy: {text}") for text in config.policy.faults()]
    for wrong, text in faults:
        if wrong:
            raise ConfigError(f"{name}: {text}")


def _check_keys(values: dict[str, object], kind: type[msgspec.Struct], name: str) -> None:
    """Refuse keys that a table does not have: in a file they are misspelt; messages may have more.

    Raises:
        ConfigError: There is such a key.
    """
    strangers = sorted(set(values) - set(kind.__struct_fields__))
    if strangers:
        fault = no_such_setting(f"{name}.{strangers[0]}", AgentConfig)
        raise ConfigError(fault, remedy="correct that line")


def _is_private(endpoint: EndpointConfig) -> bool:
    """Tell whether only this device can reach an endpoint."""
    return endpoint.unix_path is not None or is_loopback(endpoint.host)


def _absolute(config: AgentConfig, base: Path) -> AgentConfig:
    replace = msgspec.structs.replace

    def below(path: Path | None) -> Path | None:
        return None if path is None else base / path

    return replace(
        config,
        state_dir=base / config.state_dir,
        profile=base / config.profile,
        trust=base / config.trust,
        token_file=below(config.token_file),
        sysfs_root=base / config.sysfs_root,
        procfs_root=base / config.procfs_root,
        hooks=replace(config.hooks, directory=below(config.hooks.directory)),
        delivery=replace(config.delivery, ca_file=below(config.delivery.ca_file)),
        broker=replace(
            config.broker,
            ca_file=below(config.broker.ca_file),
            cert_file=below(config.broker.cert_file),
            key_file=below(config.broker.key_file),
        ),
        endpoint=replace(
            config.endpoint,
            unix_path=below(config.endpoint.unix_path),
            token_file=below(config.endpoint.token_file),
            cert_file=below(config.endpoint.cert_file),
            key_file=below(config.endpoint.key_file),
            client_ca_file=below(config.endpoint.client_ca_file),
            grpc=replace(config.endpoint.grpc, unix_path=below(config.endpoint.grpc.unix_path)),
        ),
    )
