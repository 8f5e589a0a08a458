"""What devices capture for the operator: what is asked of them, and what they send.

Rules:
- A capture only saves what is wanted; the ticks of `controller.services.policies` bring it to the
  devices, in their signed desired states.
- The controller has the public half of the operator's key alone: it cannot read a sample, only keep
  it or not.
- A part of a sample is acknowledged when it is stored. One that is not wanted is refused with the
  reason, and the device removes its sample.
"""

from __future__ import annotations

import base64
import logging
import secrets
from typing import Final

import msgspec

from controller.capture_schemas import Capture, CaptureRequest, KeptSample
from controller.capture_settings import CaptureConfig
from controller.domain.capture_choice import check_rule
from controller.domain.device_groups import check_steady
from controller.domain.selectors import parse_selector
from controller.errors import UnknownCaptureError
from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.store import captures, device_status, groups, models, policies, samples
from controller.store.capture_tables import CaptureRow, SampleRow
from controller.store.database import Database
from controller.store.policies import Reach
from controller.store.samples import Kept
from wire import topics
from wire.capture import CaptureRule, SampleHead, read_head
from wire.clock import Clock
from wire.codec import convert, to_builtins, to_json
from wire.errors import WireFormatError
from wire.samples import SampleAck, SamplePiece

DAY_S: Final = 86_400.0
PARTIAL_S: Final = 7 * DAY_S
"""How long a sample may lack a part: the device sends it again as soon as it is connected."""

PRUNE_EVERY_S: Final = 3600.0
ENDED: Final = "the capture has ended"

_log = logging.getLogger(__name__)


class Captures:
    """What is captured, and what came of it.

    Args:
        database: The control state.
        publisher: Sends the acknowledgements.
        bounds: How much is kept.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, publisher: Publisher, bounds: CaptureConfig, clock: Clock
    ) -> None:
        self._database = database
        self._publisher = publisher
        self._bounds = bounds
        self._clock = clock
        self._pruned_at_s: float | None = None

    def all(self) -> list[Capture]:
        """Return what is captured of each model, and of which there are samples, by model.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = {row.model: row for row in captures.all_rows(transaction)}
            reach = captures.reach(transaction)
            kept = samples.kept(transaction)
        return [
            _to_schema(model, rows.get(model), reach.get(model, Reach()), kept.get(model, Kept()))
            for model in sorted({*rows, *kept})
        ]

    def start(self, model: str, request: CaptureRequest) -> Capture:
        """Ask devices for samples of a model, in place of what was asked before.

        Args:
            model: The model.
            request: Which requests, of which devices, to whose key.

        Returns:
            What is asked for now.

        Raises:
            InvalidRequestError: A value cannot be.
            SelectorError: The selector cannot be read.
            UnknownModelError: There is no release of that model.
            ConflictError: There are too many captures.
        """
        selector = parse_selector(request.selector)
        rule = CaptureRule(
            id=secrets.token_hex(16),
            public_key=request.public_key,
            share=request.share,
            margin=request.margin,
            bytes_per_day=request.bytes_per_day,
        )
        check_rule(rule)
        row = CaptureRow(
            model=model,
            selector=request.selector,
            rule=to_builtins(rule),
            started_at_s=self._clock.now_s(),
        )
        with self._database.transaction() as transaction:
            models.check_released(transaction, model)
            policies.lock(transaction)
            check_steady(selector, groups.texts_for(transaction, [request.selector]), "a capture")
            captures.put(transaction, row)
        _log.info("requests for model %s are captured: %r", model, request.selector)
        return self._of(model)

    def stop(self, model: str) -> Capture:
        """Ask for no more samples of a model; those that are kept stay.

        Args:
            model: The model.

        Returns:
            What is left.

        Raises:
            UnknownCaptureError: Nothing is captured of it.
        """
        with self._database.transaction() as transaction:
            captures.get(transaction, model)
            captures.remove(transaction, model)
        _log.info("requests for model %s are captured no more", model)
        return self._of(model)

    def samples(self, model: str, after: tuple[str, str], limit: int) -> list[KeptSample]:
        """Return the samples of a model without what is sealed, in the order of their devices.

        Args:
            model: The model.
            after: Device and name of the last one of the page before.
            limit: How many at most.

        Raises:
            UnknownModelError: Nobody has heard of the model, and no sample is of it.
        """
        with self._database.reading() as transaction:
            found = [_shown(row) for row in samples.page(transaction, model, after, limit)]
            if not found and not after[0]:
                models.check_known(transaction, model)
        return found

    def sample(self, model: str, device: str, name: str) -> KeptSample:
        """Return a sample with what is sealed.

        Args:
            model: The model.
            device: The device that captured it.
            name: Its name.

        Returns:
            The sample.

        Raises:
            UnknownCaptureError: There is none, or not all of it has come.
        """
        with self._database.reading() as transaction:
            row = transaction.get(SampleRow, (device, name))
            if row is None or row.lacks or row.model != model:
                raise UnknownCaptureError(
                    f"there is no whole sample {name[:64]!r} of device {device[:64]!r}",
                    remedy="it may have been deleted meanwhile; list them again",
                )
            sealed = samples.sealed(transaction, device, name)
            return _shown(row, sealed)

    def take(self, device: str, payload: bytes) -> None:
        """Keep a part of a sample, and tell the device.

        Args:
            device: Who sent it.
            payload: As it came.

        Raises:
            WireFormatError: It is malformed, so that nobody can be told which part it is.
            DatabaseError: The database failed; the device sends it again.
        """
        piece = own_message(payload, SamplePiece, device, packed=True)
        why = self._store(piece)
        if why is None:
            return
        ack = SampleAck(sample=piece.sample, piece=piece.piece, refused=why or msgspec.UNSET)
        self._publisher.publish(topics.down(device, "sample_ack"), to_json(ack))

    def prune(self) -> None:
        """Delete old samples, at most once an hour.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        if self._pruned_at_s is not None and now_s - self._pruned_at_s < PRUNE_EVERY_S:
            return
        wall_s = self._clock.now_s()
        before_s = wall_s - self._bounds.keep_days * DAY_S
        while True:
            with self._database.transaction() as transaction:
                gone = samples.prune(
                    transaction, before_s=before_s, partial_before_s=wall_s - PARTIAL_S
                )
            if gone < samples.DELETED_AT_ONCE:
                break
        self._pruned_at_s = now_s

    def _store(self, piece: SamplePiece) -> str | None:
        """Return why a part is not wanted; empty if it is kept, None if nobody is answered."""
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            if device_status.find(transaction, piece.device) is None:
                return None
            try:
                head = _checked(piece)
            except WireFormatError as exc:
                return exc.message
            row = transaction.get(CaptureRow, head.model)
            rule = None if row is None else convert(row.rule, CaptureRule)
            if rule is None or rule.id != head.capture:
                return ENDED
            return samples.store(transaction, piece, head, rule, self._bounds, now_s=now_s)

    def _of(self, model: str) -> Capture:
        found = [each for each in self.all() if each.model == model]
        return found[0] if found else Capture(model=model, is_on=False)


def _checked(piece: SamplePiece) -> SampleHead:
    """Return the head of a sample.

    Raises:
        WireFormatError: A size cannot be, or the head is of another sample.
    """
    if faults := piece.faults():
        raise WireFormatError(faults[0])
    head = read_head(piece.head)
    if (head.device, head.sample) != (piece.device, piece.sample):
        raise WireFormatError("the head is of another sample")
    return head


def _shown(row: SampleRow, sealed: bytes | None = None) -> KeptSample:
    return KeptSample(
        device=row.device,
        sample=row.sample,
        head=base64.b64encode(row.head).decode(),
        size_bytes=row.size_bytes,
        stored_at_s=row.stored_at_s,
        sealed=None if sealed is None else base64.b64encode(sealed).decode(),
    )


def _to_schema(model: str, row: CaptureRow | None, reach: Reach, kept: Kept) -> Capture:
    shown = Capture(
        model=model,
        is_on=row is not None,
        devices=reach.devices,
        accepted=reach.accepted,
        samples=kept.samples,
        sample_bytes=kept.size_bytes,
        partial=kept.partial,
    )
    if row is not None:
        rule = convert(row.rule, CaptureRule)
        shown.selector, shown.started_at_s = row.selector, row.started_at_s
        shown.capture, shown.public_key = rule.id, rule.public_key
        shown.share, shown.margin = rule.share, rule.margin
        shown.bytes_per_day = rule.bytes_per_day
    return shown
