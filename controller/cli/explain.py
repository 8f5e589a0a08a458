"""`fleet rollout explain`, and the part of one device: a rollout told as a page of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import typer

from controller.cli.arguments import selected
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.gates import drawn_gates, write_gates
from controller.cli.named_arguments import RolloutArgument
from controller.cli.stage_view import shadow_lines
from controller.cli.watch import counts_text, event_text
from controller.domain.gates.states import GateState
from controller.domain.states import DeploymentState, RolloutState
from controller.domain.wording import counted
from controller.rollout_schemas import DevicePart, OutcomeGroup, Rollout, RolloutEvent
from wire.console.output import write, write_lines
from wire.console.text import local_time, plain_text

AT_WORK: Final = frozenset({"start", "return", "wait"})
"""What happens to devices again and again: of several in a row only the first and last are told."""

UNREACHED: Final = (DeploymentState.CANCELLED, DeploymentState.FAILED)


def rollout_explain(context: typer.Context, rollout: RolloutArgument) -> None:
    """Tell what a rollout did, who asked for it, and why it is where it is.

    `fleet why DEVICE --rollout ROLLOUT` tells the part of one device.

    Examples:
        fleet rollout explain r-7f3a
    """
    with connect(context) as api:
        found = api.rollouts.get(rollout)
        tell_cut_off(api)
        back = api.rollouts.get(found.rolled_back_by) if found.rolled_back_by else None
    write_lines(_head(found))
    _write_part("What happened", happened(found.events))
    if waits := shadow_lines(found.stages):
        _write_part("What shadows show", waits)
    if found.gates:
        write()
        write("What the gates say")
        write_gates(found.gates)
        write_lines(drawn_gates(found.gates))
    _write_part("What has become of the devices", _outcomes(found))
    _write_part("What can be done", [next_step(found, back)])


def part_lines(part: DevicePart) -> list[str]:
    """Return one device's part in a rollout as sentences."""
    its, device = part.deployment, plain_text(part.deployment.device)
    online = "online" if part.online else "offline"
    to_get = "was to get" if its.finished_at_s is not None else "is to get"
    lines = [f"{device} {to_get} {its.release} by rollout {part.rollout}; it is {online}"]
    if its.started_at_s is not None:
        before = part.previous or "nothing of the model"
        lines.append(
            f"it was started in stage {its.stage}, at {local_time(its.started_at_s)}; "
            f"it had {before} before"
        )
    lines += _state_lines(part)
    if its.release != part.desired:
        lines.append(f"it is to run {part.desired or 'nothing of the model'} now")
    return lines


def _state_lines(part: DevicePart) -> list[str]:
    its, detail = part.deployment, plain_text(part.deployment.detail)
    at = f" at {local_time(its.finished_at_s)}" if its.finished_at_s is not None else ""
    why = f"{its.error_code} {detail}".strip()
    match its.state:
        case DeploymentState.SUCCEEDED:
            return [f"it installed the release{at}"]
        case DeploymentState.FAILED:
            return [f"it failed{at}: {why}"]
        case DeploymentState.CANCELLED:
            return [f"its part was cancelled{at}: {why}"]
        case DeploymentState.ASSIGNED:
            phase = f", which is {plain_text(its.phase)}" if its.phase else ""
            return [f"it has its order{phase}{f': {detail}' if detail else ''}"]
        case _ if its.started_at_s is not None:
            return ["it has its order, and goes on when it is back"]
        case _:
            return [_waits(part)]


def _waits(part: DevicePart) -> str:
    if part.is_control:
        return "it is of the control group: it keeps what it has until the gates have passed"
    return f"it was not started; {counted(part.ahead)} of the rollout start before it"


def _head(rollout: Rollout) -> list[str]:
    what = f"brings {rollout.release} to {selected(rollout.selector)}"
    if rollout.rollback_of:
        what = f"brings the devices of {rollout.rollback_of} back"
    elif rollout.retry_of:
        what = f"tries {rollout.release} again with devices of {rollout.retry_of}"
    *first, last = [stage.target for stage in rollout.stages]
    targets = ", ".join([*map(str, first), counted(last)])
    stages = "1 stage" if len(rollout.stages) == 1 else f"{len(rollout.stages)} stages"
    by = f" by {plain_text(rollout.created_by)}" if rollout.created_by else ""
    hours = ", ".join(map(plain_text, rollout.windows))
    return [
        f"Rollout {rollout.id} {what}, in {stages}: to {targets}",
        *([f"devices activate it within {hours}, in their local time"] if hours else []),
        f"made at {local_time(rollout.created_at_s)}{by}",
        f"{rollout.state}: {plain_text(rollout.reason)}".rstrip(": "),
    ]


def _write_part(title: str, lines: Sequence[str]) -> None:
    write()
    write(title)
    write_lines([f"  {line}" for line in lines])


def happened(events: Sequence[RolloutEvent]) -> list[str]:
    """Return the decisions about a rollout as lines, those that repeat in short."""
    return [line for group in _grouped(events) for line in _told(group)]


def _grouped(events: Sequence[RolloutEvent]) -> Iterator[list[RolloutEvent]]:
    """Yield what happened one by one, but what happens to devices in a row together."""
    for at_work, group in groupby(events, key=lambda event: event.action in AT_WORK):
        if at_work:
            yield list(group)
        else:
            yield from ([event] for event in group)


def _told(group: Sequence[RolloutEvent]) -> list[str]:
    if len(group) <= 2:  # noqa: PLR2004 - the first and the last
        return [event_text(event) for event in group]
    more = len(group) - 2
    between = f"... and {more} more such line{'' if more == 1 else 's'} ..."
    return [event_text(group[0]), between, event_text(group[-1])]


def _outcomes(rollout: Rollout) -> list[str]:
    return [counts_text(rollout), *map(_outcome, rollout.outcomes)]


def _outcome(group: OutcomeGroup) -> str:
    names = ", ".join(map(plain_text, group.devices))
    such = "" if group.count == len(group.devices) else "such as "
    code = f" with {plain_text(group.error_code)}" if group.error_code else ""
    detail = f": {plain_text(group.detail)}" if group.detail else ""
    return f"{group.count} {group.state}{code} ({such}{names}){detail}"


def next_step(rollout: Rollout, rollback: Rollout | None = None) -> str:
    """Say which orders the controller would take now, as far as the rollout tells.

    Args:
        rollout: The rollout.
        rollback: The one that rolled it back, if one did.
    """
    its, by = rollout.id, rollout.rolled_back_by
    undone = rollout.rollback_of
    what = "its devices back" if undone is None else f"the release of {undone} again"
    back = f"`fleet rollout rollback {its}` brings {what}"
    has_it = rollout.counts.get(DeploymentState.SUCCEEDED, 0) > 0
    match rollout.state:
        case _ if by is not None:
            text = (
                f"Rollout {by} brings its devices back: `fleet rollout explain {by}` tells of it."
            )
            if left := _unreached(rollback):
                text += (
                    f" {counted(left)} of it did not go back: `fleet rollout rollback {its}` takes "
                    "those that still have the release."
                )
        case RolloutState.RUNNING:
            text = _while_it_runs(rollout)
        case RolloutState.PAUSED:
            text = (
                f"`fleet rollout resume {its}` lets it go on, `fleet rollout abort {its}` ends it."
            )
        case RolloutState.HALTED:
            on = f"`fleet rollout resume {its}` goes on all the same, without those that failed."
            if undone is not None:
                text = f"{on} `fleet rollout rollback {undone}` takes all that still have its "
                text += f"release. {_on_their_way(rollout)}"
            else:
                text = f"{back}. {on}" if has_it else on
        case RolloutState.ABORTED if _is_left(rollout):
            text = f"`fleet rollout retry {its}` tries it with the devices without the release."
            text += f" {_on_their_way(rollout)}"
        case _:
            text = f"{back}, if need be." if has_it else "Nothing: no device has its release."
            if rollout.counts.get(DeploymentState.FAILED, 0):
                again = f"`fleet rollout retry {its} --failed` tries those that failed once more."
                text = f"{again} {text}"
    return text.rstrip()


def _on_their_way(rollout: Rollout) -> str:
    """Say how many devices of a rollback that was stopped finish by themselves; empty for none."""
    counts = rollout.counts
    left = counts.get(DeploymentState.ASSIGNED, 0) + counts.get(DeploymentState.WAITING, 0)
    return f"{counted(left)} with the order to go back may still do so." if left else ""


def _while_it_runs(rollout: Rollout) -> str:
    """Say what a rollout that runs waits for, and what lets it go on without."""
    its = rollout.id
    waits = {
        "awaiting_approval": f"`fleet rollout approve {its}` lets the next stage begin.",
        "waiting_for_shadow": "The stage begins by itself when its shadow agrees: `fleet shadow "
        f"show {rollout.model}` shows it. `fleet rollout approve {its}` begins it without.",
        "waiting_for_gates": f"The stage ends by itself when its gates pass: `fleet rollout gates "
        f"{its}` shows what they say, and whether the rollout has enough devices to tell. `fleet "
        f"rollout approve {its}` lets it end all the same.",
    }
    usual = f"It goes on by itself; `fleet rollout watch {its}` follows it."
    return next((waits[s.state] for s in rollout.stages if s.state in waits), usual)


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
