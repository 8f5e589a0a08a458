"""What can be done about a rollout now: what the controller would take, and what is waited for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from controller.domain.gates.states import GateState
from controller.domain.states import DeploymentState, RolloutState
from controller.domain.wording import counted
from controller.rollout_schemas import PossibleFollowUps, Rollout
from wire.clock import SystemClock
from wire.console.progress import about_text
from wire.console.text import plain_text
from wire.windows import opens_in_s, parse_window

WAITS: Final = ("awaiting_approval", "waiting_for_shadow", "waiting_for_gates")
"""States of stages that a person can end."""

UNREACHED: Final = (DeploymentState.CANCELLED, DeploymentState.FAILED)


def next_step(
    rollout: Rollout,
    rollback: Rollout | None = None,
    *,
    can: PossibleFollowUps | None = None,
    now_s: float | None = None,
) -> str:
    """Say which orders the controller would take now, as far as the rollout tells.

    Args:
        rollout: The rollout.
        rollback: The one that rolled it back, if one did.
        can: Which rollouts could follow it; None where the controller does not say.
        now_s: Wall time; None for that of the clock here.
    """
    its, undone = rollout.id, rollout.rollback_of
    match rollout.state:
        case _ if rollout.rolled_back_by is not None:
            text = _after_rollback(rollout, rollout.rolled_back_by, rollback, can)
        case RolloutState.RUNNING:
            text = _while_it_runs(rollout, now_s)
        case RolloutState.PAUSED:
            text = (
                f"`fleet rollout resume {its}` lets it go on, `fleet rollout abort {its}` ends it."
            )
        case RolloutState.HALTED:
            on = f"`fleet rollout resume {its}` goes on all the same{_without(rollout)}."
            if undone is not None:
                text = f"{on} `fleet rollout rollback {undone}` takes all that still have its "
                text += f"release. {_on_their_way(rollout)}"
            else:
                back = _back(rollout, can)
                text = f"{back}. {on}" if back else f"{on} {_no_way_back(can)}"
                if can is not None and can.retry.devices:
                    text = f"{text.strip()} `fleet rollout retry {its}` makes another one for "
                    text += "those without the release."
        case RolloutState.ABORTED if _is_left(rollout) if can is None else can.retry.devices:
            text = f"{_tried(rollout)} `fleet rollout retry {its}` tries it with the devices "
            text += f"without the release. {_on_their_way(rollout)}"
        case _:
            text = _at_the_end(rollout, can)
    return text.strip()


def waiting_for(rollout: Rollout) -> str:
    """Return in a word what a rollout waits for that may last, or that a person can end.

    Args:
        rollout: The rollout.

    Returns:
        The state of its stage, or `window`; empty while it goes on by itself.
    """
    if rollout.state is not RolloutState.RUNNING:
        return ""
    found = next((stage.state for stage in rollout.stages if stage.state in WAITS), "")
    return found or ("window" if _put_off(rollout) else "")


def _after_rollback(
    rollout: Rollout, by: str, rollback: Rollout | None, can: PossibleFollowUps | None
) -> str:
    """Say where a rollout is that was rolled back: in its rollback, unless devices were left."""
    text = f"Rollout {by} brings its devices back: `fleet rollout explain {by}` tells of it."
    again = f"`fleet rollout rollback {rollout.id}` takes"
    if can is None:
        if left := _unreached(rollback):
            return (
                f"{text} {counted(left)} of it did not go back: {again} those that still have "
                "the release."
            )
        return text
    if rollback is not None:
        text = f"{text} {_tried(rollback)}".rstrip()
    if left := can.rollback.devices:
        return f"{text} {counted(left)} of it did not go back: {again} what still has the release."
    return text


def _at_the_end(rollout: Rollout, can: PossibleFollowUps | None) -> str:
    """Say what can follow a rollout that has ended."""
    parts = [_tried(rollout)]
    has_failed = rollout.counts.get(DeploymentState.FAILED, 0) and not rollout.retried_by
    if has_failed if can is None else can.retry_failed.devices:
        parts.append(
            f"`fleet rollout retry {rollout.id} --failed` tries those that failed once more."
        )
    if rollout.rollback_of is not None:
        parts.append(_on_their_way(rollout))
    back = _back(rollout, can)
    parts.append(f"{back}, if need be." if back else _no_way_back(can))
    more = " any more" if rollout.counts.get(DeploymentState.SUCCEEDED, 0) else ""
    return " ".join(filter(None, parts)) or f"Nothing: no device has its release{more}."


def _no_way_back(can: PossibleFollowUps | None) -> str:
    """Say why devices with the release cannot go back, and what helps; empty if none has it."""
    if can is None or not can.with_release:
        return ""
    why = can.rollback.refused
    return plain_text(f"{why[:1].upper()}{why[1:]}; {can.rollback.remedy}".rstrip("; ")) + "."


def _back(rollout: Rollout, can: PossibleFollowUps | None) -> str:
    """Say what a rollback would do; empty if none would be taken."""
    has_it = rollout.counts.get(DeploymentState.SUCCEEDED, 0) > 0
    if not (has_it if can is None else can.rollback.devices):
        return ""
    undone = rollout.rollback_of
    what = "its devices back" if undone is None else f"the release of {undone} again"
    return f"`fleet rollout rollback {rollout.id}` brings {what}"


def _tried(rollout: Rollout) -> str:
    """Say which rollout tried devices again last; empty for none."""
    if not rollout.retried_by:
        return ""
    last, its = rollout.retried_by[-1], rollout.id
    return (
        f"Rollout {last} tried devices of {its} again: `fleet rollout explain {last}` tells of it."
    )


def _without(rollout: Rollout) -> str:
    """Say what a rollout that is resumed goes on without."""
    gates = [g for g in rollout.gates if g.looks and g.looks[-1].state is GateState.FAIL]
    parts = ["the devices that failed"] if rollout.counts.get(DeploymentState.FAILED, 0) else []
    if any(not gate.waived for gate in gates):
        parts.append("the gates that failed")
    return f", without {' and '.join(parts)}" if parts else ""


def _on_their_way(rollout: Rollout) -> str:
    """Say how many devices of a rollback that was stopped finish by themselves; empty for none."""
    counts = rollout.counts
    left = counts.get(DeploymentState.ASSIGNED, 0) + counts.get(DeploymentState.WAITING, 0)
    return f"{counted(left)} with the order to go back may still do so." if left else ""


def _while_it_runs(rollout: Rollout, now_s: float | None) -> str:
    """Say what a rollout that runs waits for, and what lets it go on without."""
    its = rollout.id
    waits = {
        "awaiting_approval": f"`fleet rollout approve {its}` lets the next stage begin",
        "waiting_for_shadow": "The stage begins by itself when its shadow agrees: `fleet shadow "
        f"show {rollout.model}` shows it. `fleet rollout approve {its}` begins it without",
        "waiting_for_gates": f"The stage ends by itself when its gates pass: `fleet rollout gates "
        f"{its}` shows what they say, and whether the rollout has enough devices to tell. `fleet "
        f"rollout approve {its}` lets it end all the same",
    }
    usual = f"It goes on by itself; `fleet rollout watch {its}` follows it."
    found = next((waits[s.state] for s in rollout.stages if s.state in waits), "")
    told = f"{found}{_who_may(rollout)}." if found else usual
    return " ".join(filter(None, (told, window_text(rollout, now_s), _put_off(rollout))))


def _who_may(rollout: Rollout) -> str:
    """Say that not everybody may approve: two API tokens let stages go on that need approval."""
    if not rollout.created_by or not any(stage.approval for stage in rollout.stages):
        return ""
    made_by = plain_text(rollout.created_by)
    return f"; that takes another API token than {made_by}, which made the rollout"


def window_text(rollout: Rollout, now_s: float | None = None) -> str:
    """Say when the window of a rollout opens; empty of one without windows.

    Args:
        rollout: The rollout.
        now_s: Wall time; None for that of the clock here.
    """
    known = [window for text in rollout.windows if (window := parse_window(text)) is not None]
    if not known:
        return ""
    hours = " or ".join(map(plain_text, rollout.windows))
    at = datetime.fromtimestamp(SystemClock().now_s() if now_s is None else now_s, UTC).astimezone()
    zone = plain_text(at.strftime("%Z"))
    text = f"Devices activate the release within {hours}, each by its own local time"
    in_s = opens_in_s(known, at)
    if not in_s:
        return f"{text}; by the clock here ({zone}) that is now."
    opens = (at.replace(tzinfo=None) + timedelta(seconds=in_s)).strftime("%Y-%m-%d %H:%M")
    return f"{text}; by the clock here ({zone}) that begins at {opens}, in {about_text(in_s)}."


def _put_off(rollout: Rollout) -> str:
    """Say which devices have their order and put it off, and what the first of them says."""
    found = [d for d in rollout.deployments if d.state is DeploymentState.ASSIGNED and d.detail]
    if not found:
        return ""
    waits = "1 device puts" if len(found) == 1 else f"{len(found)} devices put"
    such = "" if len(found) == 1 else "such as "
    return f"{waits} it off, {such}{plain_text(found[0].device)}: {plain_text(found[0].detail)}."


def _unreached(rollout: Rollout | None) -> int:
    """Return how many devices a rollout has ended without."""
    return sum(rollout.counts.get(state, 0) for state in UNREACHED) if rollout else 0


def _is_left(rollout: Rollout) -> bool:
    """Tell whether devices could be tried again; what a gate or a shadow has stopped is not."""
    passed = [g for g in rollout.gates if g.looks and g.looks[-1].state is GateState.PASS]
    left = _unreached(rollout) - rollout.left_out
    shadows = [stage.shadow for stage in rollout.stages if stage.shadow is not None]
    held = [each for each in shadows if each.state is not GateState.PASS and not each.waived]
    return left > 0 and not held and all(g.waived or g in passed for g in rollout.gates)
