"""Shadows for which stages of rollouts wait: starts them, looks at them, and stops them.

Rules:
- The devices are those of the rollout that were not started yet: its selector says who runs the
  shadow. On the devices of the stage alone too few would tell; and a shadow harms nobody.
- A shadow that was started by hand counts, if it is the release of the rollout, and goes on
  afterwards. Of another release it is in the way: the stage waits until somebody stops it.
- One that the rollout started ends when no stage waits for it any more, however that came, or when
  too few devices are left to tell: that is asked at each tick, not done with the order. So it holds
  after a kill, too.
- What was compared before the stage came counts for nothing, as another release may have served.
- A look reads the telemetry outside of any transaction that writes, and is saved by itself. The
  rollout then decides by the last look. A fault of the telemetry holds the stage.
"""

from __future__ import annotations

import logging
import math
from typing import NamedTuple

from controller.domain.gates.looks import next_look_s
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.shadow_agreement import Agreement, Heard, judged
from controller.domain.stage_shadow import ShadowNeed
from controller.domain.states import RolloutState
from controller.domain.wording import counted
from controller.errors import ConflictError
from controller.services.shadow_checks import skipped, told
from controller.store import policies, releases, rollout_log, rollouts, shadows, stage_shadows
from controller.store.database import Database, Transaction
from controller.store.rollout_tables import RolloutRow
from controller.store.shadow_tables import ShadowRow
from controller.store.stage_shadow_tables import StageShadowRow
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.durations import MINUTE_S

BEGINS = "shadow"
"""The action in the log of a rollout when a shadow of a stage begins."""

PASSES = "shadow-pass"
"""That when it has passed."""

_log = logging.getLogger(__name__)


class _Due(NamedTuple):
    """A look that is due."""

    stage: int
    look: int
    need: ShadowNeed
    release: str
    since_s: float
    ran_s: float
    members: dict[str, bool]


class StageShadows:
    """Keeps the shadows of stages.

    Args:
        database: The control state.
        telemetry: What devices have told.
        clock: Wall time.
    """

    def __init__(self, database: Database, telemetry: TelemetryStore, clock: Clock) -> None:
        self._database = database
        self._telemetry = telemetry
        self._clock = clock

    def stop_left(self) -> None:
        """Stop the shadows for which no stage waits any more.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            if not stage_shadows.left_behind(transaction, now_s=now_s):
                return
        with self._database.transaction() as transaction:
            policies.lock(transaction)
            for row in stage_shadows.left_behind(transaction, now_s=now_s):
                shadows.remove(transaction, row.model)
                _log.info("the shadow of rollout %s ends: no stage waits for it", row.rollout)

    def look(self, rollout: str) -> None:
        """Start the shadow for which a rollout waits, or look at it if it is time to.

        Args:
            rollout: Its identifier.

        Raises:
            FleetError: The database or the telemetry does not answer; nothing was saved.
        """
        due = self._due(rollout)
        if due is None:
            return
        now_s = self._clock.now_s()
        requests, agreements = (
            {device: count for device, count in each.items() if device in due.members}
            for each in told(self._telemetry, due.release, due.since_s)
        )
        heard = Heard(
            requests=requests,
            agreements=agreements,
            devices=sum(due.members.values()),
            ran_s=due.ran_s,
            skipped=skipped(self._telemetry, due.release, due.since_s, due.members),
        )
        self._save(rollout, due, judged(due.need, heard, due.look), now_s=now_s)

    def _due(self, rollout: str) -> _Due | None:
        """Return the look that is due; None if none is, or if the shadow has only just begun."""
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            waits = stage_shadows.waiting(transaction, row, now_s=now_s)
            if waits is None or row.state != RolloutState.RUNNING:
                return None
            shadow = shadows.find(transaction, row.model)
            so_far = waits.so_far
            if so_far is not None and so_far.state == GateState.FAIL:
                return None  # it halts the rollout, which has not yet been decided
            is_enough = waits.able >= LEAST_DEVICES
            if so_far is not None and so_far.began_at_s > now_s:
                so_far = None  # the clock was set back: nothing that devices tell would count
            if is_enough and so_far is not None and shadow is not None and _is_of(shadow, row):
                began_s, last_s = so_far.began_clock_s, so_far.looked_clock_s
                need_s = waits.need.for_s if last_s is not None else 0.0
                if row.ran_s < next_look_s(began_s, last_s, need_s):
                    return None
                release = releases.get(transaction, row.release)
                return _Due(
                    stage=row.stage,
                    look=so_far.looks + 1,
                    need=waits.need,
                    release=f"{release.name}:{release.version}",
                    since_s=_since_s(shadow, so_far, now_s=now_s),
                    ran_s=row.ran_s - began_s,
                    members=stage_shadows.members(transaction, rollout, waits.chosen, now_s=now_s),
                )
        self._begin(rollout, now_s=now_s)
        return None

    def _begin(self, rollout: str, *, now_s: float) -> None:
        """Start the shadow for which a rollout waits, or say why it cannot be started."""
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            policies.lock(transaction)
            waits = stage_shadows.waiting(transaction, row, now_s=now_s)
            if waits is None:
                return
            in_the_way = _in_the_way(transaction, row) or _too_few(transaction, row, waits.able)
            if in_the_way and waits.so_far is not None and waits.so_far.reason == in_the_way:
                return
            if waits.so_far is None or not in_the_way:
                stage_shadows.begin(transaction, row, now_s=now_s)
            try:
                if not in_the_way:
                    self._start(transaction, row, waits.need, now_s=now_s)
            except ConflictError as exc:
                in_the_way = exc.message
            if in_the_way:
                found = Agreement(GateState.HOLD, in_the_way, is_judged=False)
                stage_shadows.save(transaction, row, found)

    def _start(
        self, transaction: Transaction, row: RolloutRow, need: ShadowNeed, *, now_s: float
    ) -> None:
        """Start the shadow of a rollout, unless one that was started by hand does the same.

        Raises:
            ConflictError: There are too many.
        """
        release = releases.get(transaction, row.release)
        name = f"{release.name}:{release.version}"
        what = f"{name}, which runs as a shadow already, has to agree in {need.text}"
        if shadows.since_s(transaction, row.model, row.release) is None:
            what = f"{name} runs as a shadow: it has to agree in {need.text}"
            rule = shadows.rule_of(release, need.share)
            shadows.put(
                transaction, release, row.selector, rule, started_at_s=now_s, rollout=row.id
            )
        rollout_log.log(transaction, row.id, action=BEGINS, reason=what, now_s=now_s)

    def _save(self, rollout: str, due: _Due, found: Agreement, *, now_s: float) -> None:
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            waits = stage_shadows.waiting(transaction, row, now_s=now_s)
            if waits is None or waits.so_far is None or row.stage != due.stage:
                return
            if waits.so_far.looks != due.look - 1:
                return
            stage_shadows.save(transaction, row, found)
            if found.state is GateState.PASS:
                rollout_log.log(
                    transaction, rollout, action=PASSES, reason=found.reason, now_s=now_s
                )
        _log.info("rollout %s: its shadow: %s, %s", rollout, found.state, found.reason)


def _is_of(shadow: ShadowRow, row: RolloutRow) -> bool:
    """Tell whether a shadow counts for a rollout: its own, or one of its release by hand."""
    return shadow.rollout in {None, row.id} and shadow.release == row.release


def _since_s(shadow: ShadowRow, so_far: StageShadowRow, *, now_s: float) -> float:
    """Return since when what devices tell counts; of one by hand, from the next whole minute on."""
    if so_far.began_at_s <= shadow.started_at_s <= now_s:
        return shadow.started_at_s
    return math.ceil(so_far.began_at_s / MINUTE_S) * MINUTE_S


def _too_few(transaction: Transaction, row: RolloutRow, able: int) -> str:
    """Say that too few devices are left to tell, and what to do; empty if there are enough."""
    if able >= LEAST_DEVICES:
        return ""
    shadow = shadows.find(transaction, row.model)
    if shadow is not None and shadow.rollout is None:
        return (
            f"the shadow that was started by hand runs on {counted(able)} of those that have not "
            f"started, and it takes {LEAST_DEVICES}: `fleet shadow stop {row.model}` lets the "
            "rollout start its own"
        )
    return (
        f"{counted(able)} that have not started can run it, and it takes {LEAST_DEVICES}: "
        f"`fleet rollout approve {row.id}` begins the stage without it, "
        f"`fleet rollout exclude {row.id}` takes devices out"
    )


def _in_the_way(transaction: Transaction, row: RolloutRow) -> str:
    """Say which other shadow of the model keeps that of a rollout from starting; empty for none."""
    shadow = shadows.find(transaction, row.model)
    if shadow is None or _is_of(shadow, row):
        return ""
    if shadow.rollout is not None:
        return f"model {row.model} has a shadow already, that of rollout {shadow.rollout}"
    release = releases.get(transaction, shadow.release)
    return (
        f"model {row.model} has another shadow, {release.name}:{release.version}: "
        f"`fleet shadow stop {row.model}` lets this one begin"
    )
