"""The controller's settings: `controller.toml`.

Rules:
- An unknown key is refused, so that a misspelt setting is not silently ignored.
- Relative paths are relative to the file.
- Secrets are in files of their own; a setting only names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from controller.alert_settings import AlertsConfig
from controller.alert_settings import faults as alert_faults
from controller.api_settings import ApiConfig
from controller.api_settings import faults as api_faults
from controller.capture_settings import CaptureConfig
from controller.capture_settings import faults as capture_faults
from controller.certificate_settings import DeviceCertificatesConfig
from controller.certificate_settings import faults as certificate_faults
from controller.database_url import absolute_url, sqlite_path
from controller.download_settings import DownloadsConfig, S3Place
from controller.download_settings import faults as download_faults
from controller.errors import SettingsError
from controller.export_settings import OtlpConfig, PrometheusConfig
from controller.export_settings import faults as export_faults
from controller.named_files import THE_SETTINGS, read_small
from controller.peer_settings import PeersConfig
from controller.peer_settings import faults as peer_faults
from controller.penalty_settings import PenaltyConfig
from controller.penalty_settings import faults as penalty_faults
from controller.telemetry_settings import TelemetryConfig
from controller.telemetry_settings import faults as telemetry_faults
from wire.codec import from_toml
from wire.errors import WireFormatError
from wire.hosts import is_loopback
from wire.profile import NAME_PATTERN
from wire.settings_faults import plain_fault

MAX_PORT = 65535
LISTEN_TO_CONNECT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound
MIN_TRANSFER_BYTES_PER_S = 256 * 1024
"""One chunk of the largest size per second."""


class BrokerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which broker the controller uses, and with which account; how the local one listens."""

    host: str = "127.0.0.1"
    port: int = 1883
    user: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    """PEM file of the authority that signed the broker's certificate. With it the controller
    connects by TLS alone, and the local broker accepts TLS alone."""

    cert_file: str | None = None
    """The controller's own certificate, for a broker that wants one."""

    key_file: str | None = None
    clear_text: bool = False
    """No TLS, on loopback only: for tests on one machine."""

    names: tuple[str, ...] = ()
    """Names and addresses by which devices reach the local broker: its certificate is for these."""

    server_cert_file: str = "broker/server.pem"
    """PEM file with the local broker's certificate, and those up to its authority."""

    server_key_file: str | None = None
    """PEM file with the key of that certificate; None: it is in the same file."""

    client_id: str = "controller"
    """How the broker's log names the controller's connections; each adds a secret of its own."""

    share: str | None = None
    """Name of a group of controllers that share the messages of devices; None: this one is alone.
    They have one PostgreSQL database, one director's key, and one `blobs_dir`."""


class DeltasConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether devices that have an earlier release are sent deltas."""

    enabled: bool = True
    """If not, the controller makes none and removes those that it has."""

    keep_bytes: int = 4 * 1024**3
    """What all deltas together may take in `blobs_dir`. Those that were longest not used go first,
    and are made again when they are asked for."""


class TrustConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the controller signs of trusted metadata, if the fleet has any."""

    snapshot_key_file: str = "keys/snapshot.key"
    """Signs which lists belong together."""

    timestamp_key_file: str = "keys/timestamp.key"
    """Signs that they do so now."""

    timestamp_s: float = 86_400.0
    """How long a timestamp counts: a device that was shown no newer one takes nothing new then.
    Longer where devices are reached by hand alone."""

    desired_s: float = 7 * 86_400.0
    """How long a desired state counts, for what is not installed by then."""


class ControllerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings; paths are absolute once loaded."""

    database_url: str
    """SQLAlchemy URL. The path of an SQLite file is relative to the settings, unless it begins with
    a fourth slash."""

    data_dir: str = "."
    """Where the controller may write: the folder of the settings by default."""

    blobs_dir: str = "blobs"
    trust_file: str = "trust.json"
    director_key_file: str = "keys/director.key"
    trust: TrustConfig = TrustConfig()
    api: ApiConfig = ApiConfig()
    broker: BrokerConfig = BrokerConfig()
    device_certificates: DeviceCertificatesConfig | None = None
    """How devices get certificates for the broker; None: they have passwords."""

    deltas: DeltasConfig = DeltasConfig()
    downloads: DownloadsConfig = DownloadsConfig()
    peers: PeersConfig = PeersConfig()
    penalty: PenaltyConfig = PenaltyConfig()
    alerts: AlertsConfig = AlertsConfig()
    prometheus: PrometheusConfig = PrometheusConfig()
    otlp: OtlpConfig | None = None
    """Where telemetry goes as OTLP; None: nowhere."""

    access: Literal["mosquitto", "open"] = "mosquitto"
    """What manages the broker's accounts: `mosquitto` is the controller itself, through Mosquitto's
    dynamic-security plugin; `open` is something else."""

    tick_interval_s: float = 1.0
    """How often the controller looks at rollouts; a stage cannot take less time."""

    transfer_bytes_per_s: int = 256 * 1024 * 1024
    """What all devices together may fetch; what is over it waits. The default is about what one
    process sends through a broker on the same machine. Set it below the bandwidth of the network to
    a distant broker, where control messages share it."""

    telemetry: TelemetryConfig = TelemetryConfig()
    capture: CaptureConfig = CaptureConfig()
    """How long and how much is kept of what devices captured for the operator."""

    telemetry_retention_days: float | None = None
    """What `telemetry.keep_minutes` and `telemetry.keep_events` were before they had names of their
    own; where it is set, it counts."""


def load_config(path: Path, *, folder: Path | None = None) -> ControllerConfig:
    """Read the settings.

    Args:
        path: The file `controller.toml`.
        folder: The directory that the file is going to be in; by default the one it is in.

    Returns:
        The settings with absolute paths.

    Raises:
        SettingsError: The file cannot be read, has an unknown key, or an impossible value.
    """
    base = (folder or path.parent).absolute()
    named = base / path.name
    try:
        config = from_toml(read_small(path, THE_SETTINGS), ControllerConfig)
    except WireFormatError as exc:
        raise SettingsError(
            f"{named}: {plain_fault(exc.message, ControllerConfig)}",
            remedy="correct that line",
        ) from exc
    _check(config, named)
    absolute = _absolute(config, base)
    _check_database(absolute, named)
    return absolute


def connectable(host: str) -> str:
    """Return the host to connect to for a server that listens.

    Args:
        host: Where it listens, perhaps on all addresses.

    Returns:
        The same, or loopback for all addresses.
    """
    return LISTEN_TO_CONNECT.get(host, host)


def _check(config: ControllerConfig, path: Path) -> None:
    """Refuse impossible values.

    Raises:
        SettingsError: A value is impossible.
    """
    faults = [
        *((True, f"{name} holds the character NUL") for name in _with_nul(config)),
        *((True, fault) for fault in api_faults(config.api)),
        (not 1 <= config.broker.port <= MAX_PORT, "broker.port is not a port"),
        (not 0.01 <= config.tick_interval_s <= 60, "tick_interval_s is not within 0.01 to 60"),  # noqa: PLR2004 - the bounds are in the text
        (config.transfer_bytes_per_s < MIN_TRANSFER_BYTES_PER_S, "transfer_bytes_per_s is too low"),
        (config.deltas.keep_bytes < 0, "deltas.keep_bytes is negative"),
        (
            config.telemetry_retention_days is not None and config.telemetry_retention_days <= 0,
            "telemetry_retention_days is not positive",
        ),
        (
            (config.broker.user is None) != (config.broker.password_file is None),
            "broker.user and broker.password_file must be set together",
        ),
        (
            (config.broker.cert_file is None) != (config.broker.key_file is None),
            "broker.cert_file and broker.key_file must be set together",
        ),
        (
            config.broker.cert_file is not None and config.broker.ca_file is None,
            "broker.cert_file needs broker.ca_file",
        ),
        (
            config.broker.clear_text and config.broker.ca_file is not None,
            "broker.ca_file asks for TLS and broker.clear_text for none",
        ),
        *((True, fault) for fault in _share_faults(config)),
        (
            config.broker.clear_text and not is_loopback(config.broker.host),
            f"broker.clear_text is for loopback only, not for {config.broker.host}",
        ),
    ]
    faults += [(True, fault) for fault in download_faults(config.downloads)]
    faults += [(True, fault) for fault in peer_faults(config.peers)]
    faults += [(True, fault) for fault in penalty_faults(config.penalty)]
    faults += [(True, fault) for fault in telemetry_faults(config.telemetry)]
    faults += [(True, fault) for fault in alert_faults(config.alerts)]
    faults += [(True, fault) for fault in capture_faults(config.capture)]
    faults += [(True, fault) for fault in _certificate_faults(config)]
    faults += [(True, fault) for fault in export_faults(config.prometheus, config.otlp)]
    for wrong, text in faults:
        if wrong:
            raise SettingsError(f"{path}: {text}", remedy="correct that line")


def _share_faults(config: ControllerConfig) -> Iterator[str]:
    if config.broker.share is not None:
        if NAME_PATTERN.fullmatch(config.broker.share) is None:
            yield "broker.share is not 1 to 63 of a-z 0-9 . _ -"
        if sqlite_path(config.database_url) is not None:
            yield "broker.share needs PostgreSQL as database_url"


def _certificate_faults(config: ControllerConfig) -> Iterator[str]:
    if config.device_certificates is not None:
        yield from certificate_faults(
            config.device_certificates,
            broker_port=config.broker.port,
            has_tls=config.broker.ca_file is not None,
        )


def _with_nul(config: ControllerConfig) -> Iterator[str]:
    """Yield the settings that hold a character that no path and no address can."""
    tables = {"": config, "api.": config.api, "broker.": config.broker}
    tables |= {"downloads.": config.downloads, "peers.": config.peers}
    tables |= {f"alerts.webhooks {each.name!r} ": each for each in config.alerts.webhooks}
    tables |= {"prometheus.": config.prometheus}
    if config.telemetry.log is not None:
        tables |= {"telemetry.log.": config.telemetry.log}
    if config.otlp is not None:
        tables |= {"otlp.": config.otlp}
    for prefix, table in tables.items():
        for name, value in msgspec.structs.asdict(table).items():
            if isinstance(value, str) and "\0" in value:
                yield f"{prefix}{name}"


def _check_database(config: ControllerConfig, path: Path) -> None:
    """Refuse the database of another controller, as the settings of a copied directory may name it.

    Raises:
        SettingsError: The database lies in another directory that has settings of its own.
    """
    database = sqlite_path(config.database_url)
    folder = path.parent if database is None else database.parent
    if (folder / path.name).exists() and folder.resolve() != path.parent.resolve():
        raise SettingsError(
            f"{path}: database_url names the database of another controller, in {folder}",
            remedy="write a path that is relative to the settings, such as sqlite:///controller.db",
        )


def _absolute(config: ControllerConfig, base: Path) -> ControllerConfig:
    def there(name: str | None) -> str | None:
        return None if name is None else str(base / name)

    def changed(struct: msgspec.Struct, *names: str) -> dict[str, str | None]:
        return {name: there(getattr(struct, name)) for name in names}

    replace = msgspec.structs.replace
    paths = changed(config, "data_dir", "blobs_dir", "trust_file", "director_key_file")
    api_paths = changed(config.api, "token_file", "cert_file", "key_file", "ca_file")
    broker_paths = changed(
        config.broker, "password_file", "ca_file", "cert_file", "key_file", "server_cert_file",
        "server_key_file",
    )  # fmt: skip
    trust_paths = changed(config.trust, "snapshot_key_file", "timestamp_key_file")
    prometheus_paths = changed(config.prometheus, "token_file")
    downloads, certificates, otlp = config.downloads, config.device_certificates, config.otlp
    if otlp is not None:
        otlp = replace(otlp, **changed(otlp, "headers_file", "ca_file"))
    telemetry = config.telemetry
    if telemetry.log is not None:
        log_paths = changed(telemetry.log, "password_file", "ca_file")
        telemetry = replace(telemetry, log=replace(telemetry.log, **log_paths))
    if certificates is not None:
        certificates = replace(certificates, **changed(certificates, "ca_file", "key_file"))
    places = tuple(
        replace(place, **changed(place, "credentials_file"))
        if isinstance(place, S3Place)
        else place
        for place in downloads.places
    )
    webhooks = tuple(
        replace(webhook, **changed(webhook, "secret_file", "ca_file"))
        for webhook in config.alerts.webhooks
    )
    return replace(
        config,
        **paths,
        alerts=replace(config.alerts, webhooks=webhooks),
        database_url=absolute_url(config.database_url, base),
        trust=replace(config.trust, **trust_paths),
        api=replace(config.api, **api_paths),
        broker=replace(config.broker, **broker_paths),
        device_certificates=certificates,
        prometheus=replace(config.prometheus, **prometheus_paths),
        otlp=otlp,
        telemetry=telemetry,
        downloads=replace(downloads, places=places, **changed(downloads, "cert_file", "key_file")),
    )
