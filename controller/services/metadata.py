"""The fleet's trusted metadata at the controller: takes what people sign, signs that it is current.

Rules:
- What people sign is taken only as a whole that verifies; then snapshot and timestamp follow.
- A device gets what it lacks in answer to its greeting, before its desired state. While it is
  online it gets each new timestamp. Nothing is retained at the broker: whoever may retain one
  message there may fill its disk, and a device's greeting tells better what it needs.
- A timestamp is renewed when a quarter of its life is left, at the latest.
- Several controllers may have one folder of metadata: the one that leads renews the timestamp, each
  takes what people sign, and all read what another one has written.
- Devices that trust newer lists than the controller has show that it was restored: the log says
  which list must be signed again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.domain.faults import Faults
from controller.metadata.behind import behind
from controller.metadata.checks import check, check_ends, check_keys
from controller.metadata.documents import Authored, with_former
from controller.metadata.edit import WARN_S
from controller.metadata.errors import MetadataError
from controller.metadata.listed import ListedTrust
from controller.metadata.online import Online, OnlineSigner, sign_online
from controller.metadata.sets import changed
from controller.metadata.store import MetadataStore
from controller.metadata_schemas import MetadataState, RoleState
from controller.services.director import Publisher
from controller.store import devices
from controller.store.database import Database
from wire import topics
from wire.clock import Clock
from wire.codec import to_json
from wire.metadata import MetadataFile, MetadataVersions, parse_file_name, split
from wire.trust.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP, target_path
from wire.trust.root import Role, RoleName

MAX_MODELS: Final = 64
"""Of how many models a device may ask for lists, beside those that it is to run."""

RENEW_SHARE: Final = 0.25
WARN_EVERY_S: Final = 86_400.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lives:
    """How long what the controller signs counts, in seconds."""

    timestamp_s: float
    desired_s: float


class FleetMetadata:
    """The trusted metadata of the fleet; it also says whom devices believe.

    Args:
        store: Where it is.
        signers: Of the snapshot and of the timestamp.
        publisher: The way to the devices.
        database: Knows the devices.
        clock: Wall time and durations.
        lives: How long what the controller signs counts.

    Raises:
        MetadataError: What is stored cannot be believed.
        StorageError: It cannot be read.
    """

    def __init__(
        self,
        store: MetadataStore,
        signers: tuple[OnlineSigner, OnlineSigner],
        publisher: Publisher,
        database: Database,
        clock: Clock,
        *,
        lives: Lives,
    ) -> None:
        self._store = store
        self._signers = signers
        self._publisher = publisher
        self._database = database
        self._clock = clock
        self._lives = lives
        self._lock = threading.RLock()
        self._behind = Faults()
        self._warned_s = float("-inf")
        self._untold: set[str] = set()
        """Devices to which the newest metadata could not be sent."""

        self._stamp = store.stamp()
        self._authored = store.authored()
        self._online = store.online()

    @property
    def listed(self) -> ListedTrust:
        """What it vouches for now."""
        return ListedTrust(self._authored)

    @property
    def director(self) -> Role:
        """The keys that may sign desired states, now."""
        return self.listed.director

    @property
    def fleet_names(self) -> tuple[str, ...]:
        """The name of the fleet."""
        return self.listed.fleet_names

    @property
    def timestamp(self) -> int:
        """The version of the newest timestamp; 0 if none could be signed."""
        return self._online.timestamp.signed.version if self._online is not None else 0

    @property
    def desired_s(self) -> float:
        """How long a desired state counts."""
        return self._lives.desired_s

    def lists(self, name: str, version: str, sha256: str) -> bool:
        """Tell whether the list that a release belongs into has it; see `ListedTrust.lists`."""
        return self.listed.lists(name, version, sha256)

    def unseal(self, data: bytes, *, role: RoleName, payload_type: str) -> bytes:
        """Verify an envelope as a device does: a package by its list, the rest by the director.

        Args:
            data: The envelope.
            role: What vouches for it.
            payload_type: The only type that is accepted.

        Returns:
            The payload.

        Raises:
            WireFormatError: Not an envelope.
            SignatureError: Nothing vouches for it.
        """
        return self.listed.unseal(data, role=role, payload_type=payload_type)

    def submit(self, files: Iterable[MetadataFile]) -> MetadataState:
        """Take what people have signed, and tell the devices.

        Args:
            files: Roots, targets and lists; those that hold already change nothing.

        Returns:
            What holds now.

        Raises:
            MetadataError: It cannot be believed.
            StorageError: It cannot be saved.
        """
        with self._lock, self._store.alone():
            self.follow()
            before = self._authored
            if self._online is not None:
                before = with_former(before, self._online.snapshot)
            after = changed(before, files)
            check(after)
            check_keys(before, after)
            check_ends(before, after, self._clock.now_s())
            if after.files() != self._authored.files():
                self._store.keep_authored(after)
                self._authored, self._stamp = after, self._store.stamp()
                # Keys of the controller that were changed come with its next start.
                with contextlib.suppress(MetadataError):
                    self._sign()
        self.tell_all()
        return self.state()

    def follow(self) -> None:
        """Read what another controller has written.

        Raises:
            MetadataError: It cannot be believed.
            StorageError: It cannot be read.
        """
        with self._lock:
            stamp = self._store.stamp()
            if stamp != self._stamp:
                self._authored, self._online = self._store.authored(), self._store.online()
                self._stamp = stamp

    def renew(self) -> None:
        """Sign a new timestamp if the present one will end soon, and tell the devices.

        Raises:
            MetadataError: The controller's keys may not sign it.
            StorageError: It cannot be saved.
            DatabaseError: The database does not answer.
        """
        self._warn()
        now_s = self._clock.now_s()
        with self._lock, self._store.alone():
            self.follow()
            online = self._online
            # A life that was set shorter since counts, too.
            longest_s = self._lives.timestamp_s + 1.0
            if (
                online is not None
                and self._due_s < online.expires_at_s - now_s <= longest_s
                and _fits(online, self._authored)
            ):
                is_told = not self._untold
            else:
                self._sign()
                is_told = False
        if not is_told:
            self.tell_all()

    @property
    def _due_s(self) -> float:
        return self._lives.timestamp_s * RENEW_SHARE

    def tell_all(self) -> None:
        """Send what all devices need to those that are online: lists come when they are needed.

        Raises:
            DatabaseError: The database does not answer.
        """
        online = self._online
        if online is None:
            return
        with self._database.reading() as transaction:
            names = devices.online(transaction)
        authored = self._authored
        tops = tuple(
            file
            for file in authored.files()
            if parse_file_name(file.name)
            in {(ROOT, authored.root.signed.version), (TARGETS, authored.targets.signed.version)}
        )
        files = (*tops, *online.content)
        self._untold = {device for device in names if not self._send(device, files)}

    def greet(self, device: str, versions: MetadataVersions, models: Iterable[str]) -> None:
        """Send a device what it lacks.

        Args:
            device: The device.
            versions: What it has.
            models: The models that it is to run.
        """
        self._note_behind(device, versions)
        self._send(device, self.lacking(versions, {*models, *versions.models[:MAX_MODELS]}))

    def lacking(
        self, versions: MetadataVersions, models: Iterable[str]
    ) -> tuple[MetadataFile, ...]:
        """Return the files that somebody lacks.

        Args:
            versions: What he has.
            models: The models whose lists he needs.
        """
        authored, online = self._authored, self._online
        if versions.lacks_files is True:
            versions = MetadataVersions(root=0)
        roles = {authored.role_of(target_path(model, "0")) for model in models}
        wanted = {ROOT, *(role for role in roles if role is not None)}
        known = {ROOT: versions.root, TARGETS: versions.targets, **versions.roles}
        wanted.add(TARGETS)
        found = []
        for file in authored.files():
            version, _, role = file.name.partition(".")
            if role in wanted and int(version) > known.get(role, 0):
                found.append(file)
        if online is not None:
            signed = ((SNAPSHOT, versions.snapshot), (TIMESTAMP, versions.timestamp))
            for (role, has), file in zip(signed, online.content, strict=True):
                newest = online.snapshot if role == SNAPSHOT else online.timestamp
                if newest.signed.version > has:
                    found.append(file)
        return tuple(found)

    def for_enrolment(self) -> tuple[MetadataFile, ...] | None:
        """Return what a new device needs to know the director; None if no message holds it."""
        files = self.lacking(MetadataVersions(root=1), ())
        return files if len(split(files)) == 1 else None

    def everything(self) -> tuple[MetadataFile, ...]:
        """Return all files: for a device without a network, and for those who sign."""
        online = self._online
        return (*self._authored.files(), *(online.content if online is not None else ()))

    def state(self) -> MetadataState:
        """Return what the metadata says, for people.

        Raises:
            DatabaseError: The database does not answer.
        """
        authored, online = self._authored, self._online
        ends = {
            role: authored.document(role).signed.expires.timestamp()
            for role in (ROOT, TARGETS, *authored.lists)
        }
        versions = {role: int(authored.document(role).signed.version) for role in ends}
        if online is not None:
            for role, document in ((SNAPSHOT, online.snapshot), (TIMESTAMP, online.timestamp)):
                ends[role] = document.signed.expires.timestamp()
                versions[role] = int(document.signed.version)
        faults = [signer.fault(authored) for signer in self._signers]
        with self._database.reading() as transaction:
            counts = devices.count_trust_files(transaction)
        return MetadataState(
            fleet=authored.fleet,
            fault="; ".join(filter(None, faults)),
            trust_file_devices=counts.get(True, 0),
            unknown_devices=counts.get(None, 0),
            roles=[
                RoleState(
                    role=role,
                    version=versions.get(role),
                    expires_at_s=ends.get(role),
                    threshold=authored.threshold(role),
                    keys=sorted(authored.keys(role)),
                    releases=len(authored.lists[role].signed.targets)
                    if role in authored.lists
                    else None,
                )
                for role in authored.roles()
            ],
        )

    def _sign(self) -> None:
        self._online = sign_online(
            self._authored,
            self._online,
            self._signers,
            now_s=self._clock.now_s(),
            life_s=self._lives.timestamp_s,
        )
        self._store.keep_online(self._online)
        self._stamp = self._store.stamp()

    def _send(self, device: str, files: tuple[MetadataFile, ...]) -> bool:
        """Hand files to the broker; return False if some were dropped."""
        topic = topics.down(device, "metadata")
        sent = [self._publisher.publish(topic, to_json(each)) for each in split(files)]
        return all(sent)

    def _note_behind(self, device: str, versions: MetadataVersions) -> None:
        meta = self._online.snapshot.signed.meta if self._online is not None else ()
        former = {name.removesuffix(".json") for name in meta}
        for each in behind(self._authored, former, versions, self._clock.now_s()):
            if self._behind.is_first(each.role, self._clock.monotonic_s()):
                _log.error("device %s: %s", device, each.text)

    def _warn(self) -> None:
        now_s = self._clock.now_s()
        if self._clock.monotonic_s() - self._warned_s < WARN_EVERY_S:
            return
        self._warned_s = self._clock.monotonic_s()
        for role in (ROOT, TARGETS, *self._authored.lists):
            rest_s = self._authored.document(role).signed.expires.timestamp() - now_s
            if rest_s < WARN_S:
                _log.warning(
                    "the metadata of %s %s; then no device takes anything new. Sign it again: "
                    "fleet key sign %s --key KEY",
                    role,
                    f"expires in {rest_s / 86_400:.0f} days" if rest_s > 0 else "has expired",
                    role,
                )


def _fits(online: Online, authored: Authored) -> bool:
    """Tell whether a snapshot is that of the lists, and its signatures are of today's keys."""
    listed = {name: meta.version for name, meta in online.snapshot.signed.meta.items()}
    wanted = {f"{TARGETS}.json": authored.targets.signed.version} | {
        f"{name}.json": document.signed.version for name, document in authored.lists.items()
    }
    root = authored.root.signed
    signed = all(
        root.get_verification_result(role, document.signed_bytes, document.signatures).verified
        for role, document in ((SNAPSHOT, online.snapshot), (TIMESTAMP, online.timestamp))
    )
    return wanted.items() <= listed.items() and signed
