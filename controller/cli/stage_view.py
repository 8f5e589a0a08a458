"""What stages have of their own, and how fast devices start, as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from controller.domain.stage_shadow import ShadowNeed
from controller.domain.start_rate import MAX_PER_MINUTE
from controller.domain.states import RolloutState
from controller.rollout_schemas import Rollout
from controller.stage_schemas import (
    PlannedStage,
    Rate,
    ShownStageShadow,
    StageProgress,
    StageShadow,
)
from wire.console.text import plain_text
from wire.durations import format_duration


def rules_text(stage: PlannedStage | StageProgress) -> str:
    """Return whom a stage chooses, how long it soaks, and whether it waits for approval."""
    return "; ".join(
        [
            *([plain_text(stage.selector)] if stage.selector else []),
            *([f"soaks {format_duration(stage.soak_s)}"] if stage.soak_s else []),
            *(["approval"] if stage.approval else []),
            *([f"first a shadow: {_need(stage.shadow)}"] if stage.shadow else []),
        ]
    )


def stage_text(stage: StageProgress, rollout: Rollout) -> str:
    """Return the state of a stage; where a rollout was stopped, its stage is no more at work."""
    is_stopped = rollout.state in {RolloutState.HALTED, RolloutState.ABORTED}
    if is_stopped and stage.state not in {"done", "waiting"}:
        return str(rollout.state)
    return stage.state.replace("_", " ")


def shadow_lines(stages: Sequence[StageProgress]) -> list[str]:
    """Return what is known of the shadows for which stages wait, a line for each."""
    return [
        f"shadow before stage {stage.number}: {_state(stage.shadow)}; "
        f"{plain_text(stage.shadow.reason)}"
        for stage in stages
        if stage.shadow is not None
    ]


def _need(shadow: StageShadow | ShownStageShadow) -> str:
    need = ShadowNeed(
        agreement_percent=shadow.agreement_percent,
        requests=shadow.requests,
        for_s=shadow.for_s,
    )
    return need.text


def _state(shadow: ShownStageShadow) -> str:
    return "begun without it, as approved by hand" if shadow.waived else shadow.state


def rate_text(rate: Rate | None, now: float | None = None) -> str:
    """Return how many devices start in a minute, and how that grows; empty for no rate.

    Args:
        rate: The rate.
        now: How many start now, where that may be told.
    """
    if rate is None:
        return ""
    text = f"at most {rate.per_minute:g} a minute"
    if rate.factor is not None:
        text += f", {rate.factor:g} times that after each {rate.after} that succeed"
        if rate.max_per_minute < MAX_PER_MINUTE:
            text += f", up to {max(rate.max_per_minute, rate.per_minute):g}"
    return f"{text}; now {now:g}" if now is not None and rate.factor is not None else text
