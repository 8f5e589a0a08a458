"""Measurements on devices of the fleet: asks, takes the answers, and gives figures by profile.

Rules:
- A request is saved before it is sent. It is sent once: a device that does not get it, or does not
  know it, answers nothing, and its part ends when its time is over.
- An answer is believed only of a device that was asked, and only if its figures are possible.
- The figures of a variant name the digest of its files, as the signed manifest has them. What a
  device says of variants that the manifest does not have for its profile counts for nothing.
- Figures of a device that is not enrolled any more, or was before, do not count.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping, Sequence

from controller.domain.field_figures import Answered, by_profile
from controller.domain.measuring import Asked, Measurable, MeasurementState, choose
from controller.domain.preflight import TAKES, UNKNOWN, Verdict
from controller.errors import ConflictError
from controller.measure_schemas import Askable, Measurement, MeasurementPart, MeasurementRequest
from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.services.preflight import Preflight
from controller.store import device_facts, measurements, releases
from controller.store.database import Database, Transaction
from controller.store.device_facts import DeviceFacts
from controller.store.groups import read_selector
from controller.store.measurements import Part
from controller.store.release_tables import ReleaseRow
from wire import topics
from wire.clock import Clock
from wire.codec import convert, to_builtins, to_json
from wire.errors import FleetError
from wire.installs import ReleaseRef
from wire.measuring import (
    MEASURE_PAYLOAD_TYPE,
    Measure,
    Measured,
    ProfileFigures,
    check_measured,
    files_digest,
    with_short_reasons,
)
from wire.package.manifest import Manifest
from wire.package.performance import FieldFigures
from wire.trust.envelope import SigningKey, seal

ID_BYTES = 5
MAX_ANSWERS = 10_000
"""Answers from which the figures by profile are chosen: the newest."""

UNSENT = "the broker did not take the request: is the controller connected with it?"

_log = logging.getLogger(__name__)


class Measurements:
    """Measurements on devices.

    Args:
        database: The control state.
        preflight: Knows which devices could take a release.
        publisher: The way to the devices.
        key: The director's private key.
        clock: Wall time.
    """

    def __init__(
        self,
        database: Database,
        preflight: Preflight,
        publisher: Publisher,
        key: SigningKey,
        clock: Clock,
    ) -> None:
        self._database = database
        self._preflight = preflight
        self._publisher = publisher
        self._key = key
        self._clock = clock

    def ask(self, request: MeasurementRequest) -> Measurement:
        """Ask devices to measure a release.

        Args:
            request: What, and on which devices.

        Returns:
            The request with the devices that are asked, and why the others are not.

        Raises:
            SelectorError: The selector cannot be read.
            UnknownReleaseError: No such release.
            IllegalTransitionError: It was revoked.
            ConflictError: No device can be asked.
            FleetError: The files of the release cannot be read.
        """
        identifier = f"m{secrets.token_hex(ID_BYTES)}"
        with self._database.transaction() as transaction:
            selector = read_selector(transaction, request.selector, now_s=self._clock.now_s())
            row = releases.get_published(transaction, request.release)
            facts = device_facts.of_selector(transaction, selector)
            verdicts = self._preflight.judged(transaction, row, facts)
            chosen = _chosen(transaction, facts, verdicts, request.most_devices)
            asked = [device for device in facts if device.id in chosen.devices]
            now_s = self._clock.now_s()
            measurements.add(
                transaction,
                identifier,
                row.digest,
                [(device.id, device.profile_name) for device in asked],
                now_s=now_s,
                limit_s=request.limit_s,
            )
        unsent = [
            device.id
            for device in asked
            if not self._send(identifier, row, device, now_s=now_s, limit_s=request.limit_s)
        ]
        self._mark_unsent(identifier, unsent)
        found = self.get(identifier)
        found.not_asked = chosen.reasons
        return found

    def askable(self, selector: str) -> Askable:
        """Return which devices could be asked now, by what does not depend on a release.

        Args:
            selector: A label expression.

        Returns:
            They, and why others could not.

        Raises:
            SelectorError: The selector cannot be read.
            ConflictError: No device could be asked.
        """
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=self._clock.now_s())
            facts = device_facts.of_selector(transaction, parsed)
            verdicts = {device.id: TAKES if device.kind.greeted else UNKNOWN for device in facts}
            chosen = _chosen(transaction, facts, verdicts, len(facts))
        return Askable(devices=list(chosen.devices), not_asked=chosen.reasons)

    def cancel(self, identifier: str) -> Measurement:
        """Wait no longer for the answers to a request. What comes late still counts.

        Raises:
            UnknownMeasurementError: There is none of that name.
        """
        with self._database.transaction() as transaction:
            measurements.cancel(transaction, identifier, now_s=self._clock.now_s())
            return _shown(measurements.parts(transaction, identifier))

    def get(self, identifier: str) -> Measurement:
        """Return a request and what came of it.

        Raises:
            UnknownMeasurementError: There is none of that name.
        """
        with self._database.reading() as transaction:
            return _shown(measurements.parts(transaction, identifier))

    def newest(self, *, limit: int) -> list[Measurement]:
        """Return requests, the newest first."""
        with self._database.reading() as transaction:
            found = measurements.newest(transaction, limit=limit)
            return [_shown(measurements.parts(transaction, each)) for each in found]

    def figures(self, profile: str) -> list[ProfileFigures]:
        """Return the figures that count for each profile and variant.

        Args:
            profile: Only of this kind of device; empty for all.

        Returns:
            The figures; those of a release whose files are gone are left out.
        """
        with self._database.reading() as transaction:
            parts = measurements.with_figures(transaction, profile, limit=MAX_ANSWERS)
        rows = {part.release.digest: part.release for part in parts}
        manifests = {digest: self._manifest(row) for digest, row in rows.items()}
        known = {
            (release, profile): _digests(manifest, profile)
            for release, profile in {(part.row.release, part.row.profile) for part in parts}
            if (manifest := manifests[release]) is not None
        }
        answers = [
            _answered(part, known.get((part.row.release, part.row.profile), {})) for part in parts
        ]
        found = [
            ProfileFigures(
                profile=each.profile,
                release=f"{rows[each.release].name}:{rows[each.release].version}",
                variant=each.variant,
                files_sha256=known[each.release, each.profile][each.variant],
                figures=FieldFigures(
                    performance=each.performance, devices=each.devices, at_s=each.at_s
                ),
            )
            for each in by_profile(answers)
        ]
        return sorted(found, key=lambda each: (each.profile, each.release, each.variant))

    def take(self, device: str, payload: bytes) -> bool:
        """Take the answer of a device.

        Args:
            device: Who sent it.
            payload: As it came.

        Returns:
            Whether it was waited for.

        Raises:
            WireFormatError: It is malformed, or its figures are not possible.
        """
        measured = with_short_reasons(own_message(payload, Measured, device))
        check_measured(measured)
        figures = to_builtins(measured) if measured.variants else None
        with self._database.transaction() as transaction:
            return measurements.end(
                transaction,
                measured.id,
                device,
                MeasurementState(measured.state),
                measured.reason,
                figures,
                now_s=self._clock.now_s(),
            )

    def expire(self) -> None:
        """End the requests whose time is over.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            is_any = measurements.is_any_over(transaction, now_s=now_s)
        if is_any:
            with self._database.transaction() as transaction:
                measurements.expire(transaction, now_s=now_s)

    def _send(
        self, identifier: str, row: ReleaseRow, device: DeviceFacts, *, now_s: float, limit_s: float
    ) -> bool:
        request = Measure(
            device=device.id,
            id=identifier,
            boot_id=device.boot_id,
            issued_at_s=now_s,
            limit_s=limit_s,
            release=ReleaseRef(
                name=row.name,
                version=row.version,
                digest=row.digest,
                envelope_sha256=row.envelope_sha256,
                envelope_size_bytes=row.envelope_size_bytes,
            ),
            has_sources=True,
        )
        signed = seal(to_json(request), payload_type=MEASURE_PAYLOAD_TYPE, keys=(self._key,))
        topic = topics.down(device.id, "measure")
        return self._publisher.publish(topic, signed, expiry_s=max(1, int(limit_s)))

    def _mark_unsent(self, identifier: str, devices: Sequence[str]) -> None:
        if not devices:
            return
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            for device in devices:
                measurements.end(
                    transaction,
                    identifier,
                    device,
                    MeasurementState.REFUSED,
                    UNSENT,
                    None,
                    now_s=now_s,
                )

    def _manifest(self, row: ReleaseRow) -> Manifest | None:
        """Return the signed manifest of a release; None if it cannot be read."""
        try:
            return self._preflight.offered(row).manifest
        except FleetError as exc:
            _log.warning("figures of %s:%s are left out: %s", row.name, row.version, exc.message)
            return None


def _chosen(
    transaction: Transaction,
    facts: Sequence[DeviceFacts],
    verdicts: Mapping[str, Verdict],
    most: int,
) -> Asked:
    """Choose who is asked.

    Raises:
        ConflictError: Nobody can be.
    """
    waiting = measurements.busy(transaction, [device.id for device in facts])
    chosen = choose(
        (
            Measurable(
                device=device.id,
                profile=device.profile_name,
                state=device.state,
                lent=device.lent,
                online=device.online,
                busy=waiting.get(device.id, ""),
                verdict=verdicts[device.id],
            )
            for device in facts
        ),
        most,
    )
    if not chosen.devices:
        why = chosen.why_none
        raise ConflictError(f"no device can be asked: {why.reason}", remedy=why.remedy)
    return chosen


def _digests(manifest: Manifest, profile: str) -> dict[str, str]:
    """Return the digests of the files of the variants that are for a profile."""
    own = [variant for variant in manifest.variants if profile in variant.info.profiles]
    digests = {variant.name: files_digest(variant.info) for variant in own or manifest.variants}
    return {name: digest for name, digest in digests.items() if digest}


def _answered(part: Part, known: Collection[str]) -> Answered:
    """Return an answer with the variants that are known."""
    told = convert(part.row.figures, Measured).variants
    return Answered(
        device=part.row.device,
        profile=part.row.profile,
        release=part.row.release,
        answered_at_s=part.row.answered_at_s or 0.0,
        whole=part.row.state == MeasurementState.MEASURED,
        variants=tuple(variant for variant in told if variant.name in known),
    )


def _shown(parts: Sequence[Part]) -> Measurement:
    first, release = parts[0]
    return Measurement(
        id=first.id,
        release=f"{release.name}:{release.version}",
        asked_at_s=first.asked_at_s,
        expires_at_s=first.expires_at_s,
        devices=[
            MeasurementPart(
                device=row.device,
                profile=row.profile,
                state=MeasurementState(row.state),
                reason=row.reason,
                answered_at_s=row.answered_at_s,
                figures=row.figures,
            )
            for row, _ in parts
        ],
    )
