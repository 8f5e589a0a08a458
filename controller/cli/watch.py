"""Follows a rollout until it ends: live on a terminal, one line per change elsewhere.

Rules:
- An answer holds only the newest entries of the log: what is new is found by those that both
  answers have.
- Watching survives a restart of the controller: it waits while the controller does not answer.
- On a terminal devices are shown as they work. Elsewhere the rollout alone is told: its decisions,
  the states of its stages and its own at once, and at most every `FIGURES_EVERY_S` how many devices
  are in which state, and how far their transfers are together.
- The last line says how many devices have the release, and what can be done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from controller.cli.ending import end_lines, exit_status
from controller.cli.next_steps import next_step, waiting_for
from controller.cli.repeating import answers
from controller.cli.stage_view import stage_text
from controller.cli.transfers import phase_text, sum_text
from controller.domain.roles import HOME
from controller.domain.states import DeploymentState
from controller.errors import UnfitError
from controller.rollout_schemas import Deployment, PossibleFollowUps, Rollout, RolloutEvent
from wire.clock import Clock, SystemClock
from wire.console.output import is_terminal, write, write_lines
from wire.console.text import local_time, plain_text

if TYPE_CHECKING:
    from rich.console import RenderableType

POLL_S = 0.5
FIGURES_EVERY_S = 10.0
FINAL_STATES = frozenset({"halted", "succeeded", "aborted"})
MAX_LIVE_DEVICES = 20
MAX_LIVE_EVENTS = 5
AT_WORK = frozenset({"start", "return"})
"""Decisions about single devices, which the figures tell in short."""

LEFT_OUT = "left out"
"""The state of a device that cannot take the release, for people; it counts as cancelled."""

Fetch = Callable[[], "Rollout"]
Possible = Callable[["Rollout"], "PossibleFollowUps | None"]


def watch(fetch: Fetch, *, clock: Clock | None = None, possible: Possible | None = None) -> int:
    """Follow a rollout.

    Args:
        fetch: Asks the controller.
        clock: Source of time and of waiting.
        possible: Asks which rollouts could follow it; None to go by what it tells itself.

    Returns:
        The exit status, of `controller.cli.ending`.
    """
    clock = clock or SystemClock()
    states = _states(fetch, clock)
    last = _watch_live(states) if is_terminal() else _watch_lines(states, clock)
    can = possible(last) if possible is not None and exit_status(last) else None
    write_lines(end_lines(last, can))
    return exit_status(last)


def changes(old: Rollout | None, new: Rollout) -> list[str]:
    """Return what has changed, as one line for each change.

    Args:
        old: As it was; None at first.
        new: As it is.

    Returns:
        The lines: decisions, stages, the state, and what it waits for.
    """
    fresh = _fresh([] if old is None else old.events, new.events)
    lines = [event_text(event) for event in fresh if event.action not in AT_WORK]
    stages = {s.number: stage_text(s, old) for s in old.stages} if old is not None else {}
    lines += [
        f"stage {s.number} of {len(new.stages)} (to {s.target}): {text}"
        for s in new.stages
        if (text := stage_text(s, new)) != stages.get(s.number, "waiting")
    ]
    if old is None or old.state != new.state:
        lines.append(_state_line(new))
    waits = waiting_for(new)
    if waits and (old is None or waits != waiting_for(old)):
        lines.append(next_step(new))
    return lines


def _fresh(old: list[RolloutEvent], new: list[RolloutEvent]) -> list[RolloutEvent]:
    """Return what a log has gained; an answer holds its newest entries, the first may be gone."""
    for gone in range(len(old)):
        kept = len(old) - gone
        if new[:kept] == old[gone:]:
            return new[kept:]
    return new


def transfer_lines(rollout: Rollout) -> list[str]:
    """Return how far the transfers of a rollout are together, and of each stage if several fetch.

    Args:
        rollout: The rollout.

    Returns:
        The lines; none if no device fetches.
    """
    if rollout.transfers is None:
        return []
    stages = [(s.number, s.transfers) for s in rollout.stages if s.transfers is not None]
    each = [f"stage {number}: {sum_text(transfers)}" for number, transfers in stages]
    return [sum_text(rollout.transfers), *(each if len(each) > 1 else [])]


def counts_text(rollout: Rollout) -> str:
    """Return how many devices are in which state."""
    total = sum(rollout.counts.values())
    counts = {str(state): count for state, count in rollout.counts.items()}
    if rollout.left_out:
        counts[DeploymentState.CANCELLED] -= rollout.left_out
        counts[LEFT_OUT] = rollout.left_out
    parts = [f"{count} {state}" for state, count in counts.items() if count]
    text = f"{', '.join(parts) or 'no devices'}; {total} in all"
    return f"{text}; {rollout.preparing} still to be taken in" if rollout.preparing else text


def state_text(deployment: Deployment) -> str:
    """Return the state of a device of a rollout."""
    is_left_out = deployment.error_code == UnfitError.code
    return LEFT_OUT if is_left_out else str(deployment.state)


def _states(fetch: Fetch, clock: Clock) -> Iterator[Rollout]:
    """Yield what the controller says until the rollout has ended.

    Raises:
        UnreachableError: The controller was unreachable for too long.
    """
    for rollout in answers(fetch, POLL_S, clock):
        yield rollout
        if rollout.state in FINAL_STATES:
            return


def _watch_lines(states: Iterator[Rollout], clock: Clock) -> Rollout:
    last: Rollout | None = None
    told: set[str] = set()
    told_s = float("-inf")
    for rollout in states:
        lines = changes(last, rollout)
        figures = [_state_line(rollout), *transfer_lines(rollout)]
        if clock.monotonic_s() - told_s >= FIGURES_EVERY_S:
            lines += [line for line in figures if line not in {*told, *lines}]
            told, told_s = set(figures), clock.monotonic_s()
        _write_lines(lines)
        last = rollout
    assert last is not None  # noqa: S101 - `_states` yields a final state, or raises
    return last


def _state_line(rollout: Rollout) -> str:
    return f"rollout {rollout.id} {rollout.state}: {counts_text(rollout)}"


def _write_lines(lines: list[str]) -> None:
    import sys

    for line in lines:
        write(line)
    sys.stdout.flush()


def _watch_live(states: Iterator[Rollout]) -> Rollout:
    from rich.live import Live

    last = next(states)
    with Live(_picture(last), refresh_per_second=4, transient=False) as live:
        for rollout in states:
            last = rollout
            live.update(_picture(last))
    return last


def _picture(rollout: Rollout) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    total = max(sum(rollout.counts.values()), 1)
    done = rollout.counts.get(DeploymentState.SUCCEEDED, 0)
    bar = Table.grid(padding=(0, 1))
    bar.add_row(ProgressBar(total=total, completed=done, width=40), f"{done} of {total}")
    stages = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("STAGE", "TO DEVICES", "STATE"):
        stages.add_column(name)
    for stage in rollout.stages:
        stages.add_row(str(stage.number), str(stage.target), stage_text(stage, rollout))
    active = [d for d in rollout.deployments if d.state in {"assigned", "waiting", "failed"}]
    fetching = [Text(line) for line in transfer_lines(rollout)]
    lines = [Text(_device_text(d)) for d in active[:MAX_LIVE_DEVICES]]
    if len(active) > MAX_LIVE_DEVICES:
        lines.append(Text(f"and {len(active) - MAX_LIVE_DEVICES} more"))
    events = [Text(event_text(e), style="dim") for e in rollout.events[-MAX_LIVE_EVENTS:]]
    head = Text(f"rollout {rollout.id} of {plain_text(rollout.release)}: {rollout.state}")
    step = [Text(next_step(rollout))] if waiting_for(rollout) else []
    return Group(head, bar, Text(counts_text(rollout)), *fetching, stages, *lines, *events, *step)


def _device_text(deployment: Deployment) -> str:
    text = f"{plain_text(deployment.device)} {state_text(deployment)}"
    if deployment.state == "assigned" and deployment.phase:
        waits = bool(deployment.detail)
        text += f" {phase_text(deployment.phase, deployment.transfer, waits=waits)}"
    if deployment.state == "assigned" and deployment.detail:
        text += f": {plain_text(deployment.detail)}"
    if deployment.state == "waiting":
        text += ": offline, goes on when it returns"
    if deployment.state == "failed":
        text += f": {plain_text(deployment.error_code)} {plain_text(deployment.detail)}".rstrip()
    return text


def event_text(event: RolloutEvent) -> str:
    """Return a decision and its reason, in one line."""
    who = f" ({plain_text(event.actor)})" if event.actor not in {"", HOME} else ""
    return f"{local_time(event.at_s)} {plain_text(event.action)}: {plain_text(event.reason)}{who}"
