"""Rollouts as they begin: what is saved of a new one, with its stages and its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from controller.domain.rollout_view import Limits, OnHalt, StageSpec
from controller.domain.stages import resolved
from controller.domain.start_rate import StartRate
from controller.domain.states import RolloutState
from controller.domain.wording import counted
from controller.errors import ConflictError
from controller.store import acting, gates, new_deployments, stages, start_rates
from controller.store.new_deployments import Intake
from controller.store.rollout_log import log, named
from controller.store.rollout_tables import RolloutRow
from controller.store.taking_in import LOST


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRollout:
    """A rollout as it begins."""

    id: str
    release: str
    """The digest."""

    model: str
    """The name of the release."""

    selector: str
    limits: Limits
    stages: tuple[StageSpec, ...]
    origin: str | None = None
    """The rollout whose devices it takes."""

    is_retry: bool = False
    """Whether it tries the release of its origin again, and does not roll it back."""

    created_at_s: float
    releases: Mapping[str, str] = field(default_factory=dict)
    """Device to the release that it is brought to, where that is another one."""

    gates: tuple[str, ...] = ()
    stage_gates: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By the number of the only stage in which they are asked."""

    spread: str = ""
    """The label over which the order of starting is spread."""

    rate: StartRate | None = None
    control_percent: float = 0.0
    """What part of each profile is held out, to compare the others with."""

    control: frozenset[str] = frozenset()
    """The devices that are held out."""

    profiles: Mapping[str, str] = field(default_factory=dict)
    """With whom gates compare each device, where there is a control group: those of a profile."""

    on_halt: OnHalt = "keep"
    is_way_back: bool = False
    """Whether it brings devices back to what they had, as fast as it can."""

    priority: int = 0
    windows: tuple[str, ...] = ()


def begin(session: Session, new: NewRollout, found: Intake) -> None:
    """Save a new rollout with its stages, and take its devices in, as many as now can be.

    What is left is saved, and the rollout begins when it is done.

    Args:
        session: The transaction.
        new: The rollout.
        found: Its devices.

    Raises:
        ConflictError: All of them are gone, or in another rollout, since it was decided.
    """
    limits, placed = new.limits, found.placed
    session.add(
        RolloutRow(
            id=new.id,
            release=new.release,
            model=new.model,
            origin=new.origin,
            is_retry=new.is_retry,
            selector=new.selector,
            spread=new.spread,
            state=RolloutState.RUNNING,
            reason="",
            max_in_flight=limits.max_in_flight,
            soak_s=limits.soak_s,
            device_deadline_s=limits.device_deadline_s,
            offline_limit_s=limits.offline_limit_s,
            max_failures=limits.max_failures,
            max_failure_percent=limits.max_failure_percent,
            min_finished=limits.min_finished,
            approval=limits.approval,
            max_refused=limits.max_refused,
            max_timed_out=limits.max_timed_out,
            worst_case=limits.worst_case,
            on_halt=new.on_halt,
            is_way_back=new.is_way_back,
            gate_ends_left=len(new.stages),
            control_percent=new.control_percent,
            priority=new.priority,
            windows=list(new.windows) or None,
            initial_devices=len(placed),
            stage=1,
            approved_stage=1,
            ran_s=0.0,
            created_at_s=new.created_at_s,
            created_by=acting.actor(),
        )
    )
    acting.about(new.id)
    session.flush()
    start_rates.add(session, new.id, new.rate)
    gates.add(session, new.id, new.gates, new.stage_gates)
    stages.add(session, new.id, resolved(new.stages, placed, new.profiles, new.control))
    lost = new_deployments.take_in_first(session, new.id, new.model, found, now_s=new.created_at_s)
    what = "made"
    if new.origin is not None:
        what = f"made to {'try again' if new.is_retry else 'roll back'} {new.origin}"
    steps = "1 stage" if len(new.stages) == 1 else f"{len(new.stages)} stages"
    reason = f"{what} for {counted(len(placed))} in {steps}"
    if new.control:
        reason += f"; {len(new.control)} of them keep the old release until the gates have passed"
    log(session, new.id, action="create", reason=reason, now_s=new.created_at_s)
    if len(lost) == len(placed):
        raise ConflictError(
            f"device {lost[0]} is gone or joined another rollout just now", remedy="try again"
        )
    if lost:
        why = named(lost, LOST)
        log(session, new.id, action="skip", reason=why, now_s=new.created_at_s)
