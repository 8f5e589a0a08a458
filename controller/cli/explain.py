"""`fleet rollout explain`, and the part of one device: a rollout told as a page of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Final

import typer

from controller.cli.arguments import JsonOption, selected
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.ending import outcome_line
from controller.cli.gates import drawn_gates, write_gates
from controller.cli.named_arguments import RolloutArgument
from controller.cli.next_steps import next_step
from controller.cli.output import write_json
from controller.cli.rollout_answers import possible
from controller.cli.stage_view import shadow_lines
from controller.cli.watch import counts_text, event_text
from controller.domain.states import DeploymentState
from controller.domain.wording import counted
from controller.rollout_schemas import DevicePart, Rollout, RolloutEvent
from wire.console.output import write, write_lines
from wire.console.text import local_time, plain_text

AT_WORK: Final = frozenset({"start", "return", "wait"})
"""What happens to devices again and again: of several in a row only the first and last are told."""

MAX_IN_A_ROW: Final = 3
"""A line that stands for a single other one saves nothing."""


def rollout_explain(
    context: typer.Context, rollout: RolloutArgument, as_json: JsonOption = False
) -> None:
    """Tell what a rollout did, who asked for it, and why it is where it is.

    `fleet why DEVICE --rollout ROLLOUT` tells the part of one device. With --json the parts of the
    page are lists of lines, each event has its time and actor, and gates are as `fleet rollout
    gates --json` has them.

    Examples:
        fleet rollout explain r-7f3a
        fleet rollout explain r-7f3a --json
    """
    with connect(context) as api:
        found = api.rollouts.get(rollout)
        tell_cut_off(api)
        back = api.rollouts.get(found.rolled_back_by, limit=1) if found.rolled_back_by else None
        can = possible(api, found)
    head, shadows, outcomes = _head(found), shadow_lines(found.stages), _outcomes(found)
    can_be_done = next_step(found, back, can=can)
    if as_json:
        write_json({
            "rollout": found.id, "state": found.state, "reason": found.reason, "about": head,
            "happened": [asdict(event) for event in found.events], "shadows": shadows,
            "gates": [asdict(gate) for gate in found.gates],
            "next_look_in_s": found.next_look_in_s, "devices": outcomes,
            "can_be_done": can_be_done,
        })  # fmt: skip
        return
    write_lines(head)
    _write_part("What happened", happened(found.events))
    if shadows:
        _write_part("What shadows show", shadows)
    if found.gates:
        write()
        write("What the gates say")
        write_gates(found.gates, found.next_look_in_s)
        write_lines(drawn_gates(found.gates))
    _write_part("What has become of the devices", outcomes)
    _write_part("What can be done", [can_be_done])


def part_lines(part: DevicePart) -> list[str]:
    """Return one device's part in a rollout as sentences."""
    its, device = part.deployment, plain_text(part.deployment.device)
    online = "online" if part.online else "offline"
    to_get = "was to get" if its.finished_at_s is not None else "is to get"
    if its.state is DeploymentState.SUCCEEDED:
        to_get = "got"
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
    hours = " or ".join(map(plain_text, rollout.windows))
    follow = [("rolled back by", rollout.rolled_back_by or "")]
    follow += [("tried again by", each) for each in rollout.retried_by]
    return [
        f"Rollout {rollout.id} {what}, in {stages}: to {targets}",
        *([f"devices activate it within {hours}, each by its own local time"] if hours else []),
        f"made at {local_time(rollout.created_at_s)}{by}",
        *(f"{what} {plain_text(other)}" for what, other in follow if other),
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
    if len(group) <= MAX_IN_A_ROW:
        return [event_text(event) for event in group]
    between = f"... and {len(group) - 2} more such lines ..."
    return [event_text(group[0]), between, event_text(group[-1])]


def _outcomes(rollout: Rollout) -> list[str]:
    return [counts_text(rollout), *map(outcome_line, rollout.outcomes)]
