"""Asks for a whole fleet which devices can take a release, before anything is sent.

Rules:
- The manifests that count are the signed ones in the blob store: each release is read once, no
  matter how many devices there are.
- Devices of one kind that run the same are judged once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from controller.domain.device_kinds import profile_of
from controller.domain.preflight import (
    RUNS,
    UNKNOWN,
    Answer,
    OfferedRelease,
    Verdict,
    beside_others,
    in_windows,
    verdict,
)
from controller.domain.states import DeviceState
from controller.rollout_plan_schemas import PreflightReport, RefusingDevices
from controller.services.blobs import BlobStore
from controller.store import device_facts, releases
from controller.store.database import Database, Transaction
from controller.store.device_facts import DeviceFacts, Kind
from controller.store.groups import read_selector
from controller.store.release_tables import ReleaseRow
from wire.clock import Clock
from wire.codec import MAX_JSON_BYTES, sha256_hex
from wire.errors import FleetError, IntegrityError
from wire.package.index import PAYLOAD_TYPE, index_from_bytes
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import Trust

MAX_KEPT: Final = 16
"""Releases that are kept in memory; a package never changes."""

MAX_REASONS: Final = 50
"""Reasons that an answer tells apart."""


class Preflight:
    """Judges devices before a rollout.

    Args:
        database: The control state.
        blobs: The content.
        trust: Who may sign packages.
        clock: Wall time.
    """

    def __init__(self, database: Database, blobs: BlobStore, trust: Trust, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._blobs = blobs
        self._trust = trust
        self._kept: dict[str, OfferedRelease] = {}

    def check(
        self, ref: str, selector: str, *, limit: int, is_windowed: bool = False
    ) -> PreflightReport:
        """Return what the devices that match a selector would say to a release.

        Args:
            ref: The release, by digest or `name:version`.
            selector: A label expression.
            limit: How many devices are named for each reason.
            is_windowed: Whether they may activate it only at some hours.

        Returns:
            The counts, and who would refuse it and why.

        Raises:
            SelectorError: The selector cannot be read.
            UnknownReleaseError: No such release.
            IllegalTransitionError: It was revoked.
            FleetError: Its files cannot be read.
        """
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=self._clock.now_s())
            row = releases.get_published(transaction, ref)
            facts = device_facts.of_selector(transaction, parsed)
            enrolled = [device for device in facts if device.state == DeviceState.ENROLLED]
            judged = self.answers(transaction, row, enrolled, is_windowed=is_windowed)
        shut_out = len(facts) - len(enrolled)
        return report(row, selector, enrolled, judged, limit=limit, shut_out=shut_out)

    def unfit(
        self,
        transaction: Transaction,
        release: ReleaseRow,
        devices: Sequence[str],
        *,
        is_windowed: bool = False,
    ) -> dict[str, str]:
        """Return which of some devices would refuse a release, and why.

        Args:
            transaction: The transaction.
            release: The release.
            devices: Their identifiers.
            is_windowed: Whether they may activate it only at some hours.

        Returns:
            Device to reason, in the order of the identifiers.

        Raises:
            FleetError: The files of the release cannot be read.
        """
        kinds = device_facts.kinds_of_devices(transaction, devices)
        said = self._said(transaction, release, kinds.values(), is_windowed=is_windowed)
        unfit = {kind: each.reason for kind, each in said.items() if each.answer is Answer.REFUSES}
        if not unfit:
            return {}
        return {
            device: unfit[kind]
            for device in devices
            if (kind := kinds.get(device)) is not None and kind in unfit
        }

    def answers(
        self,
        transaction: Transaction,
        release: ReleaseRow,
        facts: Sequence[DeviceFacts],
        *,
        is_windowed: bool = False,
    ) -> dict[str, Verdict]:
        """Return what some devices would say to a release that they get beside their other models.

        Args:
            transaction: The transaction.
            release: The release.
            facts: What is known of the devices.
            is_windowed: Whether they may activate it only at some hours.

        Returns:
            Device to what it would say.

        Raises:
            FleetError: The files of the release cannot be read.
        """
        kinds = [fact.kind for fact in facts]
        said = self._said(transaction, release, kinds, is_windowed=is_windowed)
        return {fact.id: said[fact.kind] for fact in facts}

    def judged(
        self, transaction: Transaction, release: ReleaseRow, facts: Sequence[DeviceFacts]
    ) -> dict[str, Verdict]:
        """Return what some devices would say to a release, whatever other models they have.

        Args:
            transaction: The transaction.
            release: The release.
            facts: What is known of the devices.

        Returns:
            Device to what it would say.

        Raises:
            FleetError: The files of the release cannot be read.
        """
        said = self._alone(transaction, release, (fact.kind for fact in facts))
        return {fact.id: said[fact.kind] for fact in facts}

    def _said(
        self,
        transaction: Transaction,
        release: ReleaseRow,
        kinds: Iterable[Kind],
        *,
        is_windowed: bool,
    ) -> dict[Kind, Verdict]:
        """Return what devices of some kinds would say that keep their other models."""
        said = self._alone(transaction, release, kinds)
        for kind, alone in said.items():
            found = beside_others(alone, release.name, kind.models, kind.desired_form)
            said[kind] = in_windows(found, kind.desired_form) if is_windowed else found
        return said

    def _alone(
        self, transaction: Transaction, release: ReleaseRow, kinds: Iterable[Kind]
    ) -> dict[Kind, Verdict]:
        """Return what devices of some kinds would say, whatever other models they have."""
        offered = self.offered(release)
        different = set(kinds)
        running = self._running(transaction, {each for kind in different for each in kind.releases})
        said: dict[Kind, Verdict] = {}
        for kind in different:
            if release.digest in kind.releases:
                said[kind] = RUNS
            elif kind.greeted:
                profile = profile_of(kind.profile, kind.runtimes)
                held = [running[digest] for digest in kind.releases if digest in running]
                said[kind] = verdict(offered, profile, held)
            else:
                said[kind] = UNKNOWN
        return said

    def _running(
        self, transaction: Transaction, digests: Iterable[str]
    ) -> Mapping[str, OfferedRelease]:
        """Return what is known of the releases that devices run."""
        found = {}
        for row in releases.of_digests(transaction, set(digests)):
            try:
                found[row.digest] = self.offered(row)
            except FleetError:  # its files are gone: nothing is concluded from it
                continue
        return found

    def find(self, ref: str) -> OfferedRelease:
        """Return a release as its signed index and manifest describe it, revoked or not.

        Args:
            ref: Digest or `name:version`.

        Raises:
            UnknownReleaseError: None of that name has been published.
            FleetError: Its files cannot be read.
        """
        with self._database.reading() as transaction:
            return self.offered(releases.get(transaction, ref))

    def offered(self, row: ReleaseRow) -> OfferedRelease:
        """Return a release as its signed index and manifest describe it.

        Raises:
            IntegrityError: They are not what was signed.
            FleetError: They cannot be read.
        """
        if (kept := self._kept.get(row.digest)) is not None:
            return kept
        envelope = self._blobs.read(row.envelope_sha256, length=MAX_ENVELOPE_BYTES + 1)
        payload = self._trust.unseal(envelope, role="release", payload_type=PAYLOAD_TYPE)
        index = index_from_bytes(payload)
        entry = index.file(MANIFEST_FILE)
        data = self._blobs.read(entry.sha256, length=MAX_JSON_BYTES + 1)
        if sha256_hex(data) != entry.sha256:
            raise IntegrityError(f"the stored manifest of {row.name}:{row.version} is damaged")
        offered = OfferedRelease(
            digest=row.digest,
            index=index,
            manifest=manifest_from_bytes(data),
            envelope_size_bytes=len(envelope),
        )
        if len(self._kept) >= MAX_KEPT:
            self._kept = {}
        self._kept[row.digest] = offered
        return offered


def refusing(judged: Mapping[str, Verdict]) -> dict[str, str]:
    """Return which devices would refuse a release, and why, in the order given."""
    return {device: said.reason for device, said in judged.items() if said.answer is Answer.REFUSES}


def report(
    row: ReleaseRow,
    selector: str,
    devices: Sequence[DeviceFacts],
    judged: Mapping[str, Verdict],
    *,
    limit: int,
    shut_out: int,
) -> PreflightReport:
    """Return what devices would say, as it is shown.

    Args:
        row: The release.
        selector: Which devices were asked.
        devices: Those of them that are enrolled.
        judged: What each of these would say.
        limit: How many are named for each reason.
        shut_out: How many others match the selector.
    """
    by_answer: defaultdict[Answer, list[DeviceFacts]] = defaultdict(list)
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for device in devices:
        said = judged[device.id]
        by_answer[said.answer].append(device)
        if said.answer is Answer.REFUSES:
            by_reason[said.reason].append(device.id)
    runs, unknown = by_answer[Answer.RUNS], by_answer[Answer.UNKNOWN]
    takes = [*runs, *by_answer[Answer.TAKES]]
    reasons = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    return PreflightReport(
        release=f"{row.name}:{row.version}",
        selector=selector,
        takes=len(takes),
        runs=len(runs),
        offline=sum(not device.online for device in takes),
        refuses=len(by_answer[Answer.REFUSES]),
        unknown=len(unknown),
        shut_out=shut_out,
        refusing=[
            RefusingDevices(reason=reason, count=len(names), devices=names[:limit])
            for reason, names in reasons[:MAX_REASONS]
        ],
        unknown_devices=[device.id for device in unknown[:limit]],
    )
