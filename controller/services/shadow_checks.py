"""What a new rollout asks of the shadow of its model.

Rules:
- It is asked when the rollout is created, and in a dry run, in the same words.
"""

from __future__ import annotations

from typing import Final

from controller.domain.shadow_agreement import why_not
from controller.errors import ConflictError
from controller.rollout_schemas import RolloutRequest
from controller.store import releases, shadows
from controller.store.database import Database
from telemetry.server.query import Query, run
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore

REQUESTS: Final = "shadow_requests_total"
AGREEMENTS: Final = "shadow_agreements_total"


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
    if since_s is None:
        raise ConflictError(
            f"{name} is not the shadow of model {model}, so nothing tells how it agrees",
            remedy=f"`fleet shadow start {name}` first, or leave --shadow-agreement out",
        )

    def by_device(metric: str) -> dict[str, float]:
        asked = Query(
            metric=metric,
            statistics=("total",),
            group_by=(DEVICE,),
            where=(("release", name),),
            since_s=since_s,
        )
        return {str(device): float(total or 0.0) for device, total in run(telemetry, asked).rows}

    if reason := why_not(by_device(REQUESTS), by_device(AGREEMENTS), least_percent):
        raise ConflictError(
            f"{name} as a shadow should agree in {least_percent:g} %: {reason}",
            remedy=f"`fleet shadow show {model}` shows what devices have told",
        )
