"""What a new rollout asks of the shadow of its model, and whether a stage can wait for one.

Rules:
- It is asked when the rollout is created, and in a dry run, in the same words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Final

from controller.domain.device_groups import check_steady
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.rollout_view import StageSpec
from controller.domain.selectors import parse_selector
from controller.domain.shadow_agreement import why_not
from controller.domain.stage_progress import targets_of
from controller.domain.stages import selectors
from controller.domain.starting_order import StartingOrder
from controller.domain.wording import counted
from controller.errors import ConflictError, InvalidRequestError
from controller.rollout_schemas import RolloutRequest
from controller.store import groups, releases, shadows
from controller.store.database import Database, Transaction
from controller.store.device_facts import DeviceFacts
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore

REQUESTS: Final = "shadow_requests_total"
AGREEMENTS: Final = "shadow_agreements_total"
SKIPPED: Final = "shadow_skipped_total"


def check_selector(transaction: Transaction, request: RolloutRequest) -> None:
    """Refuse a rollout whose stages wait for a shadow, and whose selector can choose none.

    Raises:
        SelectorError: It asks for what changes while a device works.
    """
    if any(stage.shadow for stage in request.stages):
        texts = groups.texts_for(transaction, [request.selector])
        check_steady(parse_selector(request.selector), texts, "a shadow")


def check_devices(
    stages: Sequence[StageSpec],
    order: StartingOrder,
    model: str,
    digest: str,
    facts: Sequence[DeviceFacts],
) -> None:
    """Refuse a stage that would wait for its shadow for ever.

    Args:
        stages: The stages.
        order: Which of them choose which devices.
        model: The model.
        digest: The release.
        facts: The devices of the rollout.

    Raises:
        InvalidRequestError: Too few of them can run its shadow.
    """
    serving = [one for one in facts if model in one.kind.models and digest not in one.kind.releases]
    able = [one.id for one in serving if one.allows_shadows]
    reached = [0, *targets_of(stages, len(facts), len(facts))]
    for number, stage in enumerate(stages, start=1):
        left = len(facts) - reached[number - 1]
        chosen = len(selectors(stages[: number - 1]))
        able_left = sum(order.groups.get(device, order.last) >= chosen for device in able)
        if stage.shadow is None or min(able_left, left) >= LEAST_DEVICES:
            continue
        what = f"{counted(left)} would be left that earlier stages have not reached"
        remedy = "let an earlier stage wait for it"
        if able_left < LEAST_DEVICES <= left:
            what = f"earlier stages choose all but {able_left} of the {len(able)} that can run one"
        if len(able) < LEAST_DEVICES:
            off = len(serving) - len(able)
            what = (
                f"{counted(len(able))} of the rollout can run one beside another release of {model}"
            )
            what += f"; on {off} more it is off (`[shadow] allow`)" if off else ""
            remedy = "leave the shadow out, or choose more devices"
        raise InvalidRequestError(
            f"stage {number} would wait for its shadow for ever: {what}, and it takes "
            f"{LEAST_DEVICES}, as each device is one observation",
            remedy=remedy,
        )


def told(
    telemetry: TelemetryStore, release: str, since_s: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what devices have told of a shadow.

    Args:
        telemetry: The telemetry.
        release: The shadow, as `name:version`.
        since_s: When it began.

    Returns:
        Device to the requests that its shadow got, and to those of them that both answered alike.

    Raises:
        TelemetryStoreError: The database failed.
    """

    def by_device(metric: str) -> dict[str, float]:
        asked = Query(
            metric=metric,
            statistics=("total",),
            group_by=(DEVICE,),
            where=(("release", release),),
            since_s=since_s,
        )
        return {str(device): float(total or 0.0) for device, total in run(telemetry, asked).rows}

    return by_device(REQUESTS), by_device(AGREEMENTS)


def skipped(
    telemetry: TelemetryStore, release: str, since_s: float, devices: Container[str]
) -> dict[str, float]:
    """Return why devices compared requests with no shadow, and how many.

    Args:
        telemetry: The telemetry.
        release: The shadow, as `name:version`.
        since_s: When it began.
        devices: Which devices.

    Returns:
        Reason to requests.

    Raises:
        TelemetryStoreError: The database failed.
    """
    asked = Query(
        metric=SKIPPED,
        statistics=("total",),
        group_by=(DEVICE, "reason"),
        where=(("release", release),),
        since_s=since_s,
    )
    found: defaultdict[str, float] = defaultdict(float)
    for device, reason, total in run(telemetry, asked).rows:
        if device in devices:
            found[str(reason)] += float(total or 0.0)
    return dict(found)


def check_agreement(database: Database, telemetry: TelemetryStore, request: RolloutRequest) -> None:
    """Refuse a rollout whose release, as a shadow, answers otherwise than the one that serves.

    Args:
        database: The control state.
        telemetry: What devices have told.
        request: The rollout; without a limit nothing is asked.

    Raises:
        UnknownReleaseError: There is no such release.
        ConflictError: It is not the shadow of its model, or does not agree as often as asked.
        TelemetryStoreError: The database failed.
    """
    least_percent = request.shadow_agreement_percent
    if least_percent is None:
        return
    with database.reading() as transaction:
        release = releases.get(transaction, request.release)
        name, model = f"{release.name}:{release.version}", release.name
        since_s = shadows.since_s(transaction, model, release.digest)
        changed = shadows.changed_since(transaction, model, since_s or 0.0)
    if since_s is None:
        raise ConflictError(
            f"{name} is not the shadow of model {model}, so nothing tells how it agrees",
            remedy=f"`fleet shadow start {name}` first, or leave --shadow-agreement out",
        )

    told_of = told(telemetry, name, since_s)
    # What a device compared may have been with another release than that which serves now.
    requests, agreements = (
        {device: count for device, count in each.items() if device not in changed}
        for each in told_of
    )
    if reason := why_not(requests, agreements, least_percent):
        if others := len(changed & told_of[0].keys()):
            reason += (
                f"; {counted(others)} got another release since it began and do not count: stop "
                "the shadow and start it again"
            )
        raise ConflictError(
            f"{name} as a shadow should agree in {least_percent:g} %: {reason}",
            remedy=f"`fleet shadow show {model}` shows what devices have told",
        )
