"""What an operator decides on a device. `agent.app.config_file` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

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
from wire.policy import PolicySpec


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
