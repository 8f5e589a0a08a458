"""How a rollout has ended, for who followed it: the exit status, and what the last lines say.

Rules:
- 0 is for a rollout that succeeded, of whose devices none failed. Those that are offline do not
  count: they get the release when they return.
- A rollout that succeeded has kept its limits, but within them devices may have failed. That has a
  status of its own, and so has one that no device has the release of, or of which a newer rollout
  took devices.
"""

from __future__ import annotations

from typing import Final

from controller.cli.next_steps import next_step
from controller.domain.deployment_codes import SUPERSEDED
from controller.domain.states import DeploymentState, RolloutState
from controller.domain.wording import counted
from controller.rollout_schemas import OutcomeGroup, PossibleFollowUps, Rollout
from wire.console.text import plain_text

EXIT_NO: Final = 1
"""Halted or aborted; of other commands, that what was asked is not so."""

EXIT_PARTLY: Final = 3
"""It succeeded, though devices failed, none has the release, or a newer rollout took some.

2 is for a wrong command line.
"""


def exit_status(rollout: Rollout) -> int:
    """Return the exit status of who followed a rollout to its end."""
    if rollout.state is not RolloutState.SUCCEEDED:
        return EXIT_NO
    has_failed = rollout.counts.get(DeploymentState.FAILED, 0) > 0
    was_taken = _taken(rollout) > 0
    return EXIT_PARTLY if has_failed or was_taken or not _has_it(rollout) else 0


def end_lines(rollout: Rollout, can: PossibleFollowUps | None = None) -> list[str]:
    """Return why devices have not got the release, how many have, and what can be done.

    Args:
        rollout: The rollout.
        can: Which rollouts could follow it; None where that is not known.
    """
    total = sum(rollout.counts.values()) - rollout.left_out
    done = _has_it(rollout)
    which = f"all {counted(total)}" if done == total > 1 else f"{done} of {counted(total)}"
    has = "has" if done == 1 else "have"
    verb = "went back" if rollout.rollback_of else f"{has} {plain_text(rollout.release)}"
    text = f"{which} {verb}"
    if waiting := rollout.counts.get(DeploymentState.WAITING, 0):
        text += f", {waiting} to follow when online again"
    failed = [each for each in rollout.outcomes if each.state is DeploymentState.FAILED]
    if taken := _taken(rollout):
        by = f"rollout {rollout.superseded_by}" if rollout.superseded_by else "a newer rollout"
        text += f", {by} took {taken}"
    if status := exit_status(rollout):
        text += f"; exit status {status}"
        if failed or status == EXIT_NO:
            text += f". {next_step(rollout, can=can)}"
    return [*map(outcome_line, failed), text]


def outcome_line(group: OutcomeGroup) -> str:
    """Return how many devices failed or were cancelled for one reason, and the first of them."""
    names = ", ".join(map(plain_text, group.devices))
    such = "" if group.count == len(group.devices) else "such as "
    code = f" with {plain_text(group.error_code)}" if group.error_code else ""
    detail = f": {plain_text(group.detail)}" if group.detail else ""
    return f"{group.count} {group.state}{code} ({such}{names}){detail}"


def _has_it(rollout: Rollout) -> int:
    return rollout.counts.get(DeploymentState.SUCCEEDED, 0)


def _taken(rollout: Rollout) -> int:
    """Return how many devices a newer rollout took before they had started."""
    groups = (each for each in rollout.outcomes if each.error_code == SUPERSEDED)
    return sum(group.count for group in groups)
