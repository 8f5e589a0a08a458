"""Makes the first trusted metadata of a fleet, and the keys that sign it.

Rules:
- The keys of the root and of the targets lie apart from the controller. Two of three root keys must
  sign, so one that is lost or stolen ends nothing; they belong to three places.
- The keys of snapshot and timestamp are the controller's: it signs anew many times a day.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from controller.app.home import (
    ROOT_FILE,
    ROOT_KEY_FILES,
    SNAPSHOT_KEY_FILE,
    TARGETS_KEY_FILE,
    TIMESTAMP_KEY_FILE,
)
from controller.metadata.checks import check
from controller.metadata.documents import Document, write
from controller.metadata.edit import RoleKeys, new_list, new_root, new_targets
from controller.metadata.online import signer_of
from controller.metadata.sets import assembled
from controller.metadata.store import AUTHORED_FILE, FOLDER
from wire.codec import to_json
from wire.metadata import MetadataFiles
from wire.trust.envelope import SEED_BYTES
from wire.trust.roles import RELEASES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP

ROOT_THRESHOLD: Final = 2
FLEET_BYTES: Final = 16


def first_metadata(
    home: Path, offline: Path, *, release: bytes, director: bytes, now_s: float
) -> dict[Path, bytes]:
    """Return the files of new trusted metadata with new keys; nothing is written.

    Args:
        home: The controller's data directory.
        offline: Where the keys lie that no controller needs.
        release: Seed of the key that lists releases.
        director: Seed of the key that signs desired states.
        now_s: Wall time.

    Returns:
        By path: the new keys, the first root and the metadata.
    """
    roots = {offline / name: secrets.token_bytes(SEED_BYTES) for name in ROOT_KEY_FILES}
    targets, snapshot, timestamp = (secrets.token_bytes(SEED_BYTES) for _ in range(3))
    signers = {ROOT: [signer_of(seed) for seed in roots.values()]} | {
        role: [signer_of(seed)]
        for role, seed in (
            (TARGETS, targets),
            (SNAPSHOT, snapshot),
            (TIMESTAMP, timestamp),
            (RELEASES, release),
        )
    }
    keys = {
        role: RoleKeys(
            tuple(signer.public_key for signer in some), ROOT_THRESHOLD if role == ROOT else 1
        )
        for role, some in signers.items()
    }
    documents: dict[str, Document] = {
        ROOT: new_root(secrets.token_hex(FLEET_BYTES), keys, now_s),
        TARGETS: new_targets(RoleKeys((signer_of(director).public_key,)), keys[RELEASES], now_s),
        RELEASES: new_list(now_s),
    }
    for role, document in documents.items():
        for signer in signers[role]:
            document.sign(signer, append=True)
    root = write(documents[ROOT])
    made = assembled(root, write(documents[TARGETS]), {RELEASES: write(documents[RELEASES])})
    check(made)
    return {
        **roots,
        offline / TARGETS_KEY_FILE: targets,
        home / SNAPSHOT_KEY_FILE: snapshot,
        home / TIMESTAMP_KEY_FILE: timestamp,
        home / ROOT_FILE: root,
        offline / ROOT_FILE: root,
        home / FOLDER / AUTHORED_FILE: to_json(MetadataFiles(files=made.files())),
    }
