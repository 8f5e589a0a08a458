"""Releases that run as shadows: what is asked of devices, and what they tell of it.

Rules:
- A shadow only saves what is wanted; the ticks of `controller.services.policies` bring it to the
  devices, in their signed desired states.
- A release that is revoked is no shadow any more (`controller.services.releases`).
- One for which a stage of a rollout waits belongs to it (`controller.services.stage_shadows`).
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from typing import Any, Final

from controller.domain.device_groups import check_steady
from controller.domain.selectors import parse_selector
from controller.domain.shadow_choice import check_shadow
from controller.errors import ConflictError, InvalidRequestError
from controller.services.device_queries import over_devices
from controller.services.devices import Devices
from controller.services.shadow_checks import SKIPPED
from controller.shadow_schemas import Shadow, ShadowFigures, ShadowReport, ShadowRequest
from controller.store import groups, policies, releases, shadows
from controller.store.database import Database, Transaction
from controller.store.policies import Reach
from controller.store.shadow_tables import ShadowRow
from telemetry.server import query as telemetry_query
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.codec import convert
from wire.shadow import ShadowRule

PROFILE: Final = "profile"
COUNTED: Final = {
    "shadow_requests_total": "requests",
    "shadow_agreements_total": "agreements",
    "shadow_failures_total": "failures",
}
MEASURED: Final = {
    "shadow_latency_ms": {"p50": "latency_p50_ms", "p95": "latency_p95_ms"},
    "shadow_live_latency_ms": {"p50": "live_latency_p50_ms", "p95": "live_latency_p95_ms"},
    "shadow_differences": {"p50": "difference_p50", "max": "difference_max"},
}
"""By metric and statistic: the fields of `ShadowFigures`."""

_log = logging.getLogger(__name__)


class Shadows:
    """The shadows of the fleet.

    Args:
        database: The control state.
        devices: Know the profiles.
        telemetry: What devices have told.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, devices: Devices, telemetry: TelemetryStore, clock: Clock
    ) -> None:
        self._database = database
        self._devices = devices
        self._telemetry = telemetry
        self._clock = clock

    def all(self) -> list[Shadow]:
        """Return the shadows by model.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            reach = shadows.reach(transaction)
            return [_to_schema(row, reach) for row in shadows.all_rows(transaction)]

    def start(self, model: str, request: ShadowRequest) -> Shadow:
        """Let devices run a release as the shadow of a model, in place of the one before.

        Args:
            model: The model.
            request: Which release, and on which devices.

        Returns:
            What is asked for now.

        Raises:
            InvalidRequestError: A value cannot be, or the release is of another model.
            SelectorError: The selector cannot be read.
            UnknownReleaseError: There is no such release.
            IllegalTransitionError: It was revoked.
            ConflictError: There are too many shadows, or a rollout has started one of the model.
        """
        selector = parse_selector(request.selector)
        with self._database.transaction() as transaction:
            release = releases.get_published(transaction, request.release)
            if release.name != model:
                raise InvalidRequestError(
                    f"release {release.name}:{release.version} is of another model than "
                    f"{model[:64]}",
                    remedy="name a release of this model",
                )
            rule = shadows.rule_of(release, request.share)
            check_shadow(rule)
            policies.lock(transaction)
            check_steady(selector, groups.texts_for(transaction, [request.selector]), "a shadow")
            _refuse_of_rollout(transaction, model)
            shadows.put(
                transaction, release, request.selector, rule, started_at_s=self._clock.now_s()
            )
            name = f"{model}:{release.version}"
            _log.info("release %s runs as a shadow: %r", name, request.selector)
        return self._of(model)

    def stop(self, model: str) -> Shadow:
        """End the shadow of a model.

        Args:
            model: The model.

        Returns:
            The shadow as it was.

        Raises:
            UnknownShadowError: There is none.
            ConflictError: It is that of a rollout.
        """
        with self._database.transaction() as transaction:
            _refuse_of_rollout(transaction, model)
            was = _to_schema(shadows.get(transaction, model), shadows.reach(transaction))
            shadows.remove(transaction, model)
        _log.info("model %s has no shadow any more", model)
        return was

    def report(self, model: str) -> ShadowReport:
        """Return what devices have told of a shadow since it began, by profile.

        Args:
            model: The model.

        Raises:
            UnknownShadowError: There is none.
            TelemetryStoreError: The database failed.
        """
        shadow = self._of(model)
        narrowed = over_devices(self._devices, "", (PROFILE,))

        def rows(metric: str, *statistics: str, by: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
            asked = telemetry_query.Query(
                metric=metric,
                statistics=statistics,
                group_by=(PROFILE, *by),
                where=(("release", shadow.release),),
                since_s=shadow.started_at_s,
            )
            return list(telemetry_query.run(self._telemetry, narrowed(asked)).rows)

        found: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(dict))
        devices: Counter[str] = Counter()
        for metric, name in COUNTED.items():
            for profile, total in rows(metric, "total"):
                found[profile][name] = round(total)
        for profile, reason, total in rows(SKIPPED, "total", by=("reason",)):
            found[profile]["skipped"][reason] = round(total)
        for profile, _device, _total in rows("shadow_requests_total", "total", by=("device",)):
            devices[profile] += 1
        for metric, fields in MEASURED.items():
            for profile, *values in rows(metric, *fields):
                found[profile].update(zip(fields.values(), values, strict=True))
        return ShadowReport(
            shadow=shadow,
            profiles=[
                ShadowFigures(profile=profile, devices=devices[profile], **fields)
                for profile, fields in sorted(found.items())
            ],
        )

    def _of(self, model: str) -> Shadow:
        with self._database.reading() as transaction:
            return _to_schema(shadows.get(transaction, model), shadows.reach(transaction))


def _refuse_of_rollout(transaction: Transaction, model: str) -> None:
    """Refuse to change a shadow for which a rollout waits.

    Raises:
        ConflictError: There is one.
    """
    row = shadows.find(transaction, model)
    if row is not None and row.rollout is not None:
        raise ConflictError(
            f"the shadow of model {model} is that of rollout {row.rollout}, which waits for it",
            remedy=f"`fleet rollout approve {row.rollout}` begins the stage without it, "
            f"`fleet rollout abort {row.rollout}` ends both",
        )


def _to_schema(row: ShadowRow, reach: dict[str, Reach]) -> Shadow:
    rule, so_far = convert(row.rule, ShadowRule), reach.get(row.model, Reach())
    return Shadow(
        model=row.model,
        release=f"{rule.release.name}:{rule.release.version}",
        digest=rule.release.digest,
        selector=row.selector,
        share=rule.share,
        started_at_s=row.started_at_s,
        rollout=row.rollout or "",
        devices=so_far.devices,
        accepted=so_far.accepted,
    )
