"""Whom devices and the controller believe: trusted metadata, or the trust file in its place."""

from __future__ import annotations

import logging
from pathlib import Path

from controller.config import ControllerConfig
from controller.errors import SettingsError
from controller.metadata.online import OnlineSigner
from controller.metadata.store import FOLDER, MetadataStore
from controller.secret_files import read_seed, read_trust
from controller.services.director import Publisher
from controller.services.metadata import FleetMetadata, Lives
from controller.store.database import Database
from wire.clock import Clock
from wire.trust.envelope import SigningKey
from wire.trust.roles import SNAPSHOT, TIMESTAMP
from wire.trust.root import Trust

LONGEST_TIMESTAMP_S = 30 * 86_400.0
"""Devices believe no timestamp for much longer."""

_log = logging.getLogger(__name__)


def fleet_trust(
    config: ControllerConfig,
    database: Database,
    publisher: Publisher,
    key: SigningKey,
    clock: Clock,
) -> tuple[FleetMetadata | None, Trust]:
    """Return the fleet's trusted metadata, if it has any, and whom packages are believed by.

    Args:
        config: The settings.
        database: The control state.
        publisher: Sends it to devices.
        key: The director's.
        clock: Wall time.

    Raises:
        SettingsError: A key cannot be read, or devices would not believe the director's.
        MetadataError: What is stored cannot be believed.
    """
    store = MetadataStore(Path(config.data_dir) / FOLDER)
    if not store.exists:
        return None, read_trust(config, key)
    trust = config.trust
    if not 1.0 <= trust.timestamp_s <= LONGEST_TIMESTAMP_S or trust.desired_s < 1.0:
        raise SettingsError(
            "trust.timestamp_s is not within 1 s to 30 days, or trust.desired_s is below 1 s",
            remedy="correct them in controller.toml",
        )
    metadata = FleetMetadata(
        store,
        (
            OnlineSigner(SNAPSHOT, read_seed(trust.snapshot_key_file)),
            OnlineSigner(TIMESTAMP, read_seed(trust.timestamp_key_file)),
        ),
        publisher,
        database,
        clock,
        lives=Lives(timestamp_s=trust.timestamp_s, desired_s=trust.desired_s),
    )
    director = metadata.director
    if key.public_key not in director.public_keys() or director.threshold != 1:
        # It starts all the same: without it nobody could give the role another key.
        _log.error(
            "no device believes what this controller orders: the key in %s does not sign as "
            "director alone; use such a key, or add this one: fleet key rotate director",
            config.director_key_file,
        )
    return metadata, metadata
