"""Checks metadata with python-tuf's client. For a process of its own: the client needs 13 MiB.

Rules:
- What is checked lies in a folder; nothing here knows how it came.
- Metadata that was believed before is what newer metadata must follow. Floors refuse what is older
  also where that was lost.
- What had ended when something was signed that was believed is refused, whatever the clock says;
  the operator's grace alone lengthens it.

Source:
    The Update Framework Specification 1.0.34, section 5 (the client's workflow).
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import KEY_FOR_TYPE_AND_SCHEME, Signature, SSlibKey
from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadError,
    DownloadHTTPError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, Root, Targets
from tuf.api.serialization import DeserializationError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from agent.trust.floors import Floors, RoleFloor, below, raised, time_floor_s
from agent.trust.job import Job, Outcome
from agent.trust.roots import fleet_of
from agent.trust.trusted import Release, Trusted
from wire.codec import sha256_hex
from wire.errors import WireFormatError
from wire.files import sync_directory
from wire.metadata import MAX_FILE_BYTES, MAX_ROOTS, MetadataVersions, parse_file_name
from wire.trust.envelope import is_valid
from wire.trust.form import misnamed
from wire.trust.roles import (
    DIRECTOR,
    ED25519,
    ISSUED_FIELD,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    is_role,
    target_path,
)
from wire.trust.root import Role

MISSING: Final = 404
LONGEST_LIFE_S: Final = 32 * 86_400.0
"""How long a timestamp counts at most, whatever it says: its thief must not hide for years."""

MAX_TIMESTAMP_BYTES: Final = 16 * 1024
ANOTHER_FLEET: Final = (
    "the root on this device seems to be another fleet's: put the root.json of its own fleet in "
    "the place that `trust` in agent.toml names, and start the agent again"
)
"""What to do where nothing has ever fitted the root; then hardly all of it is forged."""

_ANY_VERSION: Final = "0"

Document = Metadata[Any]


class NaclKey(SSlibKey):
    """An Ed25519 key that is checked by libsodium, which this device has."""

    def verify_signature(self, signature: Signature, data: bytes) -> None:
        """Check a signature.

        Raises:
            UnverifiedSignatureError: It was not made by this key.
        """
        try:
            key, raw = bytes.fromhex(self.keyval["public"]), bytes.fromhex(signature.signature)
        except ValueError as exc:
            raise UnverifiedSignatureError("a key or a signature is not hexadecimal") from exc
        if not is_valid(key, data, raw):
            raise UnverifiedSignatureError(f"the signature by {self.keyid} is wrong")


class FolderFetcher(FetcherInterface):
    """Finds metadata in a folder, in place of a server.

    Args:
        incoming: What has come, each role's newest file under the name of its role.
        trusted: What is there already: its timestamp is offered again if no newer one has come.
        root: The device's own, whose fleet each later one must be of.
    """

    def __init__(self, incoming: Path, trusted: Path, root: bytes) -> None:
        super().__init__()
        self._incoming = incoming
        self._trusted = trusted
        self._fleet = fleet_of(root)
        self.missing: list[str] = []
        """Roles whose files have not come."""

    def _fetch(self, url: str) -> Iterator[bytes]:
        name = url.removeprefix("/").removesuffix(".json")
        role, _version = parse_file_name(name)
        places = [
            self._incoming / f"roots/{name}.json"
            if role == ROOT
            else self._incoming / f"{role}.json"
        ]
        if role == TIMESTAMP:
            # Nothing newer may have come; of other roles the client has looked there itself.
            places.append(self._trusted / f"{role}.json")
        for place in places:
            with contextlib.suppress(OSError):
                data = place.read_bytes()
                if role == ROOT:
                    _check_root(data, self._fleet)
                yield data
                return
        if role != ROOT:
            self.missing.append(role)
        raise DownloadHTTPError(f"{role} has not come", MISSING)


def _check_root(data: bytes, fleet: str | None) -> None:
    """Refuse a root that cannot be, before the next one can follow it: no root leads back.

    Raises:
        RepositoryError: It cannot be.
    """
    with contextlib.suppress(DeserializationError):  # then the client refuses it
        found: Document = Metadata.from_bytes(data)
        if isinstance(found.signed, Root):
            _check_names(found)
            if found.signed.consistent_snapshot is not True:
                raise RepositoryError("the root has no consistent snapshots")
            if fleet_of(data) != fleet:
                raise RepositoryError("the root is another fleet's")


def _check_names(document: Document) -> None:
    if (fault := misnamed(document.signed.to_dict())) is not None:
        raise RepositoryError(fault)


def check(job: Job, *, now_s: float, grace_s: float) -> Outcome:
    """Check what has come, and believe it if it is right.

    Args:
        job: What to check.
        now_s: Wall time.
        grace_s: How long after its end metadata may still be believed.

    Returns:
        What is believed, or what is wrong.

    Raises:
        OSError: The storage failed.
    """
    KEY_FOR_TYPE_AND_SCHEME[ED25519, ED25519] = NaclKey
    trusted = Path(job.trusted)
    for left in trusted.glob("tmp*"):  # what a kill left of a file that was being written
        left.unlink(missing_ok=True)
    faults: dict[str, str] = {}
    fetcher = FolderFetcher(Path(job.incoming), trusted, Path(job.root).read_bytes())
    try:
        updater = _updater(job, trusted, fetcher)
        # The set has no other door for the time.
        updater._trusted_set.reference_time = dt.datetime.fromtimestamp(  # noqa: SLF001
            max(now_s - grace_s, 0.0), dt.UTC
        )
        updater.refresh()
        time_keys = _chain(_read(trusted, ROOT).signed.roles[TIMESTAMP].keyids)
        earliest_s = time_floor_s(job.floors, time_keys)
        found = _trusted(job, updater, trusted, faults)
        _check_time(found, earliest_s - grace_s)
    except (RepositoryError, DownloadError, WireFormatError) as exc:
        fault = _line(exc)
        if isinstance(exc, UnsignedMetadataError) and job.floors == Floors():
            fault = f"{fault}; {ANOTHER_FLEET}"
        return Outcome(
            floors=job.floors, code=_code(exc), fault=fault, missing=tuple(fetcher.missing)
        )
    documents = {name: _read(trusted, name) for name in (TIMESTAMP, SNAPSHOT, TARGETS)}
    documents |= {name: _read(trusted, name) for name in found.versions.roles}
    roles = _role_floors(_read(trusted, ROOT).signed, documents)
    if (older := below(job.floors, found.versions.root, roles)) is not None:
        return Outcome(floors=job.floors, code="rollback", fault=older)
    _sync(trusted)
    return Outcome(
        trusted=found,
        floors=raised(job.floors, found.versions.root, roles, found.issued_at_s, time_keys),
        code="list" if faults else "",
        fault="; ".join(f"the list {name}: {why}" for name, why in faults.items()),
        missing=tuple(fetcher.missing),
    )


def _updater(job: Job, trusted: Path, fetcher: FolderFetcher) -> Updater:
    return Updater(
        str(trusted),
        "/",
        fetcher=fetcher,
        config=UpdaterConfig(
            max_root_rotations=MAX_ROOTS,
            root_max_length=MAX_FILE_BYTES,
            timestamp_max_length=MAX_TIMESTAMP_BYTES,
            snapshot_max_length=MAX_FILE_BYTES,
            targets_max_length=MAX_FILE_BYTES,
        ),
        bootstrap=Path(job.root).read_bytes(),
    )


def _trusted(job: Job, updater: Updater, trusted: Path, faults: dict[str, str]) -> Trusted:
    """Return what the verified files say; a list that cannot be believed counts as empty.

    Raises:
        RepositoryError: The top roles cannot be believed.
    """
    root, targets = _read(trusted, ROOT), _read(trusted, TARGETS)
    _check_names(root)
    _check_names(targets)
    timestamp, snapshot = _read(trusted, TIMESTAMP), _read(trusted, SNAPSHOT)
    tops = {ROOT: root, TARGETS: targets, SNAPSHOT: snapshot, TIMESTAMP: timestamp}
    ends_s = {name: document.signed.expires.timestamp() for name, document in tops.items()}
    ends_s[TIMESTAMP] = min(ends_s[TIMESTAMP], _issued_at_s(timestamp) + LONGEST_LIFE_S)
    first = min(ends_s, key=lambda name: ends_s[name])
    releases: dict[str, Release] = {}
    roles: dict[str, int] = {}
    for model in job.models:
        name = _list_of(targets.signed, model)
        if name is None:
            continue
        try:
            updater.get_targetinfo(target_path(model, _ANY_VERSION))  # brings and checks the list
            listed = _read(trusted, name)
        except DownloadHTTPError:
            continue  # it is told as missing
        except (RepositoryError, DownloadError, WireFormatError) as exc:
            # One list must not keep away what the others and the top roles say.
            faults[name] = _line(exc)
            continue
        roles[name] = listed.signed.version
        for path in listed.signed.targets:
            if path.startswith(target_path(model, "")):
                info = updater.get_targetinfo(path)
                if info is not None:
                    releases[path] = Release(
                        sha256=info.hashes.get("sha256", ""),
                        size_bytes=info.length,
                        expires_at_s=listed.signed.expires.timestamp(),
                    )
    return Trusted(
        versions=MetadataVersions(
            root=root.signed.version,
            timestamp=timestamp.signed.version,
            snapshot=snapshot.signed.version,
            targets=targets.signed.version,
            roles=roles,
        ),
        director=_director(targets.signed),
        issued_at_s=_issued_at_s(timestamp),
        expires_at_s=ends_s[first],
        expires_first=first,
        models=job.models,
        releases=releases,
    )


def _issued_at_s(timestamp: Document) -> float:
    """Return when a timestamp was signed.

    Raises:
        RepositoryError: It says what cannot be.
    """
    issued = timestamp.signed.unrecognized_fields.get(ISSUED_FIELD, 0)
    if type(issued) is not int or not 0 <= issued <= timestamp.signed.expires.timestamp():
        raise RepositoryError("the timestamp says no possible time at which it was signed")
    return float(issued)


def _check_time(trusted: Trusted, earliest_s: float) -> None:
    """Refuse what had ended when something was signed that this device has believed.

    Raises:
        ExpiredMetadataError: It had.
    """
    if trusted.expires_at_s <= earliest_s:
        raise ExpiredMetadataError(f"{trusted.expires_first} had ended by then")


def _list_of(targets: Targets, model: str) -> str | None:
    """Return the role that lists the releases of a model."""
    if targets.delegations is None:
        return None
    paths = targets.delegations.get_roles_for_target(target_path(model, _ANY_VERSION))
    return next((name for name, _ in paths if name != DIRECTOR), None)


def _director(targets: Targets) -> Role:
    """Return who may sign desired states.

    Raises:
        RepositoryError: The targets do not say that.
    """
    delegations = targets.delegations
    names = () if delegations is None else (*(delegations.roles or {}),)
    if any(name != DIRECTOR and not is_role(name) for name in names):
        raise RepositoryError("the targets name a role that cannot be")
    try:
        role = targets.get_delegated_role(DIRECTOR)
        keys = [targets.get_key(keyid) for keyid in role.keyids]
        raw = [bytes.fromhex(key.keyval["public"]) for key in keys if key.keytype == ED25519]
    except ValueError as exc:
        raise RepositoryError("the targets name no director") from exc
    if not 1 <= role.threshold <= len(set(raw)):
        raise RepositoryError("the threshold of the director cannot be met")
    return Role(keys=tuple(base64.b64encode(key).decode() for key in raw), threshold=role.threshold)


def _chain(*signers: Collection[str]) -> str:
    """Return a digest over the names of the keys that may sign, of each role in turn."""
    return sha256_hex(" ".join(keyid for keys in signers for keyid in sorted(keys)).encode())


def _role_floors(root: Root, documents: dict[str, Document]) -> dict[str, RoleFloor]:
    """Return the versions of the documents, and whose keys vouch for each."""
    time, snapshot, targets = (root.roles[role].keyids for role in (TIMESTAMP, SNAPSHOT, TARGETS))
    chains = {TIMESTAMP: (time,), SNAPSHOT: (time, snapshot), TARGETS: (time, snapshot, targets)}
    delegations = documents[TARGETS].signed.delegations
    if delegations is not None:
        chains |= {name: (time, snapshot, role.keyids) for name, role in delegations.roles.items()}
    return {
        role: RoleFloor(version=document.signed.version, keys=_chain(*chains[role]))
        for role, document in documents.items()
    }


def _read(folder: Path, role: str) -> Document:
    return Metadata.from_bytes((folder / f"{role}.json").read_bytes())


def _sync(folder: Path) -> None:
    """Let what was written survive a power cut; raises OSError."""
    for place, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(place) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_directory(Path(place))


def _code(exc: Exception) -> str:
    for kind, code in _CODES:
        if isinstance(exc, kind):
            return code
    return "malformed"


_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (ExpiredMetadataError, "expired"),
    (BadVersionNumberError, "rollback"),
    (UnsignedMetadataError, "unsigned"),
    (LengthOrHashMismatchError, "mismatch"),
    (DownloadHTTPError, "missing"),
    (DownloadError, "oversized"),
)


def _line(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:300].lower()
