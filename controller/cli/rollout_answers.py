"""What the commands that make rollouts share: the order, its answer, and following it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from controller.cli.connecting import tell_cut_off
from controller.cli.output import write_json
from controller.cli.watch import counts_text, event_text, watch
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from controller.domain.states import ACTIVE_ROLLOUTS
from controller.rollout_schemas import PossibleFollowUps, Rollout
from wire.console.output import is_terminal, remark, write

WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch",
        help="Follow the rollout until it ends. The exit status is that of `fleet rollout watch`.",
    ),
]


def tell_skipped(rollout: Rollout) -> None:
    """Tell which devices a new rollout leaves alone."""
    for event in rollout.events:
        if event.action == "skip":
            remark(event_text(event))


def answer(api: Fleet, rollout: Rollout, *, follow: bool, as_json: bool) -> int:
    """Write a rollout that was made, and follow it if asked to; return the exit status."""
    if as_json:
        write_json(rollout)
    else:
        write(rollout.id)
        remark(f"rollout of {rollout.release} {rollout.state}: {counts_text(rollout)}")
    tell_cut_off(api)
    if not follow:
        return 0
    return follow_up(api, rollout.id)


def follow_up(api: Fleet, rollout: str) -> int:
    """Follow a rollout until it ends; return the exit status."""
    # Only a terminal shows devices one by one.
    limit = None if is_terminal() else 1
    return watch(lambda: api.rollouts.get(rollout, limit=limit), possible=partial(possible, api))


def possible(api: Fleet, rollout: Rollout) -> PossibleFollowUps | None:
    """Return which rollouts could follow one that has ended; None of one that has not.

    A controller of an earlier version does not say: None.

    Raises:
        FaultError: The controller refuses.
    """
    if rollout.state in ACTIVE_ROLLOUTS:
        return None
    try:
        return api.rollouts.follow_ups(rollout.id)
    except FaultError as exc:
        if exc.status == 404:  # noqa: PLR2004 - HTTP
            return None
        raise
