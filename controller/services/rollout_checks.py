"""What a new rollout is refused for, and what a request for one says.

Rules:
- A rollout and its dry run are refused for the same, in the same words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import pairwise
from typing import Final

from controller.domain.rollout_view import Limits, StageSpec
from controller.domain.stage_progress import stage_size
from controller.domain.wording import counted
from controller.errors import ConflictError, InvalidRequestError, UnfitError
from controller.rollout_schemas import RolloutRequest
from controller.services.gates import checked_gates
from controller.services.metadata import FleetMetadata
from controller.store import rollout_work, rollouts
from controller.store.database import Transaction
from controller.store.release_tables import ReleaseRow
from telemetry.server.store import TelemetryStore
from wire.windows import window_faults

_ID: Final = re.compile(r"r[0-9a-f]{10}")

IsListed = Callable[[str, str, str], bool]
"""Tells whether devices take a release, by its name, version and digest."""


def check_id(transaction: Transaction, rollout: str) -> None:
    """Refuse an identifier that a dry run did not give, or that is taken.

    Args:
        transaction: The transaction.
        rollout: The identifier.

    Raises:
        InvalidRequestError: It is none.
        ConflictError: There is a rollout of that name.
    """
    if _ID.fullmatch(rollout) is None:
        raise InvalidRequestError(
            f"{rollout[:64]!r} is no identifier of a rollout",
            remedy="give one that a dry run has shown: r and ten hexadecimal digits; or none",
        )
    if rollouts.is_there(transaction, rollout):
        raise ConflictError(
            f"there is a rollout {rollout} already",
            remedy=f"`fleet rollout show {rollout}` shows it; without --id a new one gets its own",
        )


def check_not_making(transaction: Transaction, model: str, *, but: str = "") -> None:
    """Refuse an order while another rollout of its model takes devices in.

    Raises:
        ConflictError: There is one.
    """
    refuse_being_made(rollout_work.making(transaction, model, but=but), model)


def refuse_being_made(making: Sequence[str], model: str) -> None:
    """Refuse an order while other rollouts of its model take devices in.

    Args:
        making: Such rollouts.
        model: The model.

    Raises:
        ConflictError: There is one.
    """
    for rollout in making:
        raise ConflictError(
            f"rollout {rollout} of model {model} is still being made",
            remedy=f"try again in some seconds; `fleet rollout show {rollout}` says how far it is",
        )


def check_settled(transaction: Transaction, rollout: str) -> None:
    """Refuse an order about devices of a rollout while an earlier one is still carried out.

    Raises:
        ConflictError: It is.
    """
    if rollout_work.is_left(transaction, rollout):
        raise ConflictError(
            f"an earlier order about rollout {rollout} is still being carried out",
            remedy="try again in some seconds",
        )


def lists_of(metadata: FleetMetadata | None) -> IsListed:
    """Return what tells which releases are on trusted lists; of a fleet without lists, all are."""
    return metadata.lists if metadata is not None else lambda *_: True


def check_listed(release: ReleaseRow, is_listed: IsListed) -> None:
    """Refuse a release that devices would not take.

    Args:
        release: The release.
        is_listed: Tells whether they would.

    Raises:
        ConflictError: It is on no list that they trust.
    """
    model, version = release.name, release.version
    if not is_listed(model, version, release.digest):
        raise ConflictError(
            f"no trusted list has {model}:{version}: devices would not take it",
            remedy="publish it again with a key that may list it, or roll out another",
        )


def gate_texts(telemetry: TelemetryStore, request: RolloutRequest) -> tuple[str, ...]:
    """Return the gates of a new rollout as they are shown.

    Args:
        telemetry: What devices measured.
        request: The rollout.

    Raises:
        InvalidRequestError: They cannot be read, or ask for what no metric has.
    """
    return tuple(gate.text for gate in checked_gates(telemetry, request.gates))


def no_device(selector: str) -> str:
    """Say that no device would take part."""
    if selector:
        return f"no enrolled device matches the selector {selector!r}"
    return "no device is enrolled"


def check_any(request: RolloutRequest, devices: Sized) -> None:
    """Refuse a rollout without devices.

    Raises:
        InvalidRequestError: There is none.
    """
    if not devices:
        raise InvalidRequestError(
            no_device(request.selector), remedy="list the devices, or enrol one"
        )


def check_unfit(request: RolloutRequest, unfit: Mapping[str, str], devices: int) -> None:
    """Refuse a rollout for its devices that cannot take the release.

    Raises:
        UnfitError: There are such devices, and the operator has not said what becomes of them; or
            they are to be left out, and there are no others.
    """
    if not unfit or request.unfit == "allow":
        return
    if request.unfit == "exclude" and len(unfit) < devices:
        return
    first, reason = next(iter(unfit.items()))
    check = f"`fleet rollout check {request.release}"
    check += f" --selector {shlex.quote(request.selector)}" if request.selector else ""
    check += " --windows`" if request.windows else "`"
    if len(unfit) == devices:
        which = f"{first} cannot take {request.release}"
        if devices > 1:
            which = f"none of {devices} devices can take {request.release}, such as {first}"
        raise UnfitError(
            f"{which}: {reason}",
            remedy=f"{check} names them; --allow-unfit tries them all the same",
        )
    raise UnfitError(
        f"{len(unfit)} of {counted(devices)} cannot take {request.release}, such as {first}: "
        f"{reason}",
        remedy=f"{check} names them; --exclude-unfit leaves them out, and --allow-unfit tries them "
        "all the same",
    )


def check_control(request: RolloutRequest) -> None:
    """Refuse windows that cannot be read, or never open, and limits that say nothing.

    Raises:
        InvalidRequestError: There is one, or there are too many windows.
    """
    if request.worst_case and request.max_failure_percent is None:
        raise InvalidRequestError(
            "worst_case says nothing without max_failure_percent",
            remedy="give that, too, or leave it out",
        )
    for fault in window_faults(request.windows):
        raise InvalidRequestError(
            fault,
            remedy="write two times that differ as HH:MM-HH:MM, after days if need be, as mon-fri",
        )


def check_growing(stages: Sequence[StageSpec], devices: int) -> None:
    """Refuse stages that do not grow.

    Args:
        stages: The stages.
        devices: How many devices take part.

    Raises:
        InvalidRequestError: One reaches fewer devices than the one before it.
    """
    for before, after in pairwise(stages):
        # Of percentages the greater may round to the same number of devices, not to a smaller one.
        falls = (before.percent or 0.0) > (after.percent or 100.0)
        if falls or stage_size(before, devices) > stage_size(after, devices):
            raise InvalidRequestError(
                f"a stage of {_words(after)} reaches fewer of {counted(devices)} than the one of "
                f"{_words(before)} before it",
                remedy="stages are cumulative: give each as a total",
            )


def _words(stage: StageSpec) -> str:
    return f"{stage.percent:g} %" if stage.percent is not None else counted(stage.count or 0)


def limits(request: RolloutRequest) -> Limits:
    """Return the limits of a request."""
    return Limits(
        max_in_flight=request.max_in_flight,
        soak_s=request.soak_s,
        device_deadline_s=request.device_deadline_s,
        offline_limit_s=request.offline_limit_s,
        max_failures=request.max_failures,
        max_failure_percent=request.max_failure_percent,
        min_finished=request.min_finished,
        approval=request.approval,
        max_refused=request.max_refused,
        max_timed_out=request.max_timed_out,
        worst_case=request.worst_case,
    )
