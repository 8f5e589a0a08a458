"""What the controller looks at, or makes, before it starts."""

from __future__ import annotations

import logging
from pathlib import Path

from controller.broker.device_authority import DeviceAuthority
from controller.config import ControllerConfig
from controller.errors import StorageError
from controller.jetstream import TelemetryLog
from controller.services.blobs import BlobStore
from controller.services.device_certificates import DeviceCertificates
from controller.services.director import Publisher
from controller.store import releases
from controller.store.database import Database, is_empty, migrate
from controller.telemetry_settings import SECONDS_PER_DAY
from telemetry.server.pruning import Retention
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.trust.envelope import SigningKey

_log = logging.getLogger(__name__)


def certificates_of(
    config: ControllerConfig,
    database: Database,
    publisher: Publisher,
    key: SigningKey,
    clock: Clock,
) -> DeviceCertificates:
    """Return what gives devices certificates, or lets them have passwords alone.

    Args:
        config: The settings.
        database: The control state.
        publisher: The way to the devices.
        key: The director's private key.
        clock: Wall time.

    Raises:
        SettingsError: The files of the devices' authority are unusable.
    """
    settings = config.device_certificates
    return DeviceCertificates(
        None if settings is None else DeviceAuthority(settings, clock),
        database,
        publisher,
        key,
        clock,
        accept_passwords=settings is None or settings.accept_passwords,
    )


def telemetry_store(config: ControllerConfig, database: Database, clock: Clock) -> TelemetryStore:
    """Return the store of telemetry.

    Args:
        config: How long it is kept.
        database: Where it is.
        clock: Wall time.
    """
    kept, former_days = config.telemetry, config.telemetry_retention_days
    minutes = kept.keep_minutes if former_days is None else former_days
    events = kept.keep_events if former_days is None else former_days
    retention = Retention(
        minutes_s=minutes * SECONDS_PER_DAY,
        hours_s=max(kept.keep_hours, minutes) * SECONDS_PER_DAY,
        days_s=max(kept.keep_days, minutes) * SECONDS_PER_DAY,
        events_s=events * SECONDS_PER_DAY,
    )
    return TelemetryStore(
        database.engine,
        clock,
        retention=retention,
        bounds=kept.bounds,
        reading_engine=database.reading_engine,
        published=releases.label_values,
    )


def telemetry_log(config: ControllerConfig) -> TelemetryLog | None:
    """Return where telemetry waits until it is stored; None if it is stored at once.

    Args:
        config: The settings.

    Raises:
        SettingsError: A file of the settings is unusable, or a library is not installed.
    """
    log = config.telemetry.log
    return None if log is None else TelemetryLog(log)


def warn_about_release_key(path: Path) -> None:
    """Warn of a key that signs packages and lies where the controller could use it."""
    if path.exists():
        _log.warning(
            "%s signs packages, and no server needs it: move it to the machine that builds",
            path,
        )


def prepared(config: ControllerConfig) -> BlobStore:
    """Make the directories usable, and the database one of today.

    Args:
        config: The settings.

    Returns:
        The blobs.

    Raises:
        StorageError: A directory cannot be written.
        DatabaseError: The database cannot be used.
    """
    check_writable(Path(config.data_dir))
    blobs = BlobStore(Path(config.blobs_dir))
    is_lost = is_empty(config.database_url) and bool(blobs.names())
    migrate(config.database_url)
    if is_lost:
        _log.warning(
            "the database is new, and knows no device and no release, but %s has packages: if it "
            "was lost, stop the controller and restore a backup, `fleet controller restore`",
            config.blobs_dir,
        )
    return blobs


def check_writable(directory: Path) -> None:
    """Prove that the data directory can be written.

    Args:
        directory: The data directory; made if missing.

    Raises:
        StorageError: It cannot.
    """
    probe = directory / ".writable"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe.touch(mode=0o600)
        probe.unlink()
    except OSError as exc:
        raise StorageError(
            f"cannot write to the data directory {directory}: {(exc.strerror or str(exc)).lower()}",
            remedy="give it to the user that runs the controller",
        ) from exc
